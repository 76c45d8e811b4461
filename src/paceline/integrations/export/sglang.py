"""The arguments of `sglang serve`, as of 0.5.23 (srt/arg_groups/speculative_hook.py, fields/spec.py) and
since 0.4.6 (srt/server_args.py)."""

from __future__ import annotations

from paceline.integrations.export import engine_request as export
from paceline.integrations.export.engine_request import COPIES, DRAFT_MODEL, MTP, EngineRequest
from paceline.speculative.errors import UsageError

EAGLES = ("eagle", "eagle3")
AUTOREGRESSIVE_METHODS = (*EAGLES, "standalone", "nextn")
BLOCK_VERIFICATION_METHODS = (*EAGLES, "dflash", "dspark")
SINCE = {"standalone": "0.5.2", "ngram": "0.5.3", "dflash": "0.5.12"}
SINCE |= dict.fromkeys(("dspark", "verify block"), "0.5.23")
RESERVED_FLAGS = ("--spec", "--enable-multi-layer-eagle")


def arguments(request: EngineRequest) -> list[str]:
    """Return the command. Raises UsageError if SGLang cannot do it losslessly."""
    model = export.strip_prefix(request.model)
    draft = export.strip_prefix(request.draft) if request.draft else ""
    if draft and export.is_gguf(model) != export.is_gguf(draft):
        raise UsageError(f"{model} and {draft}: for SGLang both must be GGUF files, or none")
    start = ["python", "-m", "sglang.launch_server"] if request.older_than("0.5.6") else ["sglang", "serve"]
    out = [*start, "--model-path", model]
    if method := method_of(request):
        request.require_version("SGLang", method, SINCE)
        out += ["--speculative-algorithm", method.upper()]
        out += ["--speculative-draft-model-path", draft] if draft else []
        out += flags(request, method)
    return [*out, *request.server_args("--context-length", RESERVED_FLAGS)]


def method_of(request: EngineRequest) -> str:
    """Return SGLang's algorithm in lower case, or "" for plain decoding. Raises UsageError."""
    method = export.method_for("SGLang", request)
    if method == COPIES and not set(request.drafters) <= {"auto", "lookup", "ngram"}:
        own = "it has n-grams of its own (--draft lookup); Paceline's drafters run in vLLM (--engine vllm)"
        names = ",".join(request.drafters)
        raise UsageError(f"SGLang takes no drafters from outside, and {names} would be: {own}")
    return {COPIES: "ngram", DRAFT_MODEL: "standalone", MTP: "nextn"}.get(method, method)


def flags(request: EngineRequest, method: str) -> list[str]:
    """Return the settings as SGLang's flags. Raises UsageError."""
    out: dict[str, int] = {}
    n, translated, blocks = request.n_draft, set[str](), []
    if method in AUTOREGRESSIVE_METHODS and "width" in request.drafting_settings:
        translated.add("width")
        if not n:
            raise UsageError("SGLang sets the width and the longest draft together: give that, too")
    if n and method in AUTOREGRESSIVE_METHODS:
        width = request.drafting.width if translated else 1
        # SGLang counts the token before the draft, too.
        out = {"num-steps": n, "eagle-topk": width, "num-draft-tokens": n * width + 1}
    elif n:
        out = {"dspark-block-size": n} if method == "dspark" else {"num-draft-tokens": n + 1}
    if request.drafting_settings.get("verify") == "block" and method in BLOCK_VERIFICATION_METHODS:
        request.require_version("SGLang", "verify block", SINCE)
        translated.add("verify")
        blocks = ["--speculative-use-block-verification"]
    request.require_supported_settings(f"SGLang's {method}", translated)
    return [word for name, value in out.items() for word in (f"--speculative-{name}", str(value))] + blocks
