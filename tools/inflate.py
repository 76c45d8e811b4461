"""Function-preserving widening: a larger model with exactly the output of a small one, for demos and
benchmarks at realistic cost.

    python -m tools.inflate OUT --from zoo:smollm2 --params 1B --type Q4_0

After Net2Net (Chen et al. 2015, arXiv:1511.05641). The residual stream d -> D is padded with zeros. Each
RMSNorm weight is scaled by sqrt(d/D) and its epsilon by d/D, which compensates for the longer mean. New heads
and feed-forward columns, and new groups of a Mamba-2 layer or heads of a gated delta net, meet zero output
columns; new blocks have zero output matrices. All other new weights are small seeded random numbers, so that
matrix products cost as much as in a real model of that size. A block that guesses further tokens (MTP) stays
the last."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from paceline.cli.interrupts import INTERRUPTED, Interrupts, install_exit_handlers
from paceline.cli.output import print_note
from paceline.cli.progress import STEPS, by_share
from paceline.cli.progress import progress as drawn
from paceline.cli.references import resolved
from paceline.models.headers.gguf_file import GGUFFile, TensorRows
from paceline.models.headers.gguf_writer import (
    TensorToWrite,
    metadata_field,
    quantise_part,
    weight_type,
    write_gguf,
)
from paceline.speculative.errors import PacelineError, UsageError
from paceline.speculative.validation import read_number
from paceline.system.atomic import check_output, write_output
from tools.layout import Layout, choose_layout, read_layout, segments_of, tensor_shapes

Array = np.ndarray[Any, Any]
Progress = Callable[[float], None]
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
SMALL = ("ssm_conv1d", "ssm_a", "ssm_d", "ssm_norm", "ffn_gate_inp")  # tensors that llama.cpp keeps in F32
CHUNK_ROWS = 4096
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


def widen_tensor(
    name: str,
    old_layout: Layout,
    layout: Layout,
    old: TensorRows | None,
    scale: float,
    rng: np.random.Generator,
) -> Iterator[Array]:
    """Yield the widened tensor in float32 pieces of at most `CHUNK_ROWS` rows; `old` is None in a new block.
    What writes to the residual stream (embedding, attention output, feed-forward down, Mamba's output, an MTP
    block's inputs) is zero outside the old part."""
    segments = segments_of(layout, name)
    before, after = old_layout.dimensions, layout.dimensions
    if name.endswith("norm.weight") and len(segments) == 1:
        norm = np.ones(after[segments[0][0]], np.float32)
        if old is not None:
            norm[: old.size] = old.rows(slice(None)).reshape(-1) * (scale if segments == (("width",),) else 1)
        yield norm
        return
    writes = any(part in name for part in ("token_embd", "attn_output", "ffn_down", "ssm_out", "eh_proj"))
    columns = segments[1] if len(segments) > 1 else ("one",)
    ends = np.cumsum([after[part] for part in columns])
    width = int(ends[-1])
    places = np.hstack([ends[i] - after[part] + np.arange(before[part]) for i, part in enumerate(columns)])
    first = 0  # old row of the segment
    for part in segments[0]:
        for start in range(0, after[part], CHUNK_ROWS):
            rows = min(CHUNK_ROWS, after[part] - start)
            if writes or len(segments) == 1:
                piece = np.zeros((rows, width), np.float32)
            elif name.endswith(("ssm_a", "ssm_d", "ssm_norm.weight")):
                piece = np.full((rows, width), -1.0 if name.endswith("ssm_a") else 1.0, np.float32)
            else:
                piece = rng.standard_normal((rows, width), np.float32) * np.float32(width**-0.5)
            if old is not None and start < before[part]:
                end = min(start + rows, before[part])
                kept = old.rows(slice(first + start, first + end)).reshape(end - start, -1)
                piece[: len(kept), places] = kept
            yield piece if len(segments) > 1 else piece[:, 0]
        first += before[part]


def widened_metadata(file: GGUFFile, layout: Layout, scale: float, file_type: int) -> list[bytes]:
    """Return the source's metadata fields with the new dimensions."""
    size, arch, m = f"{layout.parameters / 1e6:.0f}M", layout.arch, layout.mamba
    values: dict[str, str | int | float] = {
        "general.file_type": file_type, f"{arch}.embedding_length": layout.width,
        f"{arch}.block_count": layout.blocks + layout.mtp_blocks,
        f"{arch}.attention.layer_norm_rms_epsilon": layout.eps * scale**2,
    }  # fmt: skip
    fields = dict(file.fields)
    if layout.heads:
        values |= {
            f"{arch}.{'expert_' * (layout.experts > 0)}feed_forward_length": layout.feed_forward,
            f"{arch}.attention.head_count": layout.heads, f"{arch}.attention.key_length": layout.head_dim,
            f"{arch}.attention.value_length": layout.head_dim,
        }  # fmt: skip
        kv_heads = [layout.kv_heads * (not layout.is_recurrent(i)) for i in range(layout.blocks)]
        key = f"{arch}.attention.head_count_kv"
        if isinstance(file.values.get(key), int):
            values[key] = layout.kv_heads
        else:
            fields[key] = metadata_field(key, kv_heads)
        if f"{arch}.rope.dimension_count" not in file.fields:
            values[f"{arch}.rope.dimension_count"] = layout.head_dim
    if (key := f"{arch}.attention.sliding_window_pattern") in fields:
        fields[key] = metadata_field(key, [0] * layout.blocks + [1] * layout.mtp_blocks)
    if m.inner:
        values |= {
            f"{arch}.ssm.inner_size": m.inner, f"{arch}.ssm.time_step_rank": m.steps,
            f"{arch}.ssm.group_count": m.groups,
        }  # fmt: skip
    if name := file.text("general.name"):
        values["general.name"] = f"{name}, inflated to {size}"
    if file.text("general.size_label"):
        values["general.size_label"] = size
    return list((fields | {key: metadata_field(key, value) for key, value in values.items()}).values())


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
    moved = f"blk.{old.blocks}.", f"blk.{layout.blocks}."
    tables = {name.replace(*moved): TensorRows(source, tensor) for name, tensor in source.tensors.items()}
    output = OUTPUT if OUTPUT in dict(tensor_shapes(layout)) else EMBEDDING

    def rows(name: str) -> Iterator[Array]:
        # One generator per tensor: the weights depend only on the seed and the tensor's name.
        rng = np.random.default_rng([seed, *name.encode()])
        return widen_tensor(name, old, layout, tables.get(name), scale, rng)

    def part(name: str, shape: tuple[int, ...]) -> TensorToWrite:
        # As in llama.cpp, norms stay F32, and the output matrix of a Q4_0 model has more bits.
        small = len(shape) == 1 or any(part in name for part in SMALL)
        kind = "F32" if small else "Q8_0" if (ftype, name) == ("Q4_0", output) else ftype
        return quantise_part(name, shape[::-1], weight_type(kind), partial(rows, name))

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
    """Write a GGUF of about `parameters` weights (60M to 2B, within 5%) with the outputs of `source`.
    Return the layout and the file's bytes. `out` appears only when it is complete.
    Raises UsageError (size, type, existing file), ModelError (source, full disk) or PacelineError."""
    kind = weight_type(ftype).name
    check_output(out, source, force=force)
    file = GGUFFile(source)
    old = read_layout(file)
    layout = choose_layout(old, parameters)
    with write_output(out) as part:
        write_widened(file, old, layout, part, kind, seed, progress)
        return layout, part.stat().st_size


def parse_count(text: str) -> int:
    """Return the number of a text such as 200M or 1.1B. Raises UsageError."""
    written = text.strip().upper()
    unit = written[-1:] if written[-1:] in UNITS else ""
    with suppress(ValueError):
        if (count := int(read_number(float, written.removesuffix(unit)) * UNITS[unit])) >= 1:
            return count
    raise UsageError(f"--params {text}: write a number of parameters such as 200M or 1.1B")


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.inflate",
        description="Write a larger model with the output of a small one, to measure at realistic cost.",
        epilog="The path of the complete file goes to stdout.",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="the GGUF file to write")
    parser.add_argument("--from", "-m", "--model", dest="source", metavar="MODEL", default="zoo:target")
    parser.add_argument("--params", default="1B", metavar="N", help="parameters, e.g. 200M")
    parser.add_argument("--type", default="Q8_0", help="F32, F16, BF16, Q8_0, Q4_0")
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")
    given = parser.parse_args(args)
    try:
        source, parameters = resolved(given.source), parse_count(given.params)
        # Ctrl-C stops between steps, so that the partial file is removed.
        with Interrupts() as interrupts, drawn({"write": STEPS}, interrupts, at_end=False) as tick:
            share = partial(by_share(tick), "write")
            layout, size = inflate(
                source, given.out, parameters, given.type, force=given.force, progress=share
            )
    except PacelineError as error:
        print_note(f"paceline: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    print_note(f"{layout.parameters / 1e6:,.0f}M parameters, {size / 1e6:,.0f} MB")
    print(given.out)
    return 0


if __name__ == "__main__":
    install_exit_handlers()
    sys.exit(main(sys.argv[1:]))
