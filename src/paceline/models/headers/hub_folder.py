"""The facts of a model's folder as Hugging Face's libraries save it: config.json and what lies beside it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline.models.headers.facts import (
    HYBRID,
    HYBRID_ARCHS,
    RECURRENT,
    RECURRENT_ARCHS,
    ModelFacts,
    cache_kind,
)
from paceline.models.headers.family import family_of, printable_name
from paceline.models.headers.hub_tokenizer import numbers, read_optional_json, read_tokenizer
from paceline.models.headers.plain_file import exists, os_error_reason, read_json, read_text
from paceline.models.headers.safetensors_header import read_weights
from paceline.speculative.errors import ModelError

Json = Mapping[str, Any]
MAX_TEMPLATE = 4 << 20
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
WIDTHS = {"BF16": 2, "F16": 2, "F32": 4}  # bytes of a weight
# Inside models for pictures or sound.
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
# llama.cpp's name, where it is not the same but for dashes and underscores.
_ARCHS = {
    "mistral": "llama",
    "mixtral": "llama",
    "smollm": "llama",
    "phi": "phi2",
    "cohere": "command-r",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "granitemoehybrid": "granitehybrid",
    "gpt_bigcode": "starcoder",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "falcon_mamba": "mamba",
    "minimax": "minimax-01",
    "olmo": "olmo",
}
# Those that llama.cpp does not know.
_RECURRENT = frozenset({"rwkv", "rwkv5", "xlstm"})
_HYBRID = frozenset({"bamba", "zamba", "zamba2", "recurrent_gemma"})
# Layers that keep a state, as layer_types or layers_block_type name them.
_STATES = frozenset({"linear_attention", "mamba", "mamba2", "recurrent", "conv", "short_conv"})


def read_folder(path: str | Path, *, tokens: bool = True) -> ModelFacts:
    """tokens: with the vocabulary, for which there must be a tokenizer.json. Raises ModelError for a folder
    without config.json, and for files that are not what they are called."""
    folder = Path(path)
    whole = _config(folder)
    config = _text_model(whole)
    model_type = _word(config, "model_type") or _word(whole, "model_type")
    if not model_type:
        raise ModelError(f"{folder / 'config.json'}: names no model_type: it is no model of transformers")
    arch = arch_of(model_type)
    memory = _memory(arch, config)
    weights, size = read_weights(folder)
    quantisation = _quantisation(whole, config)
    tokenizer = read_tokenizer(folder, {**whole, **config}, arch) if tokens else None
    name = _word(whole, "_name_or_path")
    return ModelFacts(
        files=(folder, *_files(folder, weights)),
        format="hf",
        name=_name(folder, name),
        arch=arch,
        family=family_of([*_folder_names(folder), name]),
        parameters=size // WIDTHS[quantisation] or None if quantisation in WIDTHS else None,
        quantisation=quantisation,
        size=size,
        n_ctx=_first_number(
            config, "max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length"
        ),
        n_layers=_first_number(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        n_embd=_first_number(config, "hidden_size", "n_embd", "d_model"),
        n_vocab=_first_number(config, "vocab_size") or len(tokenizer.texts if tokenizer else ()),
        experts=_first_number(
            config, "num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"
        ),
        experts_used=_first_number(
            config, "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk"
        ),
        memory=memory,
        sliding_window=0
        if config.get("use_sliding_window") is False
        else _first_number(config, "sliding_window"),
        chat_template=_template(folder),
        tokenizer=tokenizer,
    )


def arch_of(model_type: str) -> str:
    """llama.cpp's name for it; the same word where llama.cpp has none."""
    from gguf.constants import MODEL_ARCH_NAMES

    known = {*MODEL_ARCH_NAMES.values(), *RECURRENT_ARCHS, *HYBRID_ARCHS}
    word = model_type.removesuffix("_text")
    for name in (_ARCHS.get(word, word), word.replace("_", ""), word.replace("_", "-")):
        if name in known:
            return name
    return word


def _config(folder: Path) -> dict[str, Any]:
    try:
        if exists(folder / "config.json"):
            return read_json(folder / "config.json")
        files = sorted(entry.name for entry in itertools.islice(folder.iterdir(), 1000))
    except OSError as error:
        raise ModelError(f"{folder}: {os_error_reason(error)}") from error
    if found := next((name for name in files if name.lower().endswith(".gguf")), None):
        raise ModelError(f"{folder}: is a folder with GGUF files: name one, such as {found!r}")
    raise ModelError(f"{folder}: is a folder without config.json: give a GGUF file, or a model's folder")


def _text_model(config: dict[str, Any]) -> dict[str, Any]:
    for part in _TEXT_PARTS:
        if isinstance(inner := config.get(part), dict):
            return inner
    return config


def _word(config: Json, key: str) -> str:
    value = config.get(key)
    return printable_name(value) if isinstance(value, str) else ""


def _first_number(config: Json, *keys: str) -> int:
    """The first of these keys that has a number; 0 where none has. Of a list the largest."""
    for key in keys:
        if found := numbers(config.get(key)):
            return max(found)
    return 0


def _memory(arch: str, config: Json) -> str:
    states = _recurrent_layers(config)
    if arch in _RECURRENT or (states and all(states)):
        return RECURRENT
    return HYBRID if arch in _HYBRID or any(states) else cache_kind(arch)


def _recurrent_layers(config: Json) -> list[int]:
    """For each layer whether it keeps a state in place of a cache; empty where that is not told."""
    for key in ("layer_types", "layers_block_type"):
        if isinstance(found := config.get(key), list) and len(found) <= 1 << 16:
            return [int(isinstance(kind, str) and kind in _STATES) for kind in found]
    return []


def _quantisation(whole: Json, config: Json) -> str:
    value = whole.get("quantization_config", config.get("quantization_config"))
    if isinstance(value, dict):
        return (_word(value, "quant_method") or "quantised").upper()
    reported = [_word(it, key) for it in (config, whole) for key in ("dtype", "torch_dtype")]
    return next((DTYPES[name] for name in reported if name in DTYPES), "")


def _template(folder: Path) -> str | None:
    """A file of its own, or what tokenizer_config.json holds: one, or several with names."""
    if exists(alone := folder / "chat_template.jinja"):
        return read_text(alone, MAX_TEMPLATE)
    found = read_optional_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        named = {str(it.get("name")): it.get("template") for it in found if isinstance(it, dict)}
        found = named.get("default", next(iter(named.values()), None))
    return found if isinstance(found, str) and found else None


def _folder_names(folder: Path) -> Iterable[str]:
    """The folder's own name; in the hub's cache, models--USER--REPO/snapshots/REVISION, the repository's."""
    if folder.parent.name == "snapshots":
        yield folder.parent.parent.name.rpartition("--")[2]
    yield folder.absolute().name


def _name(folder: Path, text: str) -> str:
    names = [*_folder_names(folder), text]
    return printable_name(next((name for name in names if family_of([name])), names[0]))


def _files(folder: Path, weights: Iterable[Path]) -> Iterable[Path]:
    names = (
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "chat_template.jinja",
    )
    yield from (folder / name for name in names if exists(folder / name))
    yield from weights
