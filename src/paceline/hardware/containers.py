"""The limits of a container: control groups (version 2), as this process sees them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from paceline.hardware.files import SystemFiles, parse_nonnegative

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


def read(files: SystemFiles) -> Limits:
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
