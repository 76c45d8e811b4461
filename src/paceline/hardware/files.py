"""Read small system files (/sys, /proc) below any root; tests use recorded trees."""

from __future__ import annotations

from pathlib import Path

MOST = 4 << 20  # bytes of one file: /proc/cpuinfo of 512 processors is about 1 MB
MOST_CPUS = 1 << 16
DIGITS = 20  # numbers of fewer digits fit into 64 bits


class SystemFiles:
    """System files below a root. read_errors: a line for each unreadable file."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.read_errors: list[str] = []

    def text(self, path: str) -> str | None:
        """Return the stripped text of a file; None if it cannot be read."""
        try:
            with (self.root / path.lstrip("/")).open("rb") as file:
                return file.read(MOST).decode("utf-8", "replace").strip("\0 \t\r\n")
        except (OSError, ValueError):
            return None

    def number(self, path: str) -> int | None:
        return parse_nonnegative(self.text(path) or "")

    def names(self, folder: str, prefix: str) -> list[str]:
        """Return the entries of a folder named prefix + number, in the order of the numbers."""
        try:
            found = [entry.name for entry in (self.root / folder.lstrip("/")).iterdir()]
        except OSError:
            return []
        ours = [name for name in found if name.startswith(prefix) and name[len(prefix) :].isdecimal()]
        return sorted(ours, key=lambda name: int(name[len(prefix) :]))

    def cpus(self, path: str) -> frozenset[int] | None:
        """Return the processors of a file with a list such as 0-3,8."""
        text = self.text(path)
        return None if text is None else cpu_list(text)

    def note_read_error(self, what: str, path: str) -> None:
        """Note that `path`, the source of `what`, is missing or unusable."""
        exists = (self.root / path.lstrip("/")).exists()
        self.read_errors.append(f"{what}: {path} {'cannot be used' if exists else 'is not there'}")


def parse_nonnegative(text: str) -> int | None:
    """Return a number of at most 64 bits; None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < DIGITS else None


def cpu_list(text: str) -> frozenset[int] | None:
    """Return the processors of a list in the kernel's form; None for any other text."""
    found: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = part.partition("-")
        low, high = parse_nonnegative(first), parse_nonnegative(last if dash else first)
        if low is None or high is None or not low <= high < MOST_CPUS:
            return None
        found.update(range(low, high + 1))
    return frozenset(found)
