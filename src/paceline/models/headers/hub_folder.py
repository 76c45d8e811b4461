"""Read the facts of a transformers folder: config.json and the files beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paceline.fits import ABSENT, NO_GRAPH, SEPARATE, STRIPPED, USABLE
from paceline.models.headers.facts import ATTENTION, HYBRID, RECURRENT, ModelFacts, cache_kind, step_cost
from paceline.models.headers.family import family_of, printable_name
from paceline.models.headers.hub_tokenizer import numbers, read_optional_json, read_tokenizer
from paceline.models.headers.plain_file import (
    exists,
    no_model_folder,
    os_error_reason,
    read_json,
    read_tensors,
    read_text,
)
from paceline.speculative.errors import ModelError

Json = Mapping[str, Any]
MAX_TEMPLATE = 4 << 20
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
WIDTHS = {"BF16": 2, "F16": 2, "F32": 4}  # bytes of a weight
_JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
_FILES = (*_JSON_FILES, "chat_template.jinja")
# The language model's part of a multimodal config.
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
# llama.cpp's names that differ by more than dashes and underscores.
_ARCHS = dict.fromkeys(("mistral", "mixtral", "smollm"), "llama")
_ARCHS |= {"phi": "phi2", "cohere": "command-r", "gpt_bigcode": "starcoder", "minimax": "minimax-01"}
_ARCHS |= {"deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "falcon_mamba": "mamba"}
_ARCHS |= {"qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe", "granitemoehybrid": "granitehybrid"}
# Architectures unknown to llama.cpp.
_RECURRENT = frozenset({"rwkv", "rwkv5", "xlstm"})
_HYBRID = frozenset({"bamba", "zamba", "zamba2", "recurrent_gemma"})
# Models of which transformers has the layers for multi-token prediction (MtpModel), with the numbers that it
# knows them by, if any; their weights, and copies of the model's own.
_MTP_LAYERS: dict[str, tuple[int, ...]] = {
    "deepseek_v3": (61,), "sarvam_mla": (61,), "glm4_moe": (46, 92), "sarvam_moe": (46, 92),
    "inkling_text": (), "mellum": (),
}  # fmt: skip
_MTP_WEIGHT = re.compile(r"(?:^|\.)mtp\.|^model\.layers\.(\d{1,9})\.")
_COPIES = re.compile(r"\.layers\..*\.(embed_tokens|shared_head\.head)\.weight$")
_MAX_INDEX_BYTES = 64 << 20
_MAX_WEIGHT_FILES = 4096
_PATH = re.compile(r"[/\\:\0]")
# Recurrent layers in layer_types and layers_block_type.
_STATES = frozenset({"linear_attention", "mamba", "mamba2", "recurrent", "conv", "short_conv"})


def read_folder(folder: Path, *, tokens: bool = True) -> ModelFacts:
    """Read a folder. tokens: read the vocabulary from tokenizer.json, which must exist then.
    Raises ModelError for a folder without config.json, and for damaged files."""
    whole = _config(folder)
    config = next((part for key in _TEXT_PARTS if isinstance(part := whole.get(key), dict)), whole)
    model_type = _word(config, "model_type") or _word(whole, "model_type")
    if not model_type:
        raise ModelError(f"{folder / 'config.json'}: names no model_type: it is no model of transformers")
    arch = arch_of(model_type)
    memory = _cache_kind(arch, config)
    weights, size = read_weights(folder)
    quantisation = _quantisation(whole, config)
    tokenizer = read_tokenizer(folder, {**whole, **config}, arch) if tokens else None
    sliding, number = config.get("use_sliding_window") is not False, partial(_first_number, config)
    experts = number("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
    used = number("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk")
    layers = number("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    keys = "num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers"
    heads = number(*keys) or _first_number(whole, *keys)
    mtp, mtp_cost = _mtp(model_type, weights, heads, layers, used / experts if experts else 1.0)
    names = [folder.absolute().name, _word(whole, "_name_or_path")]
    if folder.parent.name == "snapshots":  # of the hub's cache, where a revision's hash is the folder's name
        names.insert(0, folder.parent.parent.name.rpartition("--")[2])
    return ModelFacts(
        files=(folder, *(folder / name for name in _FILES if exists(folder / name)), *weights),
        format="hf",
        name=printable_name(next((name for name in names if family_of([name])), names[0])),
        arch=arch,
        family=family_of(names),
        parameters=size // WIDTHS[quantisation] or None if quantisation in WIDTHS else None,
        quantisation=quantisation,
        size=size,
        n_ctx=number("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length"),
        n_layers=layers,
        n_vocab=number("vocab_size") or len(tokenizer.texts if tokenizer else ()),
        experts=experts,
        experts_used=used,
        memory=memory,
        mtp=mtp,
        mtp_cost=mtp_cost,
        sliding_window=number("sliding_window") if sliding else 0,
        chat_template=_template(folder),
        tokenizer=tokenizer,
    )


def read_weights(folder: Path) -> tuple[list[Path], int]:
    """Return the weight files of a folder, if any, and their bytes. Raises ModelError for a missing one."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        files = _listed(index) if exists(index) else [folder / name] if exists(folder / name) else []
        try:
            if files:
                return files, sum(file.stat().st_size for file in files)
        except OSError as error:
            raise ModelError(f"{folder}: {error.filename} {os_error_reason(error)}: fetch it too") from error
    return [], 0


def _listed(index: Path) -> list[Path]:
    table = read_json(index, _MAX_INDEX_BYTES).get("weight_map")
    names = {str(name) for name in table.values()} if isinstance(table, dict) else {""}
    # A lone surrogate is not printable.
    valid = [name for name in names if name.strip(".") and name.isprintable() and not _PATH.search(name)]
    if len(names) > _MAX_WEIGHT_FILES or len(valid) < len(names):
        raise ModelError(f"{index}: its weight_map does not name files of its folder")
    return [index.with_name(name) for name in sorted(names)]


def arch_of(model_type: str) -> str:
    """Return llama.cpp's name of an architecture; the same name if llama.cpp has none."""
    from gguf.constants import MODEL_ARCH_NAMES

    word = model_type.removesuffix("_text")
    for name in (_ARCHS.get(word, word), word.replace("_", ""), word.replace("_", "-")):
        if name in MODEL_ARCH_NAMES.values() or cache_kind(name) != ATTENTION:
            return name
    return word


def _config(folder: Path) -> dict[str, Any]:
    try:
        if exists(folder / "config.json"):
            return read_json(folder / "config.json")
        problem = no_model_folder(folder)
    except OSError as error:
        problem = os_error_reason(error)
    raise ModelError(f"{folder}: {problem}")


def _word(config: Json, key: str) -> str:
    value = config.get(key)
    return printable_name(value) if isinstance(value, str) else ""


def _first_number(config: Json, *keys: str) -> int:
    """Return the number of the first key that has one, of a list the largest; 0 without."""
    for key in keys:
        if found := numbers(config.get(key)):
            return max(found)
    return 0


def _mtp(model_type: str, weights: Sequence[Path], heads: int, layers: int, used: float) -> tuple[str, float]:
    """Return ModelFacts.mtp and mtp_cost. used: the share of experts that a token uses."""
    if model_type.startswith("gemma4"):
        return SEPARATE, 0.0
    if not heads or model_type not in _MTP_LAYERS:
        return NO_GRAPH if heads else ABSENT, 0.0
    found = {name: one for file in weights for name, one in read_tensors(file).items()}
    read = {
        name: size * (used if ".experts." in name else 1.0)
        for name, (_, size) in found.items()
        if not _COPIES.search(name)
    }
    places = {name: int(of[1] or layers) for name in read if (of := _MTP_WEIGHT.search(name))}
    own = [name for name, layer in places.items() if layer >= layers]
    if not own:
        return STRIPPED if found else NO_GRAPH, 0.0  # MtpModel reads safetensors only
    is_known = not _MTP_LAYERS[model_type] or {places[name] for name in own} <= {*_MTP_LAYERS[model_type]}
    is_plain = {found[name][0] for name in own} <= WIDTHS.keys()  # MtpModel ignores the scales of others
    cost = step_cost(read, own, heads, "model.embed_tokens.weight", "lm_head.weight")
    return USABLE if is_known and is_plain else NO_GRAPH, cost


def _cache_kind(arch: str, config: Json) -> str:
    lists = (config.get(key) for key in ("layer_types", "layers_block_type"))
    layers = next((one for one in lists if isinstance(one, list) and len(one) <= 1 << 16), [])
    recurrent = [isinstance(layer, str) and layer in _STATES for layer in layers]
    if arch in _RECURRENT or (recurrent and all(recurrent)):
        return RECURRENT
    return HYBRID if arch in _HYBRID or any(recurrent) else cache_kind(arch)


def _quantisation(whole: Json, config: Json) -> str:
    settings = whole.get("quantization_config", config.get("quantization_config"))
    if isinstance(settings, dict):
        return (_word(settings, "quant_method") or "quantised").upper()
    dtypes = [_word(one, key) for one in (config, whole) for key in ("dtype", "torch_dtype")]
    return next((DTYPES[name] for name in dtypes if name in DTYPES), "")


def _template(folder: Path) -> str | None:
    """Return the template in chat_template.jinja, or the default one in tokenizer_config.json."""
    if exists(file := folder / "chat_template.jinja"):
        return read_text(file, MAX_TEMPLATE)
    template = read_optional_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        by_name = {str(one.get("name")): one.get("template") for one in template if isinstance(one, dict)}
        template = by_name.get("default", next(iter(by_name.values()), None))
    return template if isinstance(template, str) and template else None
