"""GGUF headers spelled byte by byte, so that they can lie."""

from __future__ import annotations

import struct
from collections.abc import Sequence

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


def text(said: str | bytes, length: int | None = None) -> bytes:
    """length: what it claims to have."""
    raw = said.encode() if isinstance(said, str) else said
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + values


def tensor(
    name: str | bytes, shape: Sequence[int], kind: int = 0, offset: int = 0, dims: int | None = None
) -> bytes:
    n_dims = len(shape) if dims is None else dims
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", n_dims, *shape, kind, offset)


ARCH = key("general.architecture", STRING, text("llama"))


def gguf(
    keys: Sequence[bytes] = (ARCH,),
    tensors: Sequence[bytes] = (),
    *,
    version: int = 3,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    weights: int = 0,
    alignment: int = 32,
) -> bytes:
    """n_keys, n_tensors: what the file claims. weights: bytes behind the header."""
    counts = (len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys)
    head = b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % alignment + weights) if weights else head
