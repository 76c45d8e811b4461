"""Read small system files (/sys, /proc) below any root, and the limits of control groups (version 2), as this
process sees them; tests use recorded trees."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

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


GROUPS, MOUNTS = "/proc/self/cgroup", "/proc/self/mountinfo"


@dataclass(frozen=True)
class Limits:
    """The limits of control groups; None is no limit.
    known: True if there are control groups. cpus: the quota in processors. cpuset: usable processors.
    memory: bytes."""

    known: bool = False
    cpus: float | None = None
    cpuset: frozenset[int] | None = None
    memory: int | None = None


def read_limits(files: SystemFiles) -> Limits:
    """Return the tightest limit of each kind, of the process's group and of the groups above it."""
    folders = _folders(files)
    quotas = [quota for folder in folders if (quota := _quota(files, folder))]
    sets = [files.cpus(f"{folder}/cpuset.cpus.effective") for folder in folders]
    names = ("memory.max", "memory.high")
    memories = [files.number(f"{folder}/{name}") for folder in folders for name in names]
    if not folders:
        files.note_read_error("container limits", MOUNTS)
    return Limits(
        known=bool(folders),
        cpus=min(quotas, default=None),
        cpuset=min((cpus for cpus in sets if cpus), key=len, default=None),
        memory=min(filter(None, memories), default=None),
    )


def _folders(files: SystemFiles) -> list[str]:
    """Return the visible folders of the process's group and of the groups above it.
    A container without a cgroup namespace has the host's name of its group, but sees only the end of it."""
    groups, mounts = ((files.text(path) or "").splitlines() for path in (GROUPS, MOUNTS))
    group = next((line.removeprefix("0::") for line in groups if line.startswith("0::")), None)
    fields = [line.split() for line in mounts if line.partition(" - ")[2].startswith("cgroup2 ")]
    if group is None or not fields or len(fields[0]) < 7:
        return []
    root, place = fields[0][3:5]  # the group that is mounted, and where
    path = PurePosixPath(group)
    if ".." in path.parts:  # a sibling group, whose parents are invisible
        path = PurePosixPath("/")
    if root != "/":
        path = "/" / path.relative_to(root) if path.is_relative_to(root) else PurePosixPath("/")
    return [f"{place}{one}".rstrip("/") for one in (path, *path.parents)]


def _quota(files: SystemFiles, folder: str) -> float | None:
    """Return the processors' worth of time of cpu.max: "150000 100000", or "max 100000"."""
    quota, _, period = (files.text(f"{folder}/cpu.max") or "").partition(" ")
    time, every = parse_nonnegative(quota), parse_nonnegative(period.strip())
    return time / every if time and every else None
