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

from paceline.core.errors import ModelError, UsageError
from paceline.system.scratch import scratch_file
from paceline.system.whole import check_output, output
from paceline.zoo.quantize import BITS, check_ftype, quantize

Array = np.ndarray[Any, Any]
Progress = Callable[[str, float], None]
ASPECT = 85  # width per block that models of 0.1B to 3B have, roughly
CHUNK_ROWS = 4096


@dataclass(frozen=True)
class Layout:
    """The dimensions of a Llama GGUF file; whatever else it says is carried along unchanged."""

    width: int
    blocks: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocab: int
    eps: float

    @property
    def parameters(self) -> int:
        """Weights in all tensors, with one shared embedding."""
        attention = 2 * self.width * self.head_dim * (self.heads + self.kv_heads)
        block = attention + 3 * self.width * self.feed_forward + 2 * self.width
        return self.vocab * self.width + self.blocks * block + self.width


def layout_of(reader: Any, path: Path) -> Layout:
    """Read a file's dimensions; raises ModelError for what can't be widened."""

    def value(key: str) -> Any:
        field = reader.get_field(key)
        if field is None:
            raise ModelError(f"{path} has no {key}: not a complete Llama model")
        return field.contents()

    if value("general.architecture") != "llama":
        raise ModelError(f"{path} is a {value('general.architecture')} model: only llama can be inflated")
    if any(tensor.name == "output.weight" for tensor in reader.tensors):
        raise ModelError(f"{path} has an output matrix of its own: only tied embeddings can be inflated")

    def number(key: str) -> int:
        return int(value(f"llama.{key}"))

    heads = number("attention.head_count")
    key_length = reader.get_field("llama.attention.key_length")
    return Layout(
        width=number("embedding_length"),
        blocks=number("block_count"),
        heads=heads,
        kv_heads=number("attention.head_count_kv"),
        head_dim=int(key_length.contents()) if key_length else number("embedding_length") // heads,
        feed_forward=number("feed_forward_length"),
        vocab=next(int(tensor.shape[1]) for tensor in reader.tensors if tensor.name == "token_embd.weight"),
        eps=float(value("llama.attention.layer_norm_rms_epsilon")),
    )


def choose_layout(source: Layout, parameters: int) -> Layout:
    """The layout nearest to `parameters` weights, of ordinary proportions, that contains `source`.

    Raises UsageError when none comes within 5%.
    """
    group = source.heads // source.kv_heads
    best: tuple[float, Layout] | None = None
    for multiple in range(source.width // (source.head_dim * group), 64):
        width = multiple * source.head_dim * group
        for blocks in range(source.blocks, 80):
            shape = (width, blocks, multiple * group, multiple, source.head_dim)
            empty = Layout(*shape, 0, source.vocab, source.eps).parameters
            wanted = (parameters - empty) / (3 * width * blocks)
            feed_forward = max(source.feed_forward, round(wanted / 64) * 64)
            layout = Layout(*shape, feed_forward, source.vocab, source.eps)
            ratio = np.log(feed_forward / width / 2.75)
            miss = abs(layout.parameters / parameters - 1)
            cost = abs(np.log(width / blocks / ASPECT)) + 2 * abs(ratio) + 4 * miss
            if miss < 0.05 and (best is None or cost < best[0]):
                best = (cost, layout)
    if best is None:
        raise UsageError(
            f"cannot make a model of {parameters:,} parameters from one of {source.parameters:,}: "
            "ask for a size between twice the source's and about 3,000,000,000"
        )
    return best[1]


def tensor_shapes(layout: Layout) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensor name -> (rows, columns) or (width,), in file order."""
    d, f = layout.width, layout.feed_forward
    q, kv = layout.heads * layout.head_dim, layout.kv_heads * layout.head_dim
    yield "token_embd.weight", (layout.vocab, d)
    block: dict[str, tuple[int, ...]] = {
        "attn_norm": (d,), "attn_q": (q, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, q),
        "ffn_norm": (d,), "ffn_gate": (f, d), "ffn_up": (f, d), "ffn_down": (d, f),
    }  # fmt: skip
    for i in range(layout.blocks):
        yield from ((f"blk.{i}.{name}.weight", shape) for name, shape in block.items())
    yield "output_norm.weight", (d,)


def widened(
    name: str, shape: tuple[int, ...], old: Array | None, scale: float, rng: np.random.Generator
) -> Iterator[Array]:
    """The new tensor in pieces of `CHUNK_ROWS` rows, float32; `old` is None in a new block.

    Embedding, attention output and feed-forward down are zero outside the old part: they alone write to the
    residual stream. Everything else only reads from it, or from a column that is multiplied by zero.
    """
    if len(shape) == 1:
        norm = np.ones(shape, np.float32)
        if old is not None:
            norm[: old.shape[0]] = old * scale
        yield norm
        return
    writes = any(part in name for part in ("token_embd", "attn_output", "ffn_down"))
    for start in range(0, shape[0], CHUNK_ROWS):
        rows = min(CHUNK_ROWS, shape[0] - start)
        if writes:
            piece = np.zeros((rows, shape[1]), np.float32)
        else:
            piece = rng.standard_normal((rows, shape[1]), np.float32) * np.float32(shape[1] ** -0.5)
        if old is not None and start < old.shape[0]:
            part = old[start : start + rows]
            piece[: part.shape[0], : part.shape[1]] = part
        yield piece


def copy_metadata(reader: Any, writer: Any, layout: Layout, scale: float) -> None:
    """Copy every key of the source but those that the new dimensions set."""
    new: dict[str, Any] = {
        "llama.embedding_length": layout.width, "llama.block_count": layout.blocks,
        "llama.feed_forward_length": layout.feed_forward, "llama.attention.head_count": layout.heads,
        "llama.attention.head_count_kv": layout.kv_heads, "llama.attention.key_length": layout.head_dim,
        "llama.attention.value_length": layout.head_dim, "llama.rope.dimension_count": layout.head_dim,
    }  # fmt: skip
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in new or key in ("general.architecture", "general.file_type"):
            continue
        value = field.contents()
        if key == "llama.attention.layer_norm_rms_epsilon":
            value = value * scale**2
        elif key == "general.name":
            value = f"{value}, inflated to {layout.parameters / 1e6:.0f}M"
        writer.add_key_value(key, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for key, value in new.items():
        writer.add_uint32(key, value)


def write_plain(
    reader: Any, source: Layout, layout: Layout, out: Path, ftype: str, seed: int, progress: Progress
) -> None:
    """Write the widened model as F16, BF16 or F32, one tensor at a time."""
    import gguf

    kind = gguf.GGMLQuantizationType[ftype]
    scale = (source.width / layout.width) ** 0.5
    tensors = {tensor.name: tensor for tensor in reader.tensors}
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
            old = (
                gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
                if name in tensors
                else None
            )
            writer.write_padding(stream, stream.tell())
            # a generator a tensor: its numbers depend on the seed and its name alone
            rng = np.random.default_rng([seed, *name.encode()])
            for piece in widened(name, shape, old, scale, rng):
                piece = piece if len(shape) == 1 or ftype == "F32" else gguf.quants.quantize(piece, kind)
                stream.write(np.ascontiguousarray(piece).data)  # tofile() would not say that a disk is full
            progress("write", (number + 1) / len(shapes))
        writer.write_padding(stream, stream.tell())


def check_space(folder: Path, needed: int) -> None:
    """Raise ModelError unless `folder` has room for `needed` bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed * 1.02:
        raise ModelError(
            f"{folder} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed: "
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

    `ftype` is F32, F16, BF16, Q8_0 or Q4_0; the quantised types go through F16 and llama.cpp's quantiser.
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
    except (ValueError, IndexError, KeyError) as error:
        raise ModelError(f"{source} is not a complete GGUF file ({error})") from error
    old = layout_of(reader, source)
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
