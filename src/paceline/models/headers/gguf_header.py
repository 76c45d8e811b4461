"""A GGUF header reader for untrusted files: every count is checked against the bytes in the file.

gguf.GGUFReader maps the whole file and trusts its counts. This reader rejects what llama.cpp rejects
(ggml/src/gguf.cpp), and sizes that no model needs.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from paceline.models.headers.cursor import Cursor, InvalidFile
from paceline.models.headers.plain_file import open_regular_file, os_error_reason
from paceline.speculative.errors import ModelError

MAX_STRING = 4 << 20
MAX_KEYS = 1 << 16
MAX_NAME = 1 << 16
MAX_TENSORS = 1 << 16
MAX_TENSOR_NAME = 63
MAX_DIMS = 4
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# Elements and bytes of a block of each of ggml's tensor types. The gguf library takes long to import.
TYPES = {
    **{0: (1, 4), 1: (1, 2), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 30: (1, 2)},
    **{2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40), 20: (32, 18)},
    **{10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292)},
    **{16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 21: (256, 110), 22: (256, 82)},
    **{23: (256, 136), 29: (256, 56), 34: (256, 54), 35: (256, 66)},
    **{39: (32, 17), 40: (64, 36), 41: (128, 18), 42: (64, 18)},
}
STRING, ARRAY, BOOL = 8, 9, 7
# Value types of fixed size.
NUMBERS: dict[int, np.dtype[Any]] = {
    kind: np.dtype(name)
    for kind, name in {
        0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8",
        BOOL: "u1",  # any byte but 0 is true
    }.items()
}  # fmt: skip


@dataclass(frozen=True)
class SkippedArray:
    """An array that was not read. count: its elements."""

    count: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's entry. shape: fastest dimension first. type: ggml's number. offset: from GGUFHeader.data."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def length(self) -> int:
        """Return the bytes of the weights."""
        elements, size = TYPES[self.type]
        return self.elements // elements * size


T = TypeVar("T")
Value = str | int | float | bool | list[bytes] | np.ndarray[Any, Any] | SkippedArray


@dataclass(frozen=True)
class GGUFHeader:
    """A header. spans: start and end of each raw field. data: offset of the weights. size: file size.

    The methods return a value of the metadata, or a default if it is absent. They raise ModelError for a
    value of another type.
    """

    path: Path
    metadata: Mapping[str, Value]
    spans: Mapping[str, tuple[int, int]]
    tensors: tuple[TensorInfo, ...]
    data: int
    size: int

    def text(self, key: str) -> str:
        return self._get(key, "", str, "a text")

    def flag(self, key: str) -> bool | None:
        return self._get(key, None, bool | None, "true or false")

    def texts(self, key: str) -> list[bytes]:
        return self._get(key, [], list, "a list of texts")

    def length(self, key: str) -> int:
        value: Any = self._get(key, [], list | np.ndarray | SkippedArray, "a list")
        return value.count if isinstance(value, SkippedArray) else len(value)

    def number(self, key: str) -> int:
        """Return a number, 0 if absent; of a list with a number per layer, the largest."""
        return max(self.numbers(key), default=0)

    def numbers(self, key: str) -> list[int]:
        """Return a list of numbers; a single number becomes a list."""
        value: Any = self._get(key, None, int | np.ndarray | SkippedArray | None, "a whole number")
        found = np.ravel([] if value is None or isinstance(value, SkippedArray) else value)
        if found.size and (found.dtype.kind not in "iub" or isinstance(value, bool) or found.min() < 0):
            raise self._type_error(key, "a whole number of at least 0")
        return [int(one) for one in found.tolist()]

    def _get(self, key: str, default: T, kind: Any, wanted: str) -> T:
        value: Any = self.metadata.get(key, default)
        if not isinstance(value, kind):
            raise self._type_error(key, wanted)
        return cast("T", value)

    def _type_error(self, key: str, wanted: str) -> ModelError:
        return ModelError(f"{self.path}: its {key!r} is not {wanted}: the file is damaged, fetch it again")


def read_header(path: Path, keep: Callable[[str, int], bool] = lambda _key, _count: True) -> GGUFHeader:
    """Read a header in bounded time and memory. keep: decides by key and length whether an array is read.

    Raises ModelError for a file that is no GGUF file or is damaged.
    """
    with open_regular_file(path) as file:
        try:
            size = file.seek(0, 2)
            file.seek(0)
            return _read(path, Cursor(file, size), keep)
        except InvalidFile as refused:
            raise ModelError(f"{path}: {refused}") from None
        except OSError as error:
            raise ModelError(f"{path}: {os_error_reason(error)}") from error


def _read(path: Path, cursor: Cursor, keep: Callable[[str, int], bool]) -> GGUFHeader:
    if not cursor.size:
        raise InvalidFile("is empty: fetch it again")
    if cursor.size < 4 or cursor.take(4, "the magic") != b"GGUF":
        raise InvalidFile("is not a GGUF file: convert the model to GGUF first")
    if (version := cursor.u32("the version")) not in VERSIONS:
        raise InvalidFile(f"is GGUF version {version}, or big-endian: convert the model anew to version 3")
    n_tensors, n_keys = cursor.u64("the number of tensors"), cursor.u64("the number of keys")
    if n_keys > MAX_KEYS or n_tensors > MAX_TENSORS:
        raise InvalidFile(f"claims {n_keys:,} keys and {n_tensors:,} tensors: no model has so many")
    least = 13 * n_keys + 24 * n_tensors
    cursor.require_bytes(least, f"a header of {n_keys:,} keys and {n_tensors:,} tensors")
    metadata: dict[str, Value] = {}
    spans: dict[str, tuple[int, int]] = {}
    for _ in range(n_keys):
        start = cursor.position
        key = _name(cursor, MAX_NAME, "a key")
        if not key or key in metadata:
            raise InvalidFile(f"has the key {_shown(key)} twice" if key else "has a key without a name")
        metadata[key] = _value(cursor, key, cursor.u32(_shown(key)), keep)
        spans[key] = start, cursor.position
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise InvalidFile(f"its alignment is {_shown(alignment)}, which is no power of two")
    tensors: dict[str, TensorInfo] = {}
    for _ in range(n_tensors):
        tensor = _tensor(cursor)
        if tensor.name in tensors:
            raise InvalidFile(f"has the tensor {tensor.name!r} twice")
        tensors[tensor.name] = tensor
    data = -(-cursor.position // alignment) * alignment
    _check_offsets(tensors.values(), alignment, cursor.size - data)
    return GGUFHeader(path, metadata, spans, tuple(tensors.values()), data, cursor.size)


def _value(cursor: Cursor, key: str, kind: int, keep: Callable[[str, int], bool]) -> Value:
    what = _shown(key)
    if kind == STRING:
        # llama.cpp accepts invalid UTF-8 in values.
        return cursor.string(MAX_STRING, what).decode("utf-8", "replace")
    if kind in NUMBERS:
        raw = cursor.take(NUMBERS[kind].itemsize, what)
        number: int | float = np.frombuffer(raw, NUMBERS[kind])[0].item()
        return bool(number) if kind == BOOL else number
    if kind != ARRAY:
        raise InvalidFile(f"{what} is of type {kind}, which GGUF does not have")
    kind, count = cursor.u32(what), cursor.u64(what)
    wanted = keep(key, count)
    if kind == STRING:
        found = cursor.strings(count, what, wanted)
        return found if wanted else SkippedArray(count)
    if kind not in NUMBERS:
        raise InvalidFile(f"{what} is an array of type {kind}, which llama.cpp does not load")
    raw = cursor.take(count * NUMBERS[kind].itemsize, what)
    if not wanted:
        return SkippedArray(count)
    numbers: np.ndarray[Any, Any] = np.frombuffer(raw, NUMBERS[kind])
    return numbers.astype(bool) if kind == BOOL else numbers


def _tensor(cursor: Cursor) -> TensorInfo:
    name = _name(cursor, MAX_TENSOR_NAME, "a tensor's name")
    n_dims = cursor.u32(repr(name))
    if n_dims > MAX_DIMS:
        raise InvalidFile(f"tensor {name!r} has {n_dims:,} dimensions; there are {MAX_DIMS} at most")
    shape = struct.unpack(f"<{n_dims}Q", cursor.take(8 * n_dims, repr(name)))
    kind, offset = cursor.u32(repr(name)), cursor.u64(repr(name))
    if kind not in TYPES:
        raise InvalidFile(f"tensor {name!r} is of type {kind}, which this version does not know")
    tensor = TensorInfo(name, shape, kind, offset)
    if (shape[0] if shape else 1) % TYPES[kind][0] or max(shape, default=0) >> 63 or tensor.elements >> 63:
        raise InvalidFile(f"tensor {name!r} of type {kind} cannot have the shape {shape}")
    return tensor


def _check_offsets(tensors: Iterable[TensorInfo], alignment: int, room: int) -> None:
    """Require contiguous tensors, like llama.cpp, that end within the file."""
    expected = 0
    for tensor in tensors:
        what = f"tensor {tensor.name!r}"
        if tensor.offset != expected:
            raise InvalidFile(f"{what} is at {tensor.offset:,} where {expected:,} was expected")
        if (over := tensor.offset + tensor.length - room) > 0:
            raise InvalidFile(
                f"{what} ends {over:,} bytes behind the end of the file: it was not downloaded whole, fetch "
                "it again"
            )
        expected += -(-tensor.length // alignment) * alignment


def _shown(value: Value) -> str:
    """Return a value for a message, on one line and truncated."""
    return repr(value[:80] if isinstance(value, str) else value)[:100]


def _name(cursor: Cursor, limit: int, what: str) -> str:
    raw = cursor.string(limit, what)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidFile(f"{what} is no UTF-8: {raw[:32]!r}") from None
