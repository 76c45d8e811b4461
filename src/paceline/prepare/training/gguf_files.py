"""GGUF files of trained drafts: EAGLE-3 heads for llama-server, and small Llamas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.heads import config as head_config
from paceline.heads.config import HeadConfig, layer_entries
from paceline.heads.decoder import LayerShape
from paceline.heads.entries import Entries, prefix_errors
from paceline.heads.sidecar import EAGLE3, LAYER_KEYS, LLAMA_LAYER_NAMES, gguf_name, layer_values, reordered
from paceline.models.headers.gguf_file import GGUFFile, TensorRows
from paceline.models.headers.gguf_writer import (
    TensorToWrite,
    metadata_field,
    quantise_part,
    weight_type,
    write_gguf,
)
from paceline.speculative.errors import ModelError
from paceline.system.atomic import write_output

Weights = Mapping[str, NDArray[np.float32]]


def write_eagle3(
    out: Path, config: HeadConfig, weights: Weights, ids: NDArray[np.int64], target: Path
) -> None:
    """Write an EAGLE-3 head that llama-server loads with `--spec-type draft-eagle3 -md`.
    ids: the draft vocabulary, absolute there. target: its GGUF file, whose tokenizer is copied.
    Raises ModelError."""
    other_variants = config.norm_output, config.fc_norm, any(config.windows), config.n_layers > 1
    assert not any(other_variants), "llama.cpp does not know such an EAGLE-3"
    parts = [_part(name, value, config.shape) for name, value in weights.items()]
    if len(ids) != config.target.vocab:
        import gguf

        kind = int(gguf.GGMLQuantizationType.I64)
        parts.append(TensorToWrite("d2t", ids.shape, kind, 8 * len(ids), lambda: iter([ids.astype("<i8")])))
    fields = {
        "general.name": f"EAGLE-3 for {config.target.name}",
        "general.base_model.count": 1,
        "general.base_model.0.name": config.target.name,
        "eagle3.target_hidden_size": config.target.hidden,
        "eagle3.norm_before_residual": config.norm_before_residual,
        "eagle3.norm_before_fc": config.norm_before_fc,
        **_llama_fields("eagle3", config.shape, config.n_layers, config.target.vocab),
        "eagle3.target_layers": config.layer_ids,
    }
    _write(out, target, fields, parts)


def write_llama(out: Path, shape: LayerShape, layers: int, weights: Weights, name: str, target: Path) -> None:
    """Write a Llama with the tokenizer of the GGUF file `target`. Raises ModelError."""
    fields = _llama_fields("llama", shape, layers, len(weights["embed_tokens.weight"]))
    parts = [_part(name, value, shape) for name, value in weights.items()]
    _write(out, target, {"general.name": name, **fields}, parts)


@dataclass(frozen=True)
class LlamaFile:
    """The weights of a Llama in float32, under the names of the draft model (draft_model.py)."""

    shape: LayerShape
    layers: int
    weights: Weights


def read_llama(path: Path) -> LlamaFile:
    """Read a GGUF file of a Llama, to train it on. Raises ModelError for another model."""
    file = GGUFFile(path)
    if file.text("general.architecture") != "llama" or "output.weight" in file.tensors:
        raise ModelError(f"{path}: only Llamas with one matrix for embedding and output can be trained on")
    shape, names = read_shape(file), llama_names(file)
    weights = {name: reordered(name, tensor(file, gguf_name(name, EAGLE3)), shape, (-1, 2)) for name in names}
    return LlamaFile(shape, file.number("llama.block_count"), weights)


def read_shape(file: GGUFFile) -> LayerShape:
    """Return the dimensions of a model's layers. Raises ModelError."""
    with prefix_errors(file.path):
        return head_config.read_shape(Entries(layer_values(file), "the header"))


def llama_names(file: GGUFFile) -> list[str]:
    """Return the names of a Llama's weights, in a fixed order, as an optimizer's state has theirs.
    Raises ModelError for another model."""
    layers = range(file.number("llama.block_count"))
    names = ["embed_tokens.weight", "norm.weight"]
    names += [f"layers.{i}.{name}.weight" for i in layers for name in LLAMA_LAYER_NAMES]
    if others := {gguf_name(name, EAGLE3) for name in names} ^ (set(file.tensors) - {"output.weight"}):
        raise ModelError(f"{file.path}: has other tensors than a Llama without biases: {sorted(others)[0]}")
    return names


def tensor(file: GGUFFile, name: str) -> NDArray[np.float32]:
    """Return a tensor in float32. Raises ModelError."""
    found = file.tensors[name]
    return TensorRows(file, found).rows(slice(None)).reshape(found.shape[::-1])


def _write(out: Path, target: Path, fields: Mapping[str, Any], parts: list[TensorToWrite]) -> None:
    tokenizer = [raw for key, raw in GGUFFile(target).fields.items() if key.startswith("tokenizer.")]
    metadata = [metadata_field(key, value) for key, value in fields.items()]
    with write_output(out) as part:
        write_gguf(part, [*metadata, *tokenizer], parts, 32)


def _llama_fields(arch: str, shape: LayerShape, layers: int, vocab: int) -> dict[str, Any]:
    layer = layer_entries(shape) | {"num_hidden_layers": layers}
    return {
        "general.architecture": arch,
        f"{arch}.vocab_size": vocab,
        f"{arch}.context_length": 8192,
        f"{arch}.attention.value_length": shape.head_dim,
        f"{arch}.rope.dimension_count": shape.head_dim,
        **{f"{arch}.{theirs}": layer[ours] for ours, theirs in LAYER_KEYS.items() if ours in layer},
    }


def _part(name: str, value: NDArray[np.float32], shape: LayerShape) -> TensorToWrite:
    """Return a tensor under llama.cpp's name."""
    return written(gguf_name(name, EAGLE3), reordered(name, value, shape, (2, -1)))


def written(name: str, value: NDArray[np.float32]) -> TensorToWrite:
    """Return a tensor to write: a norm in F32, a matrix in Q8_0, or F16 for odd rows."""
    kind = "F32" if value.ndim == 1 else "Q8_0" if value.shape[1] % 32 == 0 else "F16"
    rows = partial(iter, [np.ascontiguousarray(value, np.float32)])
    return quantise_part(name, value.shape[::-1], weight_type(kind), rows)
