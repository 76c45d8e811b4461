"""The arguments of `vllm serve`, as of 0.33 (config/speculative.py, config/vllm.py, engine/arg_utils.py)."""

from __future__ import annotations

import json
from typing import Any

from paceline.integrations.export import engine_request as export
from paceline.integrations.export.engine_request import COPIES, DRAFT_MODEL, MTP, EngineRequest
from paceline.speculative.errors import UsageError

PORTFOLIO = {"method": "custom_class", "model": "paceline.integrations.vllm.Portfolio"}
PORTFOLIO_SETTINGS = ("p_min", "ngram_min", "ngram_max")
# Default lengths: copies are cheap, and every token of a draft model costs a pass.
N_DRAFT = {COPIES: 8, DRAFT_MODEL: 4, MTP: 2, "eagle": 3, "eagle3": 3}
RESERVED_FLAGS = ("--spec", "-sc", "--additional-config")


def arguments(request: EngineRequest) -> list[str]:
    """Return the command. Raises UsageError if vLLM cannot do it losslessly."""
    model = export.strip_prefix(request.model)
    draft = export.strip_prefix(request.draft) if request.draft else ""
    for name in (model, draft):
        if export.is_gguf(name):
            advice = "give the folder or hub name of the model in safetensors, or use --engine sglang"
            raise UsageError(f"{name}: vLLM 0.33 reads no GGUF files of itself: {advice}")
    out = ["vllm", "serve", model]
    if method := export.method_for("vLLM", request):
        speculative, section = configuration(request, method, draft)
        out += ["--speculative-config", json.dumps(speculative)]
        out += ["--additional-config", json.dumps({"paceline": section})] if section else []
    return [*out, *request.server_args("--max-model-len", RESERVED_FLAGS)]


def configuration(request: EngineRequest, method: str, draft: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the speculative configuration and the portfolio's settings. Raises UsageError."""
    given, copies = request.drafting_settings, method == COPIES
    out: dict[str, Any] = dict(PORTFOLIO) if copies else {"method": method}
    out |= {"model": draft} if draft else {}
    if n_draft := request.n_draft or N_DRAFT.get(method, 0):
        out["num_speculative_tokens"] = n_draft
    elif method == "dflash":
        raise UsageError(f"vLLM's {method} needs the length of its blocks: give the longest draft")
    translated = {*PORTFOLIO_SETTINGS, "corpora"} if copies else set[str]()
    if given.get("verify") == "block":
        out["rejection_sample_method"] = "block"
        translated.add("verify")
    if method == DRAFT_MODEL and given.get("cross_vocab") == "tli":
        out["use_heterogeneous_vocab"] = True
        translated.add("cross_vocab")
    request.require_supported_settings(f"vLLM's {out['method']}", translated)
    if not copies:
        return out, {}
    section: dict[str, Any] = {name: given[name] for name in PORTFOLIO_SETTINGS if name in given}
    if request.drafters != ("auto",):
        section["drafters"] = list(request.drafters)
    if request.corpora:
        section["corpora"] = list(request.corpora)
    return out, section
