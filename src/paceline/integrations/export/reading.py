"""Keywords of `load` from vLLM's --speculative-config and from llama-server's flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from paceline.integrations.export import llama, vllm
from paceline.integrations.export.engine_request import draft_kind
from paceline.speculative.errors import UsageError
from paceline.speculative.printable import printable
from paceline.speculative.validation import read_number, unknown
from paceline.system.strict_json import parse_json

FLAG = re.compile(r"--?[A-Za-z]")
_LLAMA_FLAGS = """\
target -m --model -hf -hfr --hf-repo
draft -md --model-draft --spec-draft-model -hfd -hfrd --hf-repo-draft --spec-draft-hf
n_draft --spec-draft-n-max --draft --draft-n --draft-max --spec-ngram-simple-size-m --spec-ngram-size-m
p_min --spec-draft-p-min --draft-p-min
ngram_max --spec-ngram-simple-size-n --spec-ngram-size-n
n_ctx -c --ctx-size
threads -t --threads
gpu_layers -ngl --gpu-layers --n-gpu-layers
cache_type -ctk --cache-type-k
flash_attention -fa --flash-attn
corpora -lcs --lookup-cache-static
type --spec-type"""
LLAMA_FLAGS = {flag: line.split()[0] for line in _LLAMA_FLAGS.splitlines() for flag in line.split()[1:]}
ON_OFF = {"on": True, "off": False, "": True}
# llama.cpp's defaults, where Paceline has others.
DEFAULTS = {"lookup": {"n_draft": 48, "ngram_max": 12}, "ngram": {"n_draft": 8}, "none": dict[str, int]()}
BLOCKS = ("dflash", "dspark")
TYPES = {kind: name for name, kind in llama.TYPES.items()} | {f"draft-{name}": "block" for name in BLOCKS}
TYPES |= {llama.SELF: "lookup", llama.CACHE: "ngram", "draft-simple": "model", "none": "none"}
METHODS = {"ngram": "lookup", "ngram_gpu": "lookup", "draft_model": "model", **dict.fromkeys(BLOCKS, "block")}
METHODS |= {name: name for name in ("suffix", "eagle", "eagle3", "medusa", "mtp")}
# Keys of vLLM without a counterpart.
_OTHERS = """\
draft_tensor_parallel_size tensor_parallel_size quantization max_model_len revision code_revision enforce_eager
disable_by_batch_size disable_padded_drafter_batch parallel_drafting draft_sample_method rejection_sample_method
num_speculative_tokens_per_batch_size enable_adaptive_verification acceptance_method posterior_threshold
suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor
suffix_decoding_min_token_prob posterior_alpha"""
OTHERS = frozenset(_OTHERS.split())
Found = tuple[dict[str, Any], list[str]]


def imported(engine: str, source: Sequence[str]) -> Found:
    """Return the keywords of `load` for a configuration or a command, and what has no counterpart.
    source: a text, or words. Raises UsageError."""
    if engine not in (readers := {"vllm": from_vllm, llama.SERVER: from_llama}):
        raise unknown("engine", engine, readers)
    try:
        if engine == "vllm" and source[0].lstrip().startswith("{"):
            return speculation(parse_json(source[0]), {})
        words = [*source] if len(source) > 1 else shlex.split(source[0].replace("\\\n", " "))
        flags: dict[str, str] = {}
        for word, value in zip(words, [*words[1:], "-x"], strict=True):
            if FLAG.match(word):
                name, equals, same = word.partition("=")
                flags[name] = same if equals else "" if FLAG.match(value) else value
            elif word == "serve":
                flags["--model"] = value
        return readers[engine](flags)
    except ValueError as error:
        raise UsageError(f"this cannot be read: {printable(str(error))[:80]}") from error


def from_vllm(flags: dict[str, str]) -> Found:
    texts = [
        flags.pop(name) for name in ("-sc", "--speculative-config", "--speculative_config") if name in flags
    ]
    section = parse_json(flags.pop("--additional-config", "{}")).get("paceline", {})
    settings, left = speculation(parse_json(texts[0]), section) if texts else ({"drafters": ["none"]}, [])
    settings |= {"target": flags.pop("--model")} if "--model" in flags else {}
    settings |= (
        {"n_ctx": read_number(int, flags.pop("--max-model-len"))} if "--max-model-len" in flags else {}
    )
    return settings, [*left, *(f"{name} {value}".strip() for name, value in flags.items())]


def speculation(config: dict[str, Any], section: dict[str, Any]) -> Found:
    """Return the keywords for a speculative configuration. section: of our class. Raises UsageError."""
    rest, settings = dict(config), dict[str, Any]()
    model, rule = str(rest.pop("model", "")), rest.pop("rejection_sample_method", "standard")
    method = rest.pop("method", "") or ("ngram" if model in ("", "[ngram]", "ngram") else draft_kind(model))
    if {"method": method, "model": model} == vllm.PORTFOLIO:
        settings = {"drafters": ["suffix"], **section}
    elif method not in METHODS:
        raise unknown("method of vLLM", str(method), METHODS)
    else:
        settings = {"drafters": [METHODS[method]], "policy": "fixed"}
        settings |= {"draft": model} if model and METHODS[method] not in ("lookup", "suffix") else {}
    if "ngram" in method:
        low, high = (rest.pop(f"prompt_lookup_{end}", None) for end in ("min", "max"))
        settings |= {"ngram_min": low or high or 5, "ngram_max": high or low or 5}
    settings |= {"n_draft": rest.pop("num_speculative_tokens")} if "num_speculative_tokens" in rest else {}
    settings |= {"cross_vocab": "tli"} if rest.pop("use_heterogeneous_vocab", False) else {}
    settings |= {"verify": "block"} if rule == "block" else {}
    rest |= {} if rule in ("block", "standard") else {"rejection_sample_method": rule}
    for name in rest.keys() - OTHERS:
        raise unknown("key of --speculative-config", name, OTHERS)
    return settings, [f"{name} {value}" for name, value in rest.items()]


def from_llama(flags: dict[str, str]) -> Found:
    settings: dict[str, Any] = {}
    left = []
    for flag, text in flags.items():
        name = LLAMA_FLAGS.get(flag, "")
        if name in ("target", "draft", "cache_type", "type"):
            settings[name] = text
        elif name == "corpora":
            settings[name] = [text]
        elif name == "flash_attention" and text in ON_OFF:
            settings[name] = ON_OFF[text]
        elif name and text not in ("auto", "all"):
            settings[name] = read_number(float if name == "p_min" else int, text)
        else:
            left.append(f"{flag} {text}".strip())
    kinds = settings.pop("type", "draft-simple" if "draft" in settings else "none").split(",")
    left += [f"--spec-type {kind}" for kind in kinds if kind not in TYPES]
    drafters = [TYPES[kind] for kind in kinds if kind in TYPES] or ["none"]
    settings = {"drafters": drafters, **DEFAULTS.get(drafters[0], {"n_draft": 3}), **settings}
    settings |= {"ngram_min": settings["ngram_max"]} if "ngram_max" in settings else {}
    if drafters != ["none"]:
        settings["policy"] = "p_min" if settings.get("p_min") else "fixed"
    return settings, left
