"""Reading a file that may lie about itself: forward, in blocks, and never more than it has."""

from __future__ import annotations

import struct
from typing import BinaryIO

# The largest header known, Gemma 4's, has 16 MB, and 800,000 strings.
MAX_HEADER = 256 << 20
MAX_STRINGS = 4 << 20
MAX_KEPT = 128 << 20  # bytes of memory for what is wanted of it
OBJECT = 64  # bytes that Python takes for a text besides its own, with its place in a list
BLOCK = 1 << 20

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")


class Refused(Exception):  # noqa: N818  # becomes a ModelError that names the file
    pass


class Cursor:
    """Reads forward, a block at a time, and only what the file has."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.size = size
        self._file = file
        self._buffer = b""
        self._start = 0  # of the buffer, in the file
        self._at = 0  # in the buffer
        self._strings = 0
        self._kept = 0

    @property
    def position(self) -> int:
        return self._start + self._at

    @property
    def left(self) -> int:
        return self.size - self.position

    def claim(self, size: int, what: str) -> None:
        """That there are so many bytes yet, and no more than a header has."""
        if size > self.left:
            raise Refused(
                f"{what} needs {size:,} bytes and the file has {self.left:,} left: it is damaged or was not "
                "downloaded whole, fetch it again"
            )
        if self.position + size > MAX_HEADER:
            raise Refused(
                f"{what} makes the header larger than {MAX_HEADER >> 20} MiB: no model has such a one"
            )

    def keep(self, size: int, what: str) -> None:
        """That there is room in memory for so many bytes more."""
        self._kept += size
        if self._kept > MAX_KEPT:
            raise Refused(f"{what} makes more than {MAX_KEPT >> 20} MiB to keep: no model has so much")

    def take(self, size: int, what: str) -> bytes:
        self._fill(size, what)
        taken = self._buffer[self._at : self._at + size]
        self._at += size
        return taken

    def skip(self, size: int, what: str) -> None:
        self.claim(size, what)
        if self._at + size > len(self._buffer):
            self._start, self._at, self._buffer = self.position + size, 0, b""
            self._file.seek(self._start)
        else:
            self._at += size

    def u32(self, what: str) -> int:
        return int(U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(U64.unpack(self.take(8, what))[0])

    def string(self, limit: int, what: str) -> bytes:
        size = self.u64(what)
        self.claim(size, what)
        if size > limit:
            raise Refused(f"{what} is a text of {size:,} bytes: no model has such a one")
        return self.take(size, what)

    def strings(self, count: int, what: str, keep: bool) -> list[bytes]:
        """The hot loop: a vocabulary with its merges is half a million strings."""
        self.claim(8 * count, what)
        self._strings += count
        if self._strings > MAX_STRINGS:
            raise Refused(f"{what} makes more than {MAX_STRINGS:,} texts: no model has so many")
        if keep:
            self.keep(OBJECT * count, what)
        counted = self.position
        found: list[bytes] = []
        add, length_at = found.append, U64.unpack_from
        buffer, at, edge = self._buffer, self._at, len(self._buffer)
        for _ in range(count):
            if at + 8 > edge:
                self._at = at
                self._fill(8, what)
                buffer, at, edge = self._buffer, self._at, len(self._buffer)
            end = at + 8 + length_at(buffer, at)[0]
            if end > edge:
                self._at = at
                self.claim(end - at, what)
                if keep:
                    self.keep(self.position + end - at - counted, what)
                    counted = self.position + end - at
                elif end - at > BLOCK:
                    self.skip(end - at, what)
                    buffer, at, edge = self._buffer, self._at, len(self._buffer)
                    continue
                self._fill(end - at, what)
                end, at = end - at + self._at, self._at
                buffer, edge = self._buffer, len(self._buffer)
            if keep:
                add(buffer[at + 8 : end])
            at = end
        self._at = at
        return found

    def _fill(self, size: int, what: str) -> None:
        """At least so many bytes ahead of the cursor."""
        if self._at + size <= len(self._buffer):
            return
        self.claim(size, what)
        rest = self._buffer[self._at :]
        self._start, self._at = self.position, 0
        self._buffer = rest + self._file.read(max(size - len(rest), BLOCK))
        if len(self._buffer) < size:
            raise Refused("became shorter while it was read: fetch it again")
