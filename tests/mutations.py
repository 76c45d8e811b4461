"""A model file with one thing wrong, over and over: every key and every kind of tensor of a good one.

A mutant that is honest is laid out anew, so that nothing but the changed thing is wrong with it; others lie
about sizes and places."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.models.headers.gguf_header import ARRAY, NUMBERS, STRING, TYPES
from raw_gguf import array, key, tensor, text

U8, U16, I16, U32, I32, F32, U64, I64, F64 = 0, 2, 3, 4, 5, 6, 10, 11, 12
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
FLOATS = (0.0, 1.0, -1.0, -1e-5, 1e-30, 1e30, float("nan"), float("inf"), float("-inf"))
Mutant = tuple[str, bytes]


@dataclass(frozen=True)
class Weights:
    name: str
    dims: tuple[int, ...]
    type: int
    data: bytes = b""

    @property
    def size(self) -> int:
        """Size in bytes, by shape and type."""
        elements, size = TYPES.get(self.type, (1, 4))
        n = 1
        for dim in self.dims:
            n *= dim
        return n // elements * size


@dataclass(frozen=True)
class Model:
    """fields: key to type and value, as the file has them."""

    fields: tuple[tuple[str, int, bytes], ...]
    tensors: tuple[Weights, ...]
    alignment: int = 32

    @staticmethod
    def read(path: Path) -> Model:
        """Read a valid file."""
        raw = path.read_bytes()
        n_tensors, n_keys = struct.unpack_from("<QQ", raw, 8)
        at, fields = 24, []
        for _ in range(n_keys):
            name, at = _string(raw, at)
            kind = struct.unpack_from("<I", raw, at)[0]
            end = _after(raw, at + 4, kind)
            fields.append((name.decode(), kind, raw[at + 4 : end]))
            at = end
        infos = []
        for _ in range(n_tensors):
            name, at = _string(raw, at)
            n_dims = struct.unpack_from("<I", raw, at)[0]
            *dims, kind, offset = struct.unpack_from(f"<{n_dims}QIQ", raw, at + 4)
            at += 4 + 8 * n_dims + 12
            infos.append((Weights(name.decode(), tuple(dims), kind), offset))
        start = at + -at % 32
        tensors = [
            replace(one, data=raw[start + offset : start + offset + one.size]) for one, offset in infos
        ]
        return Model(tuple(fields), tuple(tensors))

    def write(self, offsets: Callable[[int, int], int] = lambda i, offset: offset) -> bytes:
        """offsets: of a tensor's number and its place, the place that is claimed."""
        infos, data, place = [], [], 0
        for i, one in enumerate(self.tensors):
            infos.append(tensor(one.name, one.dims, one.type, offsets(i, place)))
            size = min(one.size, 1 << 24)
            body = one.data[:size].ljust(size, b"\0")
            data.append(body + bytes(-len(body) % self.alignment))
            place += len(data[-1])
        fields = [key(name, kind, value) for name, kind, value in self.fields]
        head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(fields)) + b"".join((*fields, *infos))
        return head + bytes(-len(head) % self.alignment) + b"".join(data)

    def having(self, name: str, kind: int, value: bytes) -> Model:
        field = (name, kind, value)
        if all(known != name for known, _, _ in self.fields):
            return replace(self, fields=(*self.fields, field))
        return replace(self, fields=tuple(field if known[0] == name else known for known in self.fields))

    def without(self, name: str) -> Model:
        return replace(self, fields=tuple(field for field in self.fields if field[0] != name))

    def number(self, name: str) -> int:
        kind, value = next((kind, value) for known, kind, value in self.fields if known == name)
        return int(struct.unpack("<" + FORMATS[kind], value)[0])

    def swapped(self, index: int, *others: Weights) -> Model:
        """Return the model with the tensor at `index` replaced by others."""
        return replace(self, tensors=(*self.tensors[:index], *others, *self.tensors[index + 1 :]))


def _string(raw: bytes, at: int) -> tuple[bytes, int]:
    end = at + 8 + struct.unpack_from("<Q", raw, at)[0]
    return raw[at + 8 : end], end


def _after(raw: bytes, at: int, kind: int) -> int:
    if kind == STRING:
        return _string(raw, at)[1]
    if kind != ARRAY:
        return at + NUMBERS[kind].itemsize
    inner, count = struct.unpack_from("<IQ", raw, at)
    at += 12
    if inner != STRING:
        return int(at + count * NUMBERS[inner].itemsize)
    for _ in range(count):
        at = _string(raw, at)[1]
    return at


def texts(values: Sequence[bytes]) -> bytes:
    return array(STRING, len(values), b"".join(map(text, values)))


def strings(value: bytes) -> list[bytes]:
    """Return the elements of an array of strings from its bytes in a field."""
    at, found = 12, []
    for _ in range(struct.unpack_from("<Q", value, 4)[0]):
        one, at = _string(value, at)
        found.append(one)
    return found
