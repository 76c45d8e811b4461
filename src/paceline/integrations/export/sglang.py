"""The arguments of `sglang serve`, as of 0.5.23 (srt/arg_groups/speculative_hook.py, fields/spec.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.integrations.export.asked import Asked, merged, require_free
from paceline.integrations.export.method import COPIES, MAY, MUST, NO, meant, named
from paceline.integrations.export.reference import DRAFT_MODEL, is_gguf, plain
from paceline.speculative.errors import UsageError

ENGINE = "SGLang"
METHODS = {"ngram": NO, "standalone": MUST, "eagle": MUST, "eagle3": MUST, "nextn": MAY}
METHODS |= {"dflash": MUST, "dspark": MAY}
EAGLES = ("eagle", "eagle3", "nextn")
STEPPED = (*EAGLES, "standalone")
STEPS, TOPK, TOKENS = "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"
DSPARK_BLOCK, VERIFY_BLOCKS = "speculative_dspark_block_size", "speculative_use_block_verification"
VERIFYING_BLOCKS = (*EAGLES, "dflash", "dspark")
THRESHOLD = "speculative_accept_threshold_"  # 1, which they are anyway, leaves the output the target's
TAKEN = (
    *("--spec*", "--enable-multi-layer-eagle", "--model-path", "--model", "--context-length"),
    *("--host", "--port", "--served-model-name", "--api-key"),
)


def arguments(asked: Asked) -> list[str]:
    """Return the command. Raises UsageError for what SGLang cannot do, or not with the model's own output."""
    model = plain(asked.model)
    draft = plain(asked.draft, "draft") if asked.draft else ""
    if draft and is_gguf(model) != is_gguf(draft):
        raise UsageError(
            f"{model} and {draft}: SGLang reads both in one way: both must be GGUF files, or none"
        )
    if asked.corpora:
        raise UsageError(
            "SGLang reads no corpora of Paceline's: its own are files of JSON lines "
            "(speculative_ngram_external_corpus_path)"
        )
    require_free(ENGINE, asked.extra, TAKEN)
    out = ["sglang", "serve", "--model-path", model]
    if method := method_of(asked):
        out += ["--speculative-algorithm", method.upper()]
        out += ["--speculative-draft-model-path", draft] if draft else []
        out += flags(merged(ENGINE, tuned(asked, method), lossless(asked.own)))
    return [*out, *asked.serving("--context-length"), *asked.extra]


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


def lossless(own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `own` without thresholds of 1. Raises UsageError for others, which change the output."""
    out = {name.replace("-", "_"): value for name, value in own.items()}
    for name, value in out.items():
        if not name.startswith("speculative_"):
            raise UsageError(f"SGLang has no speculative setting {name!r}: they begin with speculative_")
        if name.startswith(THRESHOLD) and value != 1:
            raise UsageError(
                f"SGLang: {name} {value} accepts more drafted tokens than the model says: leave it out"
            )
    return {name: value for name, value in out.items() if not name.startswith(THRESHOLD)}


def tuned(asked: Asked, method: str) -> dict[str, Any]:
    """Return Paceline's settings by SGLang's names. Raises UsageError."""
    out: dict[str, Any] = {}
    n, translated = asked.n_draft, set[str]()
    if method in STEPPED and "width" in asked.settings:
        translated.add("width")
        if not n:
            raise UsageError("SGLang sets the width and the longest draft together: give that, too")
    if n and method in STEPPED:
        width = asked.drafting.width if translated else 1
        out |= {STEPS: n, TOPK: width, TOKENS: n * width + 1}  # the token before the draft is counted
    elif n:
        out |= {DSPARK_BLOCK: n} if method == "dspark" else {TOKENS: n + 1}
    if asked.settings.get("verify") == "block":
        if method not in VERIFYING_BLOCKS:
            raise UsageError(f"SGLang does not verify blocks with {method}: leave out verify")
        translated.add("verify")
        out[VERIFY_BLOCKS] = True
    asked.require_settled(f"SGLang's {method}", translated)
    return out


def flags(settings: Mapping[str, Any]) -> list[str]:
    """Return the command-line flags: True has no value, False is left out."""
    out: list[str] = []
    for name, value in settings.items():
        if value is not False:
            out += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return out
