"""The arguments of `vllm serve`, as of 0.33 (config/speculative.py, engine/arg_utils.py), and since 0.6.4
(docs.vllm.ai/en/vX)."""

from __future__ import annotations

import json
from typing import Any

from paceline.integrations.export import engine_request as export
from paceline.integrations.export.engine_request import COPIES, DRAFT_MODEL, MTP, N_DRAFT, EngineRequest
from paceline.speculative.errors import UsageError

PORTFOLIO = {"method": "custom_class", "model": "paceline.integrations.vllm.Portfolio"}
PORTFOLIO_SETTINGS = ("p_min", "ngram_min", "ngram_max")
# Our class was tried with 0.33; until then vLLM's own n-grams copy. --speculative-config: 0.8.2 (#14434).
# No draft models from 0.10 to 0.14 (#24322). One method "mtp": 0.11. The rest is no older than 0.26.
PLUGIN, AS_JSON = "0.33", "0.8.2"
SINCE = {DRAFT_MODEL: "0.15", MTP: "0.11", "eagle": "0.9", "eagle3": "0.9"}
SINCE |= dict.fromkeys(("dflash", "dspark", "verify block", "cross_vocab tli"), PLUGIN)
OLD_FLAGS = {"model": "--speculative-model", "num_speculative_tokens": "--num-speculative-tokens"}
OLD_FLAGS |= {f"prompt_lookup_{end}": f"--ngram-prompt-lookup-{end}" for end in ("min", "max")}
KEYS: dict[tuple[str, str], dict[str, Any]] = {
    ("verify", "block"): {"rejection_sample_method": "block"},
    ("cross_vocab", "tli"): {"use_heterogeneous_vocab": True},
}
RESERVED_FLAGS = ("--spec", "-sc", "--additional-config")


def arguments(request: EngineRequest) -> list[str]:
    """Return the command. Raises UsageError if vLLM cannot do it losslessly."""
    model, draft = export.pair("vLLM", request)
    out = ["vllm", "serve", model]
    if method := export.method_for("vLLM", request):
        speculative, section = configuration(request, method, draft)
        if request.older_than(AS_JSON):
            words = {"model": "[ngram]"} | {n: v for n, v in speculative.items() if n != "method"}
            out += [word for name, value in words.items() for word in (OLD_FLAGS[name], str(value))]
        else:
            out += ["--speculative-config", json.dumps(speculative)]
        out += ["--additional-config", json.dumps({"paceline": section})] if section else []
    return [*out, *request.server_args("--max-model-len", RESERVED_FLAGS)]


def configuration(request: EngineRequest, method: str, draft: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the speculative configuration and the portfolio's settings. Raises UsageError."""
    given, copies = request.drafting_settings, method == COPIES
    if copies and request.older_than(PLUGIN):
        return ngrams(request), {}
    named = method != DRAFT_MODEL or not request.older_than("0.10")
    request.require_version("vLLM", method, SINCE if named else {})
    out: dict[str, Any] = dict(PORTFOLIO) if copies else {"method": method} if named else {}
    out |= {"model": draft} if draft else {}
    if n_draft := request.n_draft or N_DRAFT.get(method, 0):
        out["num_speculative_tokens"] = n_draft
    elif method == "dflash":
        raise UsageError(f"vLLM's {method} needs the length of its blocks: give the longest draft")
    translated = {*PORTFOLIO_SETTINGS, "corpora"} if copies else set[str]()
    for (name, value), words in KEYS.items():
        if given.get(name) == value and (name == "verify" or method == DRAFT_MODEL):
            request.require_version("vLLM", f"{name} {value}", SINCE)
            out |= words
            translated.add(name)
    request.require_supported_settings(f"vLLM's {out.get('method', method)}", translated)
    section: dict[str, Any] = {name: given[name] for name in PORTFOLIO_SETTINGS if name in given}
    lists = {"drafters": request.drafters, "corpora": request.corpora}
    section |= {name: list(names) for name, names in lists.items() if names not in ((), ("auto",))}
    return out, section if copies else {}


def ngrams(request: EngineRequest) -> dict[str, Any]:
    """Return the configuration of vLLM's own n-grams. Raises UsageError."""
    for name in {*request.drafters} - {"auto", "lookup"}:
        request.require_version("vLLM", name, {name: PLUGIN})
    request.require_supported_settings("vLLM's ngram", ("ngram_min", "ngram_max"))
    lengths = {f"prompt_lookup_{end}": getattr(request.drafting, f"ngram_{end}") for end in ("min", "max")}
    return {"method": "ngram", "num_speculative_tokens": request.n_draft or N_DRAFT[COPIES], **lengths}
