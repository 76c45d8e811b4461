"""A GGUF reader for untrusted files: every count is checked against the bytes in the file.

gguf.GGUFReader maps the whole file and trusts its counts. This reader rejects sizes that no model needs and
weights outside of the file; llama.cpp rejects more (ggml/src/gguf.cpp).
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import numpy as np

from paceline.models.headers.plain_file import open_regular_file, os_error_reason
from paceline.speculative.errors import ModelError

# The largest header known, Gemma 4's, has 16 MB, and 800,000 strings.
MAX_HEADER_BYTES = 64 << 20
MAX_STRINGS = 2 << 20

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
ROLE = re.compile(r"tokenizer\.ggml\.(.*)_token_id", re.DOTALL)
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
    """A tensor's entry. shape: fastest dimension first. type: ggml's number. offset: from GGUFFile.data."""

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


class InvalidFile(Exception):  # noqa: N818  # becomes a ModelError that names the file
    pass


class Cursor:
    """A position in the bytes of a file, of which no more than MAX_HEADER_BYTES are read."""

    def __init__(self, data: bytes | mmap) -> None:
        self.position, self.size = 0, len(data)
        self._data, self._strings = data, 0

    def take(self, size: int, what: str) -> bytes:
        start, self.position = self.position, self._within(self.position + size, what)
        return self._data[start : self.position]

    def u32(self, what: str) -> int:
        return int(U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(U64.unpack(self.take(8, what))[0])

    def string(self, what: str) -> str:
        """Read a text; llama.cpp accepts invalid UTF-8, too."""
        return self.take(self.u64(what), what).decode("utf-8", "replace")

    def strings(self, count: int, what: str, keep: bool) -> list[bytes]:
        """Read `count` strings. This is the hot loop: a vocabulary with its merges has half a million."""
        self._strings += count
        if self._strings > MAX_STRINGS:
            raise InvalidFile(f"{what} makes more than {MAX_STRINGS:,} texts: no model has so many")
        found, data, end = list[bytes](), self._data, self.position
        limit, length_at = min(self.size, MAX_HEADER_BYTES), U64.unpack_from
        for _ in range(count):
            start = self._within(end + 8, what) if end + 8 > limit else end + 8
            end = start + length_at(data, start - 8)[0]
            if end > limit:
                self._within(end, what)
            if keep:
                found.append(data[start:end])
        self.position = end
        return found

    def _within(self, end: int, what: str) -> int:
        """Return a position. Raises InvalidFile if it is beyond the end."""
        if end > (limit := min(self.size, MAX_HEADER_BYTES)):
            raise InvalidFile(
                f"{what} ends at byte {end:,} of {limit:,}: the file is damaged or was not downloaded whole, "
                f"fetch it again; no model has a header of {MAX_HEADER_BYTES >> 20} MiB"
            )
        return end


class GGUFFile:
    """A GGUF file: the header in memory, read in bounded time and memory, and the weights mapped.

    keep: decides by key and length whether an array is read; by default none is. values: the metadata.
    data: offset of the weights. size: of the file. Raises ModelError for a file that is no GGUF file or is
    damaged. The methods return a value of the metadata, or a default if it is absent; they raise ModelError
    for a value of another type."""

    def __init__(self, path: Path, keep: Callable[[str, int], bool] = lambda _key, _count: False) -> None:
        self.path = path
        self.values: dict[str, Value] = {}
        self._spans: dict[str, tuple[int, int]] = {}  # of each raw field
        with open_regular_file(path) as file:
            try:
                size = os.fstat(file.fileno()).st_size  # an empty file cannot be mapped
                with mmap(file.fileno(), 0, access=ACCESS_READ) if size else nullcontext(b"") as data:
                    self._read(Cursor(data), keep)
            except (InvalidFile, OSError) as error:
                reason = os_error_reason(error) if isinstance(error, OSError) else str(error)
                raise ModelError(f"{path}: {reason}") from error

    def _read(self, cursor: Cursor, keep: Callable[[str, int], bool]) -> None:
        if cursor.size < 4 or cursor.take(4, "the magic") != b"GGUF":
            raise InvalidFile("is not a GGUF file: fetch it again, or convert the model to GGUF first")
        if (version := cursor.u32("the version")) not in VERSIONS:
            raise InvalidFile(
                f"is GGUF version {version}, or big-endian: convert the model anew to version 3"
            )
        n_tensors, n_keys = cursor.u64("the number of tensors"), cursor.u64("the number of keys")
        if n_keys > MAX_KEYS or n_tensors > MAX_TENSORS:
            raise InvalidFile(f"claims {n_keys:,} keys and {n_tensors:,} tensors: no model has so many")
        for _ in range(n_keys):
            start = cursor.position
            key = cursor.string("a key")
            self.values[key] = _value(cursor, key, cursor.u32(_shown(key)), keep)
            self._spans[key] = start, cursor.position
        alignment = self.values.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise InvalidFile(f"its alignment is {_shown(alignment)}, which is no power of two")
        tensors = [_tensor(cursor) for _ in range(n_tensors)]
        self.tensors = {tensor.name: tensor for tensor in tensors}
        self.alignment, self.size = alignment, cursor.size
        self.data = -(-cursor.position // alignment) * alignment
        for tensor in tensors:
            if (over := self.data + tensor.offset + tensor.length - self.size) > 0:
                where = f"tensor {_shown(tensor.name)} ends {over:,} bytes after the end of the file"
                raise InvalidFile(f"{where}: it was not downloaded whole, fetch it again")

    @cached_property
    def fields(self) -> dict[str, bytes]:
        """The raw bytes of each key."""
        with self.path.open("rb") as file:
            raw = file.read(self.data)
        return {key: raw[start:end] for key, (start, end) in self._spans.items()}

    def weights(self, tensor: TensorInfo) -> np.ndarray[Any, Any]:
        """Return the tensor's bytes, mapped into memory."""
        if not tensor.length:
            return np.empty(0, np.uint8)
        return np.memmap(self.path, np.uint8, "r", self.data + tensor.offset, (tensor.length,))

    def special_tokens(self, size: int) -> dict[str, int]:
        """Return the ids of the tokens with a role: bos, eos, eot, padding, fim_pre, ..."""
        found = {match[1]: value for key, value in self.values.items() if (match := ROLE.fullmatch(key))}
        return {role: id_ for role, id_ in found.items() if isinstance(id_, int) and 0 <= id_ < size}

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
        value = self.values.get(key, default)
        if key in self.values and not (isinstance(value, kind) and valid(value)):
            raise ModelError(f"{self.path}: its {key!r} is not {wanted}: it is damaged, fetch it again")
        return value


def _is_natural(value: int | np.ndarray[Any, Any] | SkippedArray) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "iub" and value.min(initial=0) >= 0
    return isinstance(value, SkippedArray) or (type(value) is int and value >= 0)


class TensorRows:
    """A tensor that is read row by row as float32; a vector has rows of one number, and the rows of experts
    follow one another.
    size: rows. width: numbers in a row. Raises ModelError for an unsupported type of weights."""

    def __init__(self, file: GGUFFile, tensor: TensorInfo) -> None:
        import gguf

        self.name, self.dims = tensor.name, tensor.shape[:-1]
        self.size = math.prod(tensor.shape[1:]) if self.dims else tensor.shape[0]
        self.width = tensor.shape[0] if self.dims else 1
        elements, size = TYPES[tensor.type]
        try:
            self._data = file.weights(tensor).reshape(self.size, self.width // elements * size)
            self.type = gguf.GGMLQuantizationType(tensor.type)
            self.rows(np.zeros(1, np.int64))
        except (ValueError, NotImplementedError) as error:
            why = f"{tensor.name} has weights of type {tensor.type}, which cannot be read here"
            raise ModelError(f"{file.path}: {why}; take the model as F16 or Q8_0") from error

    def rows(self, ids: np.ndarray[Any, Any] | slice) -> np.ndarray[Any, Any]:
        """Return the rows as an array [len(ids), width]."""
        import gguf

        return np.asarray(gguf.quants.dequantize(self._data[ids], self.type), np.float32)


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
