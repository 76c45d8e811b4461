"""A GGUF header reader for untrusted files: every count is checked against the bytes in the file.

gguf.GGUFReader maps the whole file and trusts its counts. This reader rejects sizes that no model needs and
weights outside of the file; llama.cpp rejects more (ggml/src/gguf.cpp).
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from paceline.models.headers.plain_file import open_regular_file, os_error_reason
from paceline.speculative.errors import ModelError

# The largest header known, Gemma 4's, has 16 MB, and 800,000 strings.
MAX_HEADER_BYTES = 64 << 20
MAX_STRINGS = 2 << 20
BLOCK_BYTES = 1 << 20

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
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


Value = str | int | float | bool | list[bytes] | np.ndarray[Any, Any] | SkippedArray


@dataclass(frozen=True)
class GGUFHeader:
    """A header. spans: start and end of each raw field. data: offset of the weights. size: file size.
    The methods return a value of the metadata, or a default if it is absent. They raise ModelError for a
    value of another type."""

    path: Path
    metadata: Mapping[str, Value]
    spans: Mapping[str, tuple[int, int]]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data: int
    size: int

    def text(self, key: str) -> str:
        return str(self._get(key, "", "a text", str))

    def flag(self, key: str) -> bool | None:
        found: bool | None = self._get(key, None, "true or false", bool)
        return found

    def texts(self, key: str) -> list[bytes]:
        return list(self._get(key, [], "a list of texts", list))

    def length(self, key: str) -> int:
        value: Any = self._get(key, [], "a list", list | np.ndarray | SkippedArray)
        return value.count if isinstance(value, SkippedArray) else len(value)

    def number(self, key: str) -> int:
        """Return a number, 0 if absent; of a list with a number per layer, the largest."""
        return max(self.numbers(key), default=0)

    def numbers(self, key: str) -> list[int]:
        """Return a list of numbers; a single number becomes a list."""
        kind = int | np.ndarray | SkippedArray
        value = self._get(key, SkippedArray(0), "a whole number of at least 0", kind, _is_natural)
        return [] if isinstance(value, SkippedArray) else [int(number) for number in np.ravel(value).tolist()]

    def _get(
        self, key: str, default: Any, wanted: str, kind: Any, valid: Callable[[Any], bool] = lambda _: True
    ) -> Any:
        if key not in self.metadata:
            return default
        value = self.metadata[key]
        if not isinstance(value, kind) or not valid(value):
            raise ModelError(f"{self.path}: its {key!r} is not {wanted}: it is damaged, fetch it again")
        return value


def _is_natural(value: int | np.ndarray[Any, Any] | SkippedArray) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "iub" and value.min(initial=0) >= 0
    return isinstance(value, SkippedArray) or (type(value) is int and value >= 0)


class InvalidFile(Exception):  # noqa: N818  # becomes a ModelError that names the file
    pass


class Cursor:
    """A forward reader with fixed limits: a position in a header, whose bytes are in a growing buffer."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.size = size
        self.position = 0
        self._file = file
        self._buffer = b""
        self._strings = 0

    def require_bytes(self, size: int, what: str) -> None:
        """Raise InvalidFile unless the file and the limit have room for `size` more bytes."""
        room = min(self.size, MAX_HEADER_BYTES) - self.position
        if size > room:
            raise InvalidFile(
                f"{what} needs {size:,} bytes and has {room:,}: the file is damaged or was not downloaded "
                f"whole, fetch it again; no model has a header of {MAX_HEADER_BYTES >> 20} MiB"
            )

    def take(self, size: int, what: str) -> bytes:
        start, end = self.position, self.position + size
        self._fill(end, what)
        self.position = end
        return self._buffer[start : self.position]

    def u32(self, what: str) -> int:
        return int(U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(U64.unpack(self.take(8, what))[0])

    def string(self, what: str) -> str:
        """Read a text; llama.cpp accepts invalid UTF-8, too."""
        return self.take(self.u64(what), what).decode("utf-8", "replace")

    def strings(self, count: int, what: str, keep: bool) -> list[bytes]:
        """Read `count` strings. This is the hot loop: a vocabulary with its merges has half a million."""
        self.require_bytes(8 * count, what)
        self._strings += count
        if self._strings > MAX_STRINGS:
            raise InvalidFile(f"{what} makes more than {MAX_STRINGS:,} texts: no model has so many")
        found: list[bytes] = []
        add, length_at = found.append, U64.unpack_from
        buffer, at = self._buffer, self.position
        for _ in range(count):
            if at + 8 > len(buffer):
                buffer = self._fill(at + 8, what)
            end = at + 8 + length_at(buffer, at)[0]
            if end > len(buffer):
                buffer = self._fill(end, what)
            if keep:
                add(buffer[at + 8 : end])
            at = end
        self.position = at
        return found

    def _fill(self, end: int, what: str) -> bytes:
        """Return the buffer, which has the bytes up to `end` now."""
        if end > len(self._buffer):
            self.require_bytes(end - self.position, what)
            # Doubling the buffer bounds the number of copies.
            size = max(end, min(2 * len(self._buffer), MAX_HEADER_BYTES), BLOCK_BYTES)
            self._buffer += self._file.read(size - len(self._buffer))
            if len(self._buffer) < end:  # the file became shorter while it was read
                self.size = len(self._buffer)
                self.require_bytes(end - self.position, what)
        return self._buffer


def read_header(path: Path, keep: Callable[[str, int], bool] = lambda _key, _count: True) -> GGUFHeader:
    """Read a header in bounded time and memory. keep: decides by key and length whether an array is read.
    Raises ModelError for a file that is no GGUF file or is damaged."""
    with open_regular_file(path) as file:
        try:
            size = file.seek(0, 2)
            file.seek(0)
            return _read(path, Cursor(file, size), keep)
        except (InvalidFile, OSError) as error:
            reason = os_error_reason(error) if isinstance(error, OSError) else str(error)
            raise ModelError(f"{path}: {reason}") from error


def _read(path: Path, cursor: Cursor, keep: Callable[[str, int], bool]) -> GGUFHeader:
    if cursor.size < 4 or cursor.take(4, "the magic") != b"GGUF":
        raise InvalidFile("is not a GGUF file: fetch it again, or convert the model to GGUF first")
    if (version := cursor.u32("the version")) not in VERSIONS:
        raise InvalidFile(f"is GGUF version {version}, or big-endian: convert the model anew to version 3")
    n_tensors, n_keys = cursor.u64("the number of tensors"), cursor.u64("the number of keys")
    if n_keys > MAX_KEYS or n_tensors > MAX_TENSORS:
        raise InvalidFile(f"claims {n_keys:,} keys and {n_tensors:,} tensors: no model has so many")
    metadata: dict[str, Value] = {}
    spans: dict[str, tuple[int, int]] = {}
    for _ in range(n_keys):
        start = cursor.position
        key = cursor.string("a key")
        metadata[key] = _value(cursor, key, cursor.u32(_shown(key)), keep)
        spans[key] = start, cursor.position
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise InvalidFile(f"its alignment is {_shown(alignment)}, which is no power of two")
    tensors = tuple(_tensor(cursor) for _ in range(n_tensors))
    data = -(-cursor.position // alignment) * alignment
    for tensor in tensors:
        if (over := data + tensor.offset + tensor.length - cursor.size) > 0:
            where = f"tensor {_shown(tensor.name)} ends {over:,} bytes after the end of the file"
            raise InvalidFile(f"{where}: it was not downloaded whole, fetch it again")
    return GGUFHeader(path, metadata, spans, tensors, alignment, data, cursor.size)


def _value(cursor: Cursor, key: str, kind: int, keep: Callable[[str, int], bool]) -> Value:
    what, is_array, count = _shown(key), kind == ARRAY, 1
    if is_array:
        kind, count = cursor.u32(what), cursor.u64(what)
    if kind != STRING and kind not in NUMBERS:
        raise InvalidFile(f"{what} is of type {kind}, which llama.cpp does not load")
    wanted = not is_array or keep(key, count)
    value: Any
    if kind == STRING:
        value = cursor.strings(count, what, wanted) if is_array else cursor.string(what)
    else:
        numbers = np.frombuffer(cursor.take(count * NUMBERS[kind].itemsize, what), NUMBERS[kind])
        numbers = numbers.astype(bool) if kind == BOOL else numbers
        value = numbers if is_array else numbers[0].item()
    return value if wanted else SkippedArray(count)


def _tensor(cursor: Cursor) -> TensorInfo:
    name = cursor.string("a tensor's name")
    what = f"tensor {_shown(name)}"
    n_dims = cursor.u32(what)
    if n_dims > MAX_DIMS:
        raise InvalidFile(f"{what} has {n_dims:,} dimensions; there are {MAX_DIMS} at most")
    shape = struct.unpack(f"<{n_dims}Q", cursor.take(8 * n_dims, what))
    kind, offset = cursor.u32(what), cursor.u64(what)
    sizes = (*shape, math.prod(shape))
    if kind not in TYPES or (shape[0] if shape else 1) % TYPES[kind][0] or max(sizes) >> 63:
        raise InvalidFile(f"{what} of type {kind} cannot have the shape {shape}, or is of an unknown type")
    return TensorInfo(name, shape, kind, offset)


def _shown(value: Value) -> str:
    """Return a value for a message, on one line and truncated."""
    return repr(value[:80] if isinstance(value, str) else value)[:100]
