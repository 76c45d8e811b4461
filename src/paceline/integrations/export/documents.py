"""Files and programs for transformers 5, TensorRT-LLM 1.0 to 1.4 and Ollama 0.32.

Each function returns the texts by format, the usual format first. Raises UsageError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.integrations.export import engine_request as export
from paceline.integrations.export.engine_request import COPIES, DRAFT_MODEL, MTP, N_DRAFT, EngineRequest
from paceline.speculative.errors import UsageError

# Of TensorRT-LLM (tensorrt_llm/llmapi/llm_args.py; 1.3 still reads 1.0's names).
TYPES = {COPIES: "NGram", "suffix": "SA", DRAFT_MODEL: "Draft_Target", MTP: "MTP", "eagle3": "Eagle3"}
TYPES |= {"dflash": "DFlash", "dspark": "DSpark"}
SINCE = {"SA": "1.3", "DFlash": "1.3", "DSpark": "1.4", "use_mtp": "5.24"}


def method_of(engine: str, request: EngineRequest, *known: str) -> str:
    """Return the method, one of the known ones; "" for plain decoding."""
    method, names = export.method_for(engine, request), ",".join(request.drafters)
    method = names if method == COPIES and names not in ("auto", "lookup") else method
    if method not in ("", *known):
        why = f"has no counterpart of {method}: it has {', '.join(known)}".replace(COPIES, "lookup")
        raise UsageError(f"{engine} {why}")
    return method


def call(name: str, *words: str, **values: Any) -> str:
    """Return a call in Python."""
    return f"{name}({', '.join([*words, *(f'{key}={value!r}' for key, value in values.items())])})"


def transformers(request: EngineRequest) -> dict[str, str]:
    """Return a program, and its arguments (generation/configuration_utils.py)."""
    method, given = method_of("transformers", request, COPIES, DRAFT_MODEL, MTP), request.drafting_settings
    n_draft, generate, assistant = request.n_draft or N_DRAFT.get(method), dict[str, Any](), dict[str, Any]()
    target, draft = export.pair("transformers", request)
    if method == COPIES:
        longest = request.drafting.ngram_max
        generate = {"prompt_lookup_num_tokens": n_draft, "max_matching_ngram_size": longest}
    elif method == MTP and not request.draft:
        generate = {"use_mtp": True}
        request.require_version("transformers", "use_mtp", SINCE)
        if request.n_draft:
            raise UsageError(f"transformers drafts with all MTP layers, not {n_draft}: leave the length out")
    elif method:  # transformers reads these in the draft model's configuration
        assistant = {"num_assistant_tokens": n_draft, "num_assistant_tokens_schedule": "constant"}
        if "p_min" in given or given.get("policy") == "fixed":
            assistant["assistant_confidence_threshold"] = request.drafting.budget.p_min
    translated = {COPIES: "ngram_max", DRAFT_MODEL: "p_min"}.get(method, "")
    request.require_supported_settings("transformers", (translated,))
    load, words = "AutoModelForCausalLM.from_pretrained", ["**inputs"]
    out = ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    out += [f"tokenizer = AutoTokenizer.from_pretrained({target!r})", f"model = {load}({target!r})"]
    if assistant:
        out += [f"assistant = {load}({draft!r})", call("assistant.generation_config.update", **assistant)]
        words += ["assistant_model=assistant"]
    out += ['inputs = tokenizer("...", return_tensors="pt")']
    out += [f"output = {call('model.generate', *words, **generate)}", "print(tokenizer.decode(output[0]))"]
    return {"python": "\n".join(out), "json": json.dumps({"generate": generate, "assistant": assistant})}


def trtllm(request: EngineRequest) -> dict[str, str]:
    """Return the file of `trtllm-serve --extra_llm_api_options FILE`."""
    method, old = method_of("TensorRT-LLM", request, *TYPES), request.older_than("1.3")
    model, draft = export.pair("TensorRT-LLM", request)
    options: dict[str, Any] = {"max_seq_len": request.n_ctx} if request.n_ctx else {}
    config: dict[str, Any] = {}
    kind = "Eagle" if old and method == "eagle3" else TYPES.get(method, "")
    request.require_version("TensorRT-LLM", kind, SINCE)
    if method:
        length = "num_nextn_predict_layers" if old and method == MTP else "max_draft_len"
        if (n_draft := request.n_draft or (N_DRAFT | {"suffix": 8}).get(method)) is None:
            raise UsageError(f"TensorRT-LLM's {kind} needs the length of its blocks: give the longest draft")
        config = {length: n_draft}
        config |= {"max_matching_ngram_size": request.drafting.ngram_max} if method == COPIES else {}
        config |= {"speculative_model_dir" if old else "speculative_model": draft} if request.draft else {}
        # Some versions decode greedily without it, whatever a request wants.
        config |= {} if old else {"allow_advanced_sampling": True}
        options |= {"disable_overlap_scheduler": True} if method in (COPIES, DRAFT_MODEL) else {}
    request.require_supported_settings("TensorRT-LLM", ("ngram_max",) if method == COPIES else ())
    options |= {"speculative_config": {"decoding_type": kind, **config}} if method else {}
    yaml = "\n".join(f"{key}: {json.dumps(value)}" for key, value in options.items())
    usage = f"# trtllm-serve {model} --extra_llm_api_options FILE"
    return {"yaml": f"{usage}\n{yaml}", "json": json.dumps(options)}


def ollama(request: EngineRequest) -> dict[str, str]:
    """Return a Modelfile (docs/modelfile.mdx, parser/parser.go). The file of a DRAFT states its kind."""
    method = method_of("Ollama", request, MTP, "dflash")
    request.require_supported_settings("Ollama", ())
    name, draft = request.model.removeprefix("ollama:"), Path(export.strip_prefix(request.draft or "."))
    if name == request.model and not Path(name := export.strip_prefix(name)).exists():
        name = "hf.co/" + ":".join(["/".join(name.split("/")[:2]), *name.split("/")[2:]])
    if not draft.exists():
        raise UsageError(f"{request.draft}: Ollama takes a draft from a file: give its file")
    n_draft = (request.n_draft or N_DRAFT.get(method)) if method else 0
    out = [f"FROM {Path(name).absolute() if Path(name).exists() else name}"]
    out += [f"DRAFT {draft.absolute()}"] if request.draft else []
    out += [f"PARAMETER num_ctx {request.n_ctx}"] if request.n_ctx else []
    out += [] if n_draft is None else [f"PARAMETER draft_num_predict {n_draft}"]
    return {"modelfile": "\n".join(out)}
