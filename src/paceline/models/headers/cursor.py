"""A forward reader for the header of an untrusted file, with fixed limits."""

from __future__ import annotations

import struct
from typing import BinaryIO

# The largest header known, Gemma 4's, has 16 MB, and 800,000 strings.
MAX_HEADER_BYTES = 64 << 20
MAX_STRINGS = 2 << 20
BLOCK_BYTES = 1 << 20

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")


class InvalidFile(Exception):  # noqa: N818  # becomes a ModelError that names the file
    pass


class Cursor:
    """A position in a header, whose bytes are read into a growing buffer."""

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
