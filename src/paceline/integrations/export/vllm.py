"""The arguments of `vllm serve`, as of 0.33 (config/speculative.py, config/vllm.py, engine/arg_utils.py)."""

from __future__ import annotations

import json
from typing import Any

from paceline.integrations.export.engine_request import EngineRequest
from paceline.integrations.export.method import (
    COPY_DRAFTERS,
    DRAFT_FORBIDDEN,
    DRAFT_MODEL,
    DRAFT_OPTIONAL,
    DRAFT_REQUIRED,
    is_gguf,
    method_for_drafters,
    strip_prefix,
    validate_method,
)
from paceline.speculative.errors import UsageError

ENGINE = "vLLM"
CUSTOM = "custom_class"
METHODS = {
    CUSTOM: DRAFT_FORBIDDEN,
    "ngram": DRAFT_FORBIDDEN,
    "ngram_gpu": DRAFT_FORBIDDEN,
    "suffix": DRAFT_FORBIDDEN,
    DRAFT_MODEL: DRAFT_REQUIRED,
    "eagle": DRAFT_REQUIRED,
    "eagle3": DRAFT_REQUIRED,
    "dflash": DRAFT_REQUIRED,
    "mtp": DRAFT_OPTIONAL,
    "dspark": DRAFT_OPTIONAL,
}
NGRAM = ("ngram", "ngram_gpu")
# Default lengths: copies are cheap, and every token of a draft model costs a pass.
N_DRAFT = {CUSTOM: 8, "ngram": 8, "ngram_gpu": 8, DRAFT_MODEL: 4, "eagle": 3, "eagle3": 3, "mtp": 1}
# vLLM's names of the settings.
NAMES: dict[str, dict[str, str]] = {
    CUSTOM: {"p_min": "p_min", "ngram_min": "ngram_min", "ngram_max": "ngram_max"},
    "suffix": {"p_min": "suffix_decoding_min_token_prob"},
    **{name: {"ngram_min": "prompt_lookup_min", "ngram_max": "prompt_lookup_max"} for name in NGRAM},
}
NGRAMS = {"ngram_min", "ngram_max"}
RESERVED_FLAGS = ("--spec", "-sc", "--additional-config")


def arguments(request: EngineRequest) -> list[str]:
    """Return the command. Raises UsageError if vLLM cannot do it losslessly."""
    model = strip_prefix(request.model)
    draft = strip_prefix(request.draft) if request.draft else ""
    for name in (model, draft):
        if is_gguf(name):
            raise UsageError(
                f"{name}: vLLM 0.33 reads no GGUF files of itself: give the folder or hub name of the model "
                "in safetensors, or use --engine sglang"
            )
    out = ["vllm", "serve", model]
    if request.method:
        method = validate_method(ENGINE, METHODS, request)
    else:
        method = method_for_drafters(ENGINE, request)
    if method:
        method = CUSTOM if method == COPY_DRAFTERS else method
        speculative, section = configuration(request, method, draft)
        out += ["--speculative-config", json.dumps(speculative)]
        out += ["--additional-config", json.dumps({"paceline": section})] if section else []
    return [*out, *request.server_args("--max-model-len", RESERVED_FLAGS)]


def configuration(request: EngineRequest, method: str, draft: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the speculative configuration and the portfolio's settings. Raises UsageError."""
    out: dict[str, Any] = {"method": method}
    if model := "paceline.integrations.vllm.Portfolio" if method == CUSTOM else draft:
        out["model"] = model
    if n_draft := request.n_draft or N_DRAFT.get(method, 0):
        out["num_speculative_tokens"] = n_draft
    elif method == "dflash" or (method == "dspark" and not draft):
        raise UsageError(f"vLLM's {method} needs the length of its blocks: give the longest draft")
    settings = translate_settings(request, method)
    if request.drafting_settings.get("verify") == "block":
        out["rejection_sample_method"] = "block"
    if method != CUSTOM:
        if request.corpora:
            raise UsageError(f"vLLM's {method} does not draft from corpora: leave out them, or the method")
        return out | settings, {}
    if request.drafters != ("auto",):
        settings["drafters"] = list(request.drafters)
    if request.corpora:
        settings["corpora"] = list(request.corpora)
    return out, settings


def translate_settings(request: EngineRequest, method: str) -> dict[str, Any]:
    """Return the settings by vLLM's names. Raises UsageError."""
    names, given = NAMES.get(method, {}), {*request.drafting_settings}
    given |= NGRAMS if given & NGRAMS else set()  # vLLM would take one length for both
    out = {there: getattr(request.drafting, here) for here, there in names.items() if here in given}
    translated = {*names}
    if method == DRAFT_MODEL and request.drafting_settings.get("cross_vocab") == "tli":
        out["use_heterogeneous_vocab"] = True
        translated.add("cross_vocab")
    if request.drafting_settings.get("verify") == "block":
        translated.add("verify")
    request.require_supported_settings(f"vLLM's {method}", translated)
    return out
