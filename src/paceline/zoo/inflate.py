"""Make a model of any size that says exactly what a small one says (function-preserving widening).

After Net2Net (Chen et al. 2015, arXiv:1511.05641), for the Llama architecture. The residual stream d -> D is
padded with zeros; each RMSNorm weight is scaled by sqrt(d/D) and its epsilon by d/D, which undoes the longer
mean; new heads and new feed-forward columns meet zero output columns; new blocks have zero output matrices.
Every other new weight is a small seeded random number, so that the matrix products cost what they would in a
real model of that size. Speed can then be measured at 1B parameters while the text stays the small model's.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.errors import ModelError
from paceline.core.printable import amount
from paceline.system.scratch import scratch_file
from paceline.system.whole import check_output, output
from paceline.zoo.layout import ROPE, Layout, choose_layout, layout_of, tensor_shapes
from paceline.zoo.quantize import BITS, check_ftype, quantize

Array = np.ndarray[Any, Any]
Progress = Callable[[str, float], None]
CHUNK_ROWS = 4096


@dataclass(frozen=True)
class Tensor:
    """A tensor of the source, of whatever type. count: its rows; of one dimension, its numbers."""

    stored: Any  # gguf's

    @property
    def count(self) -> int:
        return int(self.stored.shape[-1])

    def rows(self, start: int, stop: int) -> Array:
        """These rows, float32, as gguf reads the type; no more of a matrix is in memory. Raises ModelError
        for what gguf cannot read."""
        import gguf

        name, kind, data = self.stored.name, self.stored.tensor_type, self.stored.data
        single = len(self.stored.shape) == 1  # may be stored as bytes, and has no rows to choose from
        try:
            found: Array = gguf.quants.dequantize(data if single else data[start:stop], kind)
        except NotImplementedError as error:
            raise ModelError(f"{name} is of type {kind.name}, which can't be read here") from error
        except ValueError as error:
            raise ModelError(f"{name} is not what its type {kind.name} asks for ({error})") from error
        return found[start:stop] if single else found


def widened(
    name: str, shape: tuple[int, ...], old: Tensor | None, scale: float, rng: np.random.Generator
) -> Iterator[Array]:
    """The new tensor in pieces of `CHUNK_ROWS` rows, float32; `old` is None in a new block.

    Embedding, attention output and feed-forward down are zero outside the old part: they alone write to the
    residual stream. Everything else only reads from it, or from a column that is multiplied by zero.
    """
    if name == ROPE:  # of a head, and heads stay as they are
        assert old is not None
        yield old.rows(0, shape[0])
        return
    if len(shape) == 1:
        norm = np.ones(shape, np.float32)
        if old is not None:
            norm[: old.count] = old.rows(0, old.count) * scale
        yield norm
        return
    writes = any(part in name for part in ("token_embd", "attn_output", "ffn_down"))
    for start in range(0, shape[0], CHUNK_ROWS):
        rows = min(CHUNK_ROWS, shape[0] - start)
        if writes:
            piece = np.zeros((rows, shape[1]), np.float32)
        else:
            piece = rng.standard_normal((rows, shape[1]), np.float32) * np.float32(shape[1] ** -0.5)
        if old is not None and start < old.count:
            part = old.rows(start, start + rows)
            piece[: part.shape[0], : part.shape[1]] = part
        yield piece


def copy_metadata(reader: Any, writer: Any, layout: Layout, scale: float) -> None:
    """Copy every key of the source but those that the new dimensions set."""
    new: dict[str, Any] = {
        "llama.embedding_length": layout.width, "llama.block_count": layout.blocks,
        "llama.feed_forward_length": layout.feed_forward, "llama.attention.head_count": layout.heads,
        "llama.attention.head_count_kv": layout.kv_heads, "llama.attention.key_length": layout.head_dim,
        "llama.attention.value_length": layout.head_dim,
    }  # fmt: skip
    if "llama.rope.dimension_count" not in reader.fields:
        new["llama.rope.dimension_count"] = layout.head_dim
    size = f"{layout.parameters / 1e6:.0f}M"
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in new or key in ("general.architecture", "general.file_type"):
            continue
        try:
            value = field.contents()
        except ValueError as error:
            raise ModelError(f"{key} can't be read ({error})") from error
        if isinstance(value, list) and not value:  # gguf writes no empty list
            continue
        if key == "llama.attention.layer_norm_rms_epsilon":
            writer.add_float32(key, float(value) * scale**2)
            continue
        if key == "general.name" and isinstance(value, str):
            value = f"{value}, inflated to {size}"
        elif key == "general.size_label" and isinstance(value, str):
            value = size
        writer.add_key_value(key, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for key, value in new.items():
        writer.add_uint32(key, value)


def rounded(piece: Array, kind: Any, name: str) -> Array:
    """As F16 or BF16, in bytes. Raises ModelError for weights beyond F16's range."""
    import gguf

    try:
        with np.errstate(over="raise"):
            found: Array = gguf.quants.quantize(piece, kind)
    except FloatingPointError as error:
        raise ModelError(f"{name} has weights too large for {kind.name}: make it BF16 or F32") from error
    return found


def write_plain(
    reader: Any, source: Layout, layout: Layout, out: Path, ftype: str, seed: int, progress: Progress
) -> None:
    """Write the widened model as F16, BF16 or F32, one tensor at a time."""
    import gguf

    kind = gguf.GGMLQuantizationType[ftype]
    scale = (source.width / layout.width) ** 0.5
    tensors = {tensor.name: Tensor(tensor) for tensor in reader.tensors}
    writer = gguf.GGUFWriter(str(out), "llama")
    with ExitStack() as stack:
        stack.callback(writer.close)
        copy_metadata(reader, writer, layout, scale)
        writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{ftype}" if ftype != "F32" else "ALL_F32"])
        shapes = list(tensor_shapes(layout))
        for name, shape in shapes:
            # norms stay F32 in every type, as llama.cpp has them
            one = gguf.GGMLQuantizationType.F32 if len(shape) == 1 else kind
            size = int(np.prod(shape)) * (4 if one is gguf.GGMLQuantizationType.F32 else 2)
            writer.add_tensor_info(name, shape, np.dtype(np.float32), size, raw_dtype=one)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        stream = writer.fout[0]
        for number, (name, shape) in enumerate(shapes):
            writer.write_padding(stream, stream.tell())
            # a generator a tensor: its numbers depend on the seed and its name alone
            rng = np.random.default_rng([seed, *name.encode()])
            for piece in widened(name, shape, tensors.get(name), scale, rng):
                if len(shape) > 1 and ftype != "F32":
                    piece = rounded(piece, kind, name)
                stream.write(np.ascontiguousarray(piece).data)  # tofile() would not say that a disk is full
            progress("write", (number + 1) / len(shapes))
        writer.write_padding(stream, stream.tell())


def check_space(folder: Path, needed: int) -> None:
    """Raise ModelError unless `folder` has room for `needed` bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed * 1.02:
        raise ModelError(
            f"{folder} has {amount(free)} free, {amount(needed)} are needed: "
            "free some or choose another folder"
        )


def inflate(
    source: Path,
    out: Path,
    parameters: int,
    ftype: str = "F16",
    *,
    seed: int = 0,
    force: bool = False,
    progress: Progress = lambda _phase, _done: None,
) -> tuple[Layout, int]:
    """Write a Llama GGUF of about `parameters` weights (60M to 2B, within 5%) that behaves as `source`.

    `ftype` is one of quantize.FTYPES; the quantised types go through F16 and llama.cpp's quantiser.
    `progress(phase, fraction)` is called with phase "write" or "quantize". Nothing is left at `out` unless
    the whole file was written; its bytes are counted beside the layout. Raises UsageError (sizes, types, an
    existing file), ModelError (a source that can't be widened, no disk space) and PacelineError (a place that
    can't be written to).
    """
    import gguf

    ftype = check_ftype(ftype)
    check_output(out, source, force=force)
    if not source.is_file():
        what = "is no regular file" if source.exists() else "no such file"
        raise ModelError(f"{source}: {what}; give the path of a .gguf model")
    try:
        reader = gguf.GGUFReader(source)
        old = layout_of(reader, source)
    except (ValueError, IndexError, KeyError, TypeError) as error:  # ValueError: also bytes that are no text
        raise ModelError(f"{source} is not a complete GGUF file ({error})") from error
    layout = choose_layout(old, parameters)
    plain_type = ftype if ftype in ("F32", "F16", "BF16") else "F16"
    bits = BITS[plain_type] + (BITS[ftype] if ftype != plain_type else 0)
    check_space(out.parent, int(layout.parameters * bits / 8))
    with output(out, force=force) as part:
        if ftype == plain_type:
            write_plain(reader, old, layout, part, plain_type, seed, progress)
        else:
            with scratch_file(part.parent) as plain:
                write_plain(reader, old, layout, plain, plain_type, seed, progress)
                progress("quantize", 0.0)
                quantize(plain, part, ftype, name=out)
                progress("quantize", 1.0)
        size = part.stat().st_size  # of this file, whatever another process gives the name to
    return layout, size
