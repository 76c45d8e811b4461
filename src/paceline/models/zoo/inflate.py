"""Function-preserving widening: a larger Llama model with exactly the output of a small one.

After Net2Net (Chen et al. 2015, arXiv:1511.05641). The residual stream d -> D is padded with zeros. Each
RMSNorm weight is scaled by sqrt(d/D) and its epsilon by d/D, which compensates for the longer mean. New heads
and feed-forward columns meet zero output columns; new blocks have zero output matrices. All other new weights
are small seeded random numbers, so that matrix products cost as much as in a real model of that size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from paceline.models.headers.gguf_file import (
    GGUFFile,
    TensorRows,
    TensorToWrite,
    metadata_field,
    quantise_part,
    weight_type,
    write_gguf,
)
from paceline.models.zoo.layout import Layout, choose_layout, read_layout, tensor_shapes
from paceline.system.whole import check_output, write_output

Array = np.ndarray[Any, Any]
Progress = Callable[[float], None]
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
CHUNK_ROWS = 4096


def widen_tensor(
    name: str, shape: tuple[int, ...], old: TensorRows | None, scale: float, rng: np.random.Generator
) -> Iterator[Array]:
    """Yield the widened tensor in float32 pieces of `CHUNK_ROWS` rows; `old` is None in a new block.

    Embedding, attention output and feed-forward down are zero outside the old part, because only these write
    to the residual stream.
    """
    if len(shape) == 1:
        norm = np.ones(shape, np.float32)
        if old is not None:
            norm[: old.size] = old.rows(slice(None)).reshape(-1) * scale
        yield norm
        return
    writes = any(part in name for part in ("token_embd", "attn_output", "ffn_down"))
    for start in range(0, shape[0], CHUNK_ROWS):
        rows = min(CHUNK_ROWS, shape[0] - start)
        if writes:
            piece = np.zeros((rows, shape[1]), np.float32)
        else:
            piece = rng.standard_normal((rows, shape[1]), np.float32) * np.float32(shape[1] ** -0.5)
        if old is not None and start < old.size:
            part = old.rows(slice(start, start + rows))
            piece[: part.shape[0], : part.shape[1]] = part
        yield piece


def widened_metadata(file: GGUFFile, layout: Layout, scale: float, file_type: int) -> list[bytes]:
    """Return the source's metadata fields with the new dimensions."""
    size = f"{layout.parameters / 1e6:.0f}M"
    values: dict[str, str | int | float] = {
        "general.file_type": file_type,
        "llama.embedding_length": layout.width, "llama.block_count": layout.blocks,
        "llama.feed_forward_length": layout.feed_forward, "llama.attention.head_count": layout.heads,
        "llama.attention.head_count_kv": layout.kv_heads, "llama.attention.key_length": layout.head_dim,
        "llama.attention.value_length": layout.head_dim,
        "llama.attention.layer_norm_rms_epsilon": layout.eps * scale**2,
    }  # fmt: skip
    if "llama.rope.dimension_count" not in file.fields:
        values["llama.rope.dimension_count"] = layout.head_dim
    if name := file.text("general.name"):
        values["general.name"] = f"{name}, inflated to {size}"
    if file.text("general.size_label"):
        values["general.size_label"] = size
    return list((file.fields | {key: metadata_field(key, value) for key, value in values.items()}).values())


def write_widened(
    source: GGUFFile,
    old: Layout,
    layout: Layout,
    out: Path,
    ftype: str,
    seed: int = 0,
    progress: Progress = lambda _share: None,
) -> None:
    """Write the widened model, one piece of one tensor at a time. ftype: one of gguf_file.WEIGHT_TYPES."""
    import gguf

    scale = (old.width / layout.width) ** 0.5
    tables = {name: TensorRows(source, tensor) for name, tensor in source.tensors.items()}
    output = OUTPUT if OUTPUT in dict(tensor_shapes(layout)) else EMBEDDING

    def rows(name: str, shape: tuple[int, ...]) -> Iterator[Array]:
        # One generator per tensor: the weights depend only on the seed and the tensor's name.
        rng = np.random.default_rng([seed, *name.encode()])
        return widen_tensor(name, shape, tables.get(name), scale, rng)

    def part(name: str, shape: tuple[int, ...]) -> TensorToWrite:
        # As in llama.cpp, norms stay F32, and the output matrix of a Q4_0 model has more bits.
        kind = "F32" if len(shape) == 1 else "Q8_0" if (ftype, name) == ("Q4_0", output) else ftype
        return quantise_part(name, shape[::-1], weight_type(kind), partial(rows, name, shape))

    parts = [part(name, shape) for name, shape in tensor_shapes(layout)]
    file_type = gguf.LlamaFileType[f"MOSTLY_{ftype}" if ftype != "F32" else "ALL_F32"]
    metadata, written = widened_metadata(source, layout, scale, int(file_type)), count(1)
    write_gguf(out, metadata, parts, source.alignment, lambda: progress(next(written) / len(parts)))


def inflate(
    source: Path,
    out: Path,
    parameters: int,
    ftype: str = "F16",
    *,
    seed: int = 0,
    force: bool = False,
    progress: Progress = lambda _share: None,
) -> tuple[Layout, int]:
    """Write a Llama GGUF of about `parameters` weights (60M to 2B, within 5%) with the outputs of `source`.

    Return the layout and the file's bytes. `out` appears only when it is complete.
    ftype: one of gguf_file.WEIGHT_TYPES. progress: called with the completed share.
    Raises UsageError (size, type, existing file), ModelError (unsuitable source, full disk), PacelineError.
    """
    kind = weight_type(ftype).name
    check_output(out, source, force=force)
    file = GGUFFile(source)
    old = read_layout(file)
    layout = choose_layout(old, parameters)
    with write_output(out, force=force) as part:
        write_widened(file, old, layout, part, kind, seed, progress)
        return layout, part.stat().st_size
