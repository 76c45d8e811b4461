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
        choices = ", ".join(known).replace(COPIES, "lookup")
        raise UsageError(f"{engine} has no counterpart of {method}: it has {choices}")
    return method


def arguments(values: dict[str, Any]) -> list[str]:
    return [f"{name}={value!r}" for name, value in values.items()]


def transformers(request: EngineRequest) -> dict[str, str]:
    """Return a program, and its arguments (generation/configuration_utils.py)."""
    method, given = method_of("transformers", request, COPIES, DRAFT_MODEL, MTP), request.drafting_settings
    n_draft, generate, assistant = request.n_draft or N_DRAFT.get(method), dict[str, Any](), dict[str, Any]()
    if method == COPIES:
        generate = {
            "prompt_lookup_num_tokens": n_draft,
            "max_matching_ngram_size": request.drafting.ngram_max,
        }
    elif method == MTP:
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
    load = "AutoModelForCausalLM.from_pretrained"
    target, words = export.safetensors("transformers", request.model), ["**inputs", *arguments(generate)]
    out = ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    out += [f"tokenizer = AutoTokenizer.from_pretrained({target!r})", f"model = {load}({target!r})"]
    if assistant:
        out += [f"assistant = {load}({export.safetensors('transformers', request.draft)!r})"]
        out += [f"assistant.generation_config.update({', '.join(arguments(assistant))})"]
        words.append("assistant_model=assistant")
    out += ['inputs = tokenizer("...", return_tensors="pt")', f"output = model.generate({', '.join(words)})"]
    out += ["print(tokenizer.decode(output[0]))"]
    return {"python": "\n".join(out), "json": json.dumps({"generate": generate, "assistant": assistant})}


def trtllm(request: EngineRequest) -> dict[str, str]:
    """Return the file of `trtllm-serve --extra_llm_api_options FILE`, and a program."""
    method, old = method_of("TensorRT-LLM", request, *TYPES), request.older_than("1.3")
    options: dict[str, Any] = {"max_seq_len": request.n_ctx} if request.n_ctx else {}
    if method:
        kind = TYPES[method]
        request.require_version("TensorRT-LLM", kind, SINCE)
        config: dict[str, Any] = {"decoding_type": "Eagle" if old and kind == "Eagle3" else kind}
        length = "num_nextn_predict_layers" if old and method == MTP else "max_draft_len"
        config[length] = request.n_draft or N_DRAFT.get(method, N_DRAFT[COPIES])
        config |= {"max_matching_ngram_size": request.drafting.ngram_max} if method == COPIES else {}
        if request.draft:
            name = "speculative_model_dir" if old else "speculative_model"
            config[name] = export.safetensors("TensorRT-LLM", request.draft)
        # Some versions decode greedily without it, whatever a request wants.
        config |= {} if old else {"allow_advanced_sampling": True}
        options |= {"disable_overlap_scheduler": True} if method in (COPIES, DRAFT_MODEL) else {}
        options["speculative_config"] = config
    request.require_supported_settings("TensorRT-LLM", ("ngram_max",) if method == COPIES else ())
    words = [repr(export.safetensors("TensorRT-LLM", request.model)), *arguments(options)]
    return {
        "yaml": "\n".join(f"{name}: {json.dumps(value)}" for name, value in options.items()),
        "json": json.dumps(options),
        "python": f"from tensorrt_llm import LLM\n\nllm = LLM({', '.join(words)})",
    }


def ollama(request: EngineRequest) -> dict[str, str]:
    """Return a Modelfile (docs/modelfile.mdx, parser/parser.go). The file of a DRAFT states its kind."""
    method = method_of("Ollama", request, MTP, "dflash")
    request.require_supported_settings("Ollama", ())
    n_draft = (request.n_draft or N_DRAFT.get(method)) if method else 0
    out = [f"FROM {ollama_name(request.model)}"]
    out += [f"DRAFT {ollama_name(request.draft)}"] if request.draft else []
    out += [f"PARAMETER num_ctx {request.n_ctx}"] if request.n_ctx else []
    return {
        "modelfile": "\n".join(
            [*out, *([] if n_draft is None else [f"PARAMETER draft_num_predict {n_draft}"])]
        )
    }


def ollama_name(name: str) -> str:
    if name.startswith("ollama:"):
        return name.removeprefix("ollama:")
    known = export.strip_prefix(name)
    return str(Path(known).absolute()) if Path(known).exists() else f"hf.co/{known}"
