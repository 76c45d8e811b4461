"""Write GGUF files from raw parts, so that unchanged parts are copied bit for bit; or some layers of a model,
an early-exit or layer-skip draft for any engine."""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.models.headers.gguf_file import ARRAY, BOOL, NUMBERS, STRING, GGUFFile, TensorInfo
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.printable import format_bytes
from paceline.speculative.validation import unknown
from paceline.system.atomic import check_output, write_output

VERSION = 3
UINT32, INT32, FLOAT32 = 4, 5, 6  # types of metadata
COPY_BYTES = 1 << 24
WEIGHT_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0")  # the types that can be written


@dataclass(frozen=True)
class TensorToWrite:
    """A tensor to write. dims: in GGUF's order, the row length first. size: bytes."""

    name: str
    dims: tuple[int, ...]
    type: int
    size: int
    blocks: Callable[[], Iterator[np.ndarray[Any, Any]]]


def copy_part(file: GGUFFile, tensor: TensorInfo) -> TensorToWrite:
    """Return the unchanged tensor."""
    raw = file.weights(tensor)

    def blocks() -> Iterator[np.ndarray[Any, Any]]:
        return (raw[i : i + COPY_BYTES] for i in range(0, len(raw), COPY_BYTES))

    return TensorToWrite(tensor.name, tensor.shape, tensor.type, len(raw), blocks)


def weight_type(name: str) -> Any:
    """Return gguf's number of a type of weights. Raises UsageError for a type that cannot be written."""
    import gguf

    if name.upper() not in WEIGHT_TYPES:
        raise unknown("weight type", name, WEIGHT_TYPES)
    return gguf.GGMLQuantizationType[name.upper()]


def quantise_part(
    name: str, dims: tuple[int, ...], kind: Any, rows: Callable[[], Iterator[np.ndarray[Any, Any]]]
) -> TensorToWrite:
    """Return a quantised tensor of float32 rows.
    Raises UsageError for an unsuitable row length; its blocks raise ModelError for weights beyond F16."""
    import gguf

    block, size = gguf.GGML_QUANT_SIZES[kind]
    if dims[0] % block:
        raise UsageError(f"{name} has rows of {dims[0]}, {kind.name} needs a multiple of {block}: --type F16")

    def blocks() -> Iterator[np.ndarray[Any, Any]]:
        over: Any = "raise" if kind == gguf.GGMLQuantizationType.F16 else "ignore"
        for chunk in rows():
            try:
                with np.errstate(over=over):
                    data = gguf.quants.quantize(np.ascontiguousarray(chunk), kind)
            except FloatingPointError as error:
                raise ModelError(f"{name} has weights too large for F16: use BF16 or F32") from error
            yield data

    return TensorToWrite(name, dims, int(kind), int(np.prod(dims)) // block * size, blocks)


def metadata_field(key: str, value: str | int | float | Sequence[int]) -> bytes:
    """Return the raw bytes of a text, a truth value, a uint32, a float32 or an array of int32."""
    name = key.encode()
    if isinstance(value, str):
        data = value.encode(errors="replace")
        raw = struct.pack("<IQ", STRING, len(data)) + data
    elif isinstance(value, bool):
        raw = struct.pack("<I?", BOOL, value)
    elif isinstance(value, int | float):
        number = ("<If", FLOAT32) if isinstance(value, float) else ("<II", UINT32)
        raw = struct.pack(*number, value)
    else:
        raw = struct.pack("<IIQ", ARRAY, INT32, len(value)) + np.asarray(value, "<i4").tobytes()
    return struct.pack("<Q", len(name)) + name + raw


def select_elements(field: bytes, count: int, keep: Sequence[int]) -> bytes:
    """Return a raw field; of an array of `count` numbers only the elements `keep`."""
    start = 8 + int.from_bytes(field[:8], "little") + 4
    if int.from_bytes(field[start - 4 : start], "little") == ARRAY:
        inner, length = struct.unpack_from("<IQ", field, start)
        if inner in NUMBERS and length == count:
            numbers = np.frombuffer(field, NUMBERS[inner], offset=start + 12)[list(keep)]
            return field[:start] + struct.pack("<IQ", inner, len(keep)) + numbers.tobytes()
    return field


def write_gguf(
    path: Path,
    fields: Sequence[bytes],
    parts: Sequence[TensorToWrite],
    alignment: int,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Write a file; `tick` is called after each tensor. Raises ModelError without space for the weights."""
    needed, free = sum(part.size for part in parts), shutil.disk_usage(path.parent).free
    if free < needed * 1.02:
        sizes = f"{format_bytes(free)} free, {format_bytes(needed)} are needed"
        raise ModelError(f"{path.parent} has {sizes}: free some or choose another folder")
    with path.open("wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", VERSION, len(parts), len(fields)))
        for field in fields:
            file.write(field)
        offset = 0
        for part in parts:
            name = part.name.encode()
            file.write(struct.pack("<Q", len(name)) + name + struct.pack("<I", len(part.dims)))
            file.write(struct.pack(f"<{len(part.dims)}QIQ", *part.dims, part.type, offset))
            offset += part.size + -part.size % alignment
        file.write(bytes(-file.tell() % alignment))
        for part in parts:
            written = 0
            for block in part.blocks():
                file.write(np.ascontiguousarray(block).data)  # tofile() does not report a full disk
                written += block.nbytes
            assert written == part.size, f"{part.name} came out as {written:,} bytes, not {part.size:,}"
            file.write(bytes(-written % alignment))
            tick()


BLOCK = re.compile(r"blk\.(\d+)\.")


def shorten(
    source: Path,
    out: Path,
    layers: Collection[int],
    *,
    force: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> int:
    """Write `out` with the given layers of `source` and all other tensors unchanged. Return the file's bytes.
    tick: called after each tensor; its exceptions end the work. `out` appears only when it is complete.
    Raises UsageError (layers, existing file), ModelError (unsuitable source) and PacelineError."""
    check_output(out, source, force=force)
    file = GGUFFile(source)
    n = layer_count(file)
    selected = sorted(set(layers))
    if not selected or selected[0] < 0 or selected[-1] >= n:
        raise UsageError(f"{source}: has {n} layers, numbered from 0: not all of those are there")
    new_numbers = {str(old): str(new) for new, old in enumerate(selected)}
    parts = []
    for tensor in file.tensors.values():
        block = BLOCK.match(tensor.name)
        if block is None:
            parts.append(copy_part(file, tensor))
        elif block[1] in new_numbers:
            new_name = f"blk.{new_numbers[block[1]]}.{tensor.name[block.end() :]}"
            parts.append(replace(copy_part(file, tensor), name=new_name))
    prefix = f"{file.text('general.architecture')}."
    fields = {  # per-layer lists have the selected layers only
        key: select_elements(field, n, selected) if key.startswith(prefix) else field
        for key, field in file.fields.items()
    }
    fields[f"{prefix}block_count"] = metadata_field(f"{prefix}block_count", len(selected))
    if name := file.text("general.name"):
        fields["general.name"] = metadata_field("general.name", f"{name}, {len(selected)} of {n} layers")
    with write_output(out) as part:
        write_gguf(part, list(fields.values()), parts, file.alignment, tick)
        return part.stat().st_size


def layer_count(file: GGUFFile) -> int:
    """Return the number of layers, 0 if the file does not state it. Raises ModelError."""
    return file.number(f"{file.text('general.architecture')}.block_count")
