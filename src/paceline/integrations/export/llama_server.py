"""The arguments of `llama-server`, as of build 11549 (common/arg.cpp)."""

from __future__ import annotations

from paceline.integrations.export import engine_request as export
from paceline.integrations.export.engine_request import COPIES, DRAFT_MODEL, MTP, EngineRequest
from paceline.speculative.errors import UsageError

TYPES = {COPIES: "ngram-simple", DRAFT_MODEL: "draft-simple", MTP: "draft-mtp"}
TYPES |= {kind: f"draft-{kind}" for kind in ("eagle3", "dflash", "dspark")}
RESERVED_FLAGS = ("--spec", "--model-draft", "-md", "-m", "-c")


def arguments(request: EngineRequest) -> list[str]:
    """Return the command. Raises UsageError if llama-server cannot do it losslessly."""
    model, *draft = (export.strip_prefix(name) for name in (request.model, request.draft) if name)
    for name in (model, *draft):
        if not export.is_gguf(name):
            raise UsageError(f"{name}: llama-server reads GGUF files only")
    out, method = ["llama-server", "-m", model], export.method_for("llama-server", request)
    if not method:
        return [*out, *request.server_args("--ctx-size", RESERVED_FLAGS, name="--alias")]
    copies, names = method == COPIES, ",".join(request.drafters)
    if method not in TYPES or (copies and names not in ("auto", "lookup")):
        advice = "use --draft lookup, --draft mtp or a draft model (-md)"
        raise UsageError(f"llama-server has no counterpart of {names if copies else method}: {advice}")
    request.require_supported_settings("llama-server", () if copies else ("p_min",))
    out += [*(["-md", *draft] if draft else []), "--spec-type", TYPES[method]]
    if request.n_draft:
        out += ["--spec-ngram-simple-size-m" if copies else "--spec-draft-n-max", str(request.n_draft)]
    if "p_min" in request.drafting_settings and not copies:
        out += ["--spec-draft-p-min", f"{request.drafting.p_min:g}"]
    return [*out, *request.server_args("--ctx-size", RESERVED_FLAGS, name="--alias")]
