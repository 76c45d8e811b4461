"""The arguments of `sglang serve`, as of 0.5.23 (srt/arg_groups/speculative_hook.py, fields/spec.py)."""

from __future__ import annotations

from paceline.integrations.export.asked import Asked
from paceline.integrations.export.method import (
    COPIES,
    DRAFT_MODEL,
    MAY,
    MUST,
    NO,
    is_gguf,
    meant,
    named,
    plain,
)
from paceline.speculative.errors import UsageError

ENGINE = "SGLang"
METHODS = {"ngram": NO, "standalone": MUST, "eagle": MUST, "eagle3": MUST, "nextn": MAY}
METHODS |= {"dflash": MUST, "dspark": MAY}
EAGLES = ("eagle", "eagle3", "nextn")
STEPPED = (*EAGLES, "standalone")
VERIFYING_BLOCKS = (*EAGLES, "dflash", "dspark")
TAKEN = ("--spec", "--enable-multi-layer-eagle")


def arguments(asked: Asked) -> list[str]:
    """Return the command. Raises UsageError for what SGLang cannot do, or not with the model's own output."""
    model = plain(asked.model)
    draft = plain(asked.draft) if asked.draft else ""
    if draft and is_gguf(model) != is_gguf(draft):
        raise UsageError(f"{model} and {draft}: for SGLang both must be GGUF files, or none")
    if asked.corpora:
        raise UsageError("SGLang reads no corpora of Paceline's: leave them out")
    out = ["sglang", "serve", "--model-path", model]
    if method := method_of(asked):
        out += ["--speculative-algorithm", method.upper()]
        out += ["--speculative-draft-model-path", draft] if draft else []
        out += flags(asked, method)
    return [*out, *asked.serving("--context-length", TAKEN)]


def method_of(asked: Asked) -> str:
    """Return SGLang's algorithm in small letters; "" for plain decoding. Raises UsageError."""
    if asked.method:
        return named(ENGINE, METHODS, asked)
    method = meant(ENGINE, asked)
    if method == COPIES and not set(asked.drafters) <= {"auto", "lookup", "ngram"}:
        raise UsageError(
            f"SGLang takes no drafters from outside, and {','.join(asked.drafters)} would be: it has "
            "n-grams of its own (--draft lookup); Paceline's drafters run in vLLM (--engine vllm)"
        )
    return {COPIES: "ngram", DRAFT_MODEL: "standalone"}.get(method, method)


def flags(asked: Asked, method: str) -> list[str]:
    """Return Paceline's settings as SGLang's flags. Raises UsageError."""
    out: dict[str, int] = {}
    n, translated, blocks = asked.n_draft, set[str](), []
    if method in STEPPED and "width" in asked.settings:
        translated.add("width")
        if not n:
            raise UsageError("SGLang sets the width and the longest draft together: give that, too")
    if n and method in STEPPED:
        width = asked.drafting.width if translated else 1
        # The token before the draft is counted.
        out = {"num-steps": n, "eagle-topk": width, "num-draft-tokens": n * width + 1}
    elif n:
        out = {"dspark-block-size": n} if method == "dspark" else {"num-draft-tokens": n + 1}
    if asked.settings.get("verify") == "block":
        if method not in VERIFYING_BLOCKS:
            raise UsageError(f"SGLang does not verify blocks with {method}: leave out verify")
        translated.add("verify")
        blocks = ["--speculative-use-block-verification"]
    asked.require_settled(f"SGLang's {method}", translated)
    return [word for name, value in out.items() for word in (f"--speculative-{name}", str(value))] + blocks
