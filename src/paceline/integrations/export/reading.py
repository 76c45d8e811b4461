"""Keywords of `load` from vLLM's --speculative-config and from llama-server's flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from paceline.integrations.export import llama
from paceline.integrations.export.engine_request import draft_kind
from paceline.speculative.errors import UsageError
from paceline.speculative.printable import printable
from paceline.speculative.validation import read_number, unknown
from paceline.system.strict_json import parse_json

FLAG = re.compile(r"--?[A-Za-z]")
_FLAGS = """\
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
FLAGS = {flag: line.split()[0] for line in _FLAGS.splitlines() for flag in line.split()[1:]}
ON_OFF = {"on": True, "off": False, "": True}
# llama.cpp's defaults, where Paceline has others.
DEFAULTS = {"lookup": {"n_draft": 48, "ngram_max": 12}, "ngram": {"n_draft": 8}, "none": dict[str, int]()}
METHODS = {"ngram": "lookup", "draft_model": "model", "dflash": "block", "dspark": "block"}
METHODS |= {name: name for name in ("suffix", "eagle", "eagle3", "medusa", "mtp")}
TYPES = {f"draft-{method}": name for method, name in METHODS.items()}
TYPES |= {llama.SELF: "lookup", llama.CACHE: "ngram", "draft-simple": "model", "none": "none"}
Imported = tuple[dict[str, Any], list[str]]


def imported(engine: str, source: Sequence[str]) -> Imported:
    """Return the keywords of `load` for a configuration or a command, and what has no counterpart.
    source: a text, or words. Raises UsageError."""
    if engine not in (readers := {"vllm": from_vllm, llama.SERVER: from_llama}):
        raise unknown("engine", engine, readers)
    try:
        if len(source) == 1 and source[0].lstrip().startswith("{"):
            source = ["--speculative-config", source[0]]
        words = [*source] if len(source) > 1 else shlex.split(source[0].replace("\\\n", " "))
        flags: dict[str, str] = {}
        for word, value in zip(words, [*words[1:], "-x"], strict=False):
            name, equals, same = word.partition("=")
            if FLAG.match(word):
                flags[name] = same if equals else "" if FLAG.match(value) else value
            elif word == "serve":
                flags["--model"] = value
        if not flags:
            raise ValueError("no JSON object, and no command with flags")
        return readers[engine](flags)
    except ValueError as error:
        raise UsageError(f"this cannot be read: {printable(str(error))[:80]}") from error


def from_vllm(flags: dict[str, str]) -> Imported:
    names = [name for name in ("-sc", "--speculative-config", "--speculative_config") if name in flags]
    rest = parse_json(flags.pop(names[0])) if names else {}
    model, rule = str(rest.pop("model", "")), rest.pop("rejection_sample_method", "standard")
    method = str(rest.pop("method", "")) or (
        "ngram" if model in ("", "[ngram]", "ngram") else draft_kind(model)
    )
    if method not in METHODS:
        raise unknown("method of vLLM", method, METHODS)
    settings: dict[str, Any] = {"drafters": [METHODS[method] if names else "none"]}
    settings |= {"policy": "fixed"} if names else {}
    settings |= {"draft": model} if method not in ("ngram", "suffix") and model else {}
    if names and method == "ngram":
        low, high = (rest.pop(f"prompt_lookup_{end}", None) for end in ("min", "max"))
        settings |= {"ngram_min": low or high or 5, "ngram_max": high or low or 5}
    settings |= {"n_draft": rest.pop("num_speculative_tokens")} if "num_speculative_tokens" in rest else {}
    settings |= {"cross_vocab": "tli"} if rest.pop("use_heterogeneous_vocab", False) else {}
    settings |= {"verify": "block"} if rule == "block" else {}
    settings |= {"target": flags.pop("--model")} if "--model" in flags else {}
    settings |= (
        {"n_ctx": read_number(int, flags.pop("--max-model-len"))} if "--max-model-len" in flags else {}
    )
    rest |= flags | ({} if rule in ("block", "standard") else {"rejection_sample_method": rule})
    return settings, [f"{name} {value}".strip() for name, value in rest.items()]


def from_llama(flags: dict[str, str]) -> Imported:
    settings, left = dict[str, Any](), list[str]()
    for flag, text in flags.items():
        name = FLAGS.get(flag, "")
        if name in ("target", "draft", "cache_type", "type", "corpora"):
            settings[name] = [text] if name == "corpora" else text
        elif name == "flash_attention" and text in ON_OFF:
            settings[name] = ON_OFF[text]
        elif name and text not in ("auto", "all"):
            settings[name] = read_number(float if name == "p_min" else int, text)
        else:
            left.append(f"{flag} {text}".strip())
    kinds = settings.pop("type", "draft-simple" if "draft" in settings else "none").split(",")
    drafters = [TYPES[kind] for kind in kinds if kind in TYPES] or ["none"]
    settings = {"drafters": drafters, **DEFAULTS.get(drafters[0], {"n_draft": 3}), **settings}
    settings |= {"ngram_min": settings["ngram_max"]} if "ngram_max" in settings else {}
    settings |= {} if drafters == ["none"] else {"policy": "p_min" if settings.get("p_min") else "fixed"}
    return settings, [*left, *(f"--spec-type {kind}" for kind in kinds if kind not in TYPES)]
