"""The arguments of `vllm serve`, as of 0.33 (config/speculative.py, config/vllm.py, engine/arg_utils.py)."""

from __future__ import annotations

import json
from typing import Any

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

ENGINE = "vLLM"
CUSTOM = "custom_class"
METHODS = {CUSTOM: NO, "ngram": NO, "ngram_gpu": NO, "suffix": NO, DRAFT_MODEL: MUST}
METHODS |= {"eagle": MUST, "eagle3": MUST, "dflash": MUST, "mtp": MAY, "dspark": MAY}
NGRAM = ("ngram", "ngram_gpu")
# Where nothing is asked for: copies are cheap to make, and of a model's drafts every token costs a pass.
N_DRAFT = {CUSTOM: 8, "ngram": 8, "ngram_gpu": 8, DRAFT_MODEL: 4, "eagle": 3, "eagle3": 3, "mtp": 1}
# What Paceline's settings are called; the portfolio's section has its own names.
NAMES: dict[str, dict[str, str]] = {
    CUSTOM: {"p_min": "p_min", "ngram_min": "ngram_min", "ngram_max": "ngram_max"},
    "suffix": {"p_min": "suffix_decoding_min_token_prob"},
    **{name: {"ngram_min": "prompt_lookup_min", "ngram_max": "prompt_lookup_max"} for name in NGRAM},
}
NGRAMS = {"ngram_min", "ngram_max"}
TAKEN = ("--spec", "-sc", "--additional-config")


def arguments(asked: Asked) -> list[str]:
    """Return the command. Raises UsageError for what vLLM cannot do, or not with the model's own output."""
    model = plain(asked.model)
    draft = plain(asked.draft) if asked.draft else ""
    for name in (model, draft):
        if is_gguf(name):
            raise UsageError(
                f"{name}: vLLM 0.33 reads no GGUF files of itself: give the folder or hub name of the model "
                "in safetensors, or use --engine sglang"
            )
    out = ["vllm", "serve", model]
    method = named(ENGINE, METHODS, asked) if asked.method else meant(ENGINE, asked)
    if method:
        method = CUSTOM if method == COPIES else method
        speculative, section = configuration(asked, method, draft)
        out += ["--speculative-config", json.dumps(speculative)]
        out += ["--additional-config", json.dumps({"paceline": section})] if section else []
    return [*out, *asked.serving("--max-model-len", TAKEN)]


def configuration(asked: Asked, method: str, draft: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the speculative configuration and the portfolio's section. Raises UsageError."""
    out: dict[str, Any] = {"method": method}
    if model := "paceline.integrations.vllm.Portfolio" if method == CUSTOM else draft:
        out["model"] = model
    if n_draft := asked.n_draft or N_DRAFT.get(method, 0):
        out["num_speculative_tokens"] = n_draft
    elif method == "dflash" or (method == "dspark" and not draft):
        raise UsageError(f"vLLM's {method} needs the length of its blocks: give the longest draft")
    settings = tuned(asked, method)
    if asked.settings.get("verify") == "block":
        out["rejection_sample_method"] = "block"
    if method != CUSTOM:
        if asked.corpora:
            raise UsageError(f"vLLM's {method} does not draft from corpora: leave out them, or the method")
        return out | settings, {}
    if asked.drafters != ("auto",):
        settings["drafters"] = list(asked.drafters)
    if asked.corpora:
        settings["corpora"] = list(asked.corpora)
    return out, settings


def tuned(asked: Asked, method: str) -> dict[str, Any]:
    """Return Paceline's settings by vLLM's names. Raises UsageError."""
    names, given = NAMES.get(method, {}), {*asked.settings}
    given |= NGRAMS if given & NGRAMS else set()  # of which vLLM would take the one for the other
    out = {there: getattr(asked.drafting, here) for here, there in names.items() if here in given}
    translated = {*names}
    if method == DRAFT_MODEL and asked.settings.get("cross_vocab") == "tli":
        out["use_heterogeneous_vocab"] = True
        translated.add("cross_vocab")
    if asked.settings.get("verify") == "block":
        translated.add("verify")
    asked.require_settled(f"vLLM's {method}", translated)
    return out
