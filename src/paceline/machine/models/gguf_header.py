"""The header of a GGUF file, read in blocks, with every claim compared with the bytes that are there.

gguf.GGUFReader maps the whole file and believes its counts; this one must survive files that lie.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. What is refused is what llama.cpp refuses
(ggml/src/gguf.cpp), and what no model needs."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.errors import ModelError
from paceline.machine.models.cursor import Cursor, Refused
from paceline.machine.models.plain_file import open_plain, reason

MAX_STRING = 64 << 20
MAX_KEYS = 1 << 16
MAX_NAME = 1 << 16
MAX_TENSORS = 1 << 17
MAX_TENSOR_NAME = 63
MAX_DIMS = 4
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# llama.cpp's tensor types that the gguf library does not know yet: (elements, bytes) of a block.
NEWER_TYPES = {42: (64, 18)}
NEWER_NAMES = {42: "Q2_0"}

STRING, ARRAY, BOOL = 8, 9, 7
# Those of one size, by gguf's value type.
NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    BOOL: np.dtype("u1"),  # any byte but 0 is true
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


@dataclass(frozen=True)
class Unread:
    """An array that was not asked for: how many elements it has."""

    count: int


@dataclass(frozen=True)
class Tensor:
    """shape: fastest dimension first, as the file has it. type: ggml's number. offset: from Header.data."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


# str, int, float, bool; of arrays a list of bytes, a numpy array, or what was not read.
Value = str | int | float | bool | list[bytes] | np.ndarray[Any, Any] | Unread


@dataclass(frozen=True)
class Header:
    """data: where the weights begin; size: of the file, in bytes."""

    path: Path
    version: int
    metadata: Mapping[str, Value]
    tensors: tuple[Tensor, ...]
    data: int
    size: int


def everything(_key: str, _count: int) -> bool:
    return True


def read_header(path: str | Path, keep: Callable[[str, int], bool] = everything) -> Header:
    """keep: of an array's key and length, whether it is wanted. Raises ModelError for a file that is no GGUF
    file, is damaged or lies; time and memory stay bounded for any file."""
    path = Path(path)
    with open_plain(path) as file:
        try:
            size = file.seek(0, 2)
            file.seek(0)
            return _read(path, Cursor(file, size), keep)
        except Refused as refused:
            raise ModelError(f"{path}: {refused}") from None
        except OSError as error:
            raise ModelError(f"{path}: {reason(error)}") from error


def _read(path: Path, cursor: Cursor, keep: Callable[[str, int], bool]) -> Header:
    if cursor.size < 24 or cursor.take(4, "the magic") != b"GGUF":
        raise Refused("is not a GGUF file" if cursor.size else "is empty")
    version = _version(cursor.u32("the version"))
    n_tensors, n_keys = cursor.u64("the number of tensors"), cursor.u64("the number of keys")
    if n_keys > MAX_KEYS or n_tensors > MAX_TENSORS:
        raise Refused(f"claims {n_keys:,} keys and {n_tensors:,} tensors: no model has so many")
    cursor.claim(13 * n_keys + 24 * n_tensors, f"a header of {n_keys:,} keys and {n_tensors:,} tensors")
    metadata: dict[str, Value] = {}
    for _ in range(n_keys):
        key = _text(cursor.string(MAX_NAME, "a key"), "a key")
        if not key or key in metadata:
            raise Refused(f"has the key {_shown(key)} twice" if key else "has a key without a name")
        metadata[key] = _value(cursor, key, keep)
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise Refused(f"its alignment is {_shown(alignment)}, which is no power of two")
    sizes = _block_sizes()
    tensors: list[Tensor] = []
    lengths: list[int] = []
    names: set[str] = set()
    for _ in range(n_tensors):
        tensor, length = _tensor(cursor, sizes)
        if tensor.name in names:
            raise Refused(f"has the tensor {tensor.name!r} twice")
        names.add(tensor.name)
        tensors.append(tensor)
        lengths.append(length)
    data = -(-cursor.position // alignment) * alignment
    _check_places(tensors, lengths, alignment, cursor.size - data)
    return Header(path, version, metadata, tuple(tensors), data, cursor.size)


def _version(version: int) -> int:
    if version & 0xFFFF == 0 and version:
        raise Refused("is big-endian, which this machine does not load: convert it with gguf-convert-endian")
    if version == 1:
        raise Refused("is GGUF version 1, which llama.cpp no longer loads: convert the model anew")
    if version not in VERSIONS:
        raise Refused(f"is GGUF version {version}; known are {' and '.join(map(str, VERSIONS))}")
    return version


def _value(cursor: Cursor, key: str, keep: Callable[[str, int], bool]) -> Value:
    what = _shown(key)
    kind = cursor.u32(what)
    if kind == STRING:
        # A name that is misspelled is no reason to refuse what llama.cpp loads.
        return cursor.string(MAX_STRING, what).decode("utf-8", "replace")
    if kind in NUMBERS:
        number: int | float = np.frombuffer(cursor.take(NUMBERS[kind].itemsize, what), NUMBERS[kind])[
            0
        ].item()
        return bool(number) if kind == BOOL else number
    if kind != ARRAY:
        raise Refused(f"{what} is of type {kind}, which GGUF does not have")
    kind, count = cursor.u32(what), cursor.u64(what)
    wanted = keep(key, count)
    if kind == STRING:
        found = cursor.strings(count, what, wanted)
        return found if wanted else Unread(count)
    if kind not in NUMBERS:
        raise Refused(f"{what} is an array of type {kind}, which llama.cpp does not load")
    size = count * NUMBERS[kind].itemsize
    if not wanted:
        cursor.skip(size, what)
        return Unread(count)
    cursor.claim(size, what)
    numbers: np.ndarray[Any, Any] = np.frombuffer(cursor.take(size, what), NUMBERS[kind])
    return numbers.astype(bool) if kind == BOOL else numbers


def _tensor(cursor: Cursor, sizes: Mapping[int, tuple[int, int]]) -> tuple[Tensor, int]:
    """And its length in bytes."""
    name = _text(cursor.string(MAX_TENSOR_NAME, "a tensor's name"), "a tensor's name")
    n_dims = cursor.u32(repr(name))
    if n_dims > MAX_DIMS:
        raise Refused(f"tensor {name!r} has {n_dims:,} dimensions; there are {MAX_DIMS} at most")
    shape = struct.unpack(f"<{n_dims}Q", cursor.take(8 * n_dims, repr(name)))
    kind, offset = cursor.u32(repr(name)), cursor.u64(repr(name))
    if kind not in sizes:
        raise Refused(f"tensor {name!r} is of type {kind}, which this version does not know")
    elements, size = sizes[kind]
    tensor = Tensor(name, shape, kind, offset)
    if (shape[0] if shape else 1) % elements or max(shape, default=0) >> 63 or tensor.elements >> 63:
        raise Refused(f"tensor {name!r} of type {kind} cannot have the shape {shape}")
    return tensor, tensor.elements // elements * size


def _check_places(tensors: list[Tensor], lengths: list[int], alignment: int, room: int) -> None:
    """One behind the other, as llama.cpp wants them, and all within the file."""
    expected = 0
    for tensor, length in zip(tensors, lengths, strict=True):
        if tensor.offset != expected:
            raise Refused(f"tensor {tensor.name!r} is at {tensor.offset:,} where {expected:,} was expected")
        if tensor.offset + length > room:
            raise Refused(
                f"tensor {tensor.name!r} ends {tensor.offset + length - room:,} bytes behind the end of the "
                "file: it was not downloaded whole, fetch it again"
            )
        expected += -(-length // alignment) * alignment


def _shown(value: Value) -> str:
    """What a file says, for a message: of one line, and short."""
    return repr(value[:80] if isinstance(value, str) else value)[:100]


def _text(raw: bytes, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Refused(f"{what} is no UTF-8: {raw[:32]!r}") from None


def _block_sizes() -> dict[int, tuple[int, int]]:
    from gguf.constants import GGML_QUANT_SIZES

    return NEWER_TYPES | {int(kind): size for kind, size in GGML_QUANT_SIZES.items()}
