"""A file that was made to fill the memory of who reads its header does not."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from paceline.models.headers.gguf_file import STRING
from raw_gguf import ARCH, ARRAY, BOOL, I32, U32, key, tensor, text

pytestmark = pytest.mark.slow
# Linux's `ru_maxrss` begins with what the process had that started this one.
MEASURE = """
import resource
import sys
from pathlib import Path
from paceline.speculative.errors import ModelError
from paceline.models.headers.header import read_model_facts
from paceline.models.headers.gguf_file import GGUFFile
for reader in (read_model_facts, lambda path: GGUFFile(Path(path), lambda *_: True)):
    try:
        reader(sys.argv[1])
    except ModelError as error:
        print(error)
if sys.platform == "linux":
    print(int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) >> 10)
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 20)
"""
Write = Callable[[BinaryIO], None]
ROOM = 240 << 20
LIMIT = 512  # MiB; broken UTF-8 takes four bytes of memory for each of the 64 MiB that a header may have


def start(file: BinaryIO, n_keys: int, n_tensors: int = 0) -> None:
    file.write(b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_keys) + ARCH)


def claim(name: str, kind: int, count: int, values: bytes = b"", room: int = ROOM) -> Write:
    """A list of so many values, of which these are there, and then zeros."""

    def write(file: BinaryIO) -> None:
        start(file, 2)
        file.write(key(name, ARRAY, struct.pack("<IQ", kind, count)) + values)
        file.truncate(file.tell() + room)

    return write


def texts_that_grow(file: BinaryIO) -> None:
    """Broken UTF-8, of which each byte becomes a character of two or four."""
    n = ROOM >> 22
    start(file, n + 1)
    for i in range(n):
        file.write(key(f"k{i}", STRING, text("\U0001f642".encode() + b"\xff" * ((4 << 20) - 4))))


def many_keys(file: BinaryIO) -> None:
    start(file, 65_000)
    for i in range(64_999):
        file.write(key(f"{i:03700}", U32, bytes(4)))


def many_lists(file: BinaryIO) -> None:
    start(file, 65_000)
    for i in range(64_999):
        file.write(key(f"{i}", ARRAY, struct.pack("<IQ", I32, 900) + bytes(3600)))


def many_tensors(file: BinaryIO) -> None:
    start(file, 1, 65_000)
    for i in range(65_000):
        file.write(tensor(f"{i:063}", (1 << 40, 1, 1, 0)))


TINY_TOKENS = b"\1\0\0\0\0\0\0\0a" * (4 << 20)
SHAPES: dict[str, Write] = {
    "one list of numbers": claim("k", I32, ROOM // 4),
    "flags": claim("k", BOOL, ROOM),
    "token types": claim("tokenizer.ggml.token_type", I32, 4 << 20),
    "tiny tokens": claim("tokenizer.ggml.tokens", STRING, 4 << 20, TINY_TOKENS, 0),
    "a long token": claim("tokenizer.ggml.tokens", STRING, 1, struct.pack("<Q", ROOM)),
    "a long merge": claim("tokenizer.ggml.merges", STRING, 1, struct.pack("<Q", ROOM)),
    **{made.__name__: made for made in (texts_that_grow, many_keys, many_lists, many_tensors)},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_reading_a_header_takes_little_memory_whatever_it_claims(tmp_path: Path, shape: str) -> None:
    pytest.importorskip("resource")
    path = tmp_path / "crafted.gguf"
    with path.open("wb") as file:
        SHAPES[shape](file)
    code: list[Any] = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}{MEASURE}", path]
    done = subprocess.run(code, capture_output=True, text=True, check=True, timeout=300)
    path.unlink()
    peak = int(done.stdout.splitlines()[-1])
    assert 20 < peak < LIMIT, done.stdout
