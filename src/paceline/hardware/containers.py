"""What a container may use of its machine: control groups, version 2 and 1, as the process sees them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from paceline.hardware.files import SystemFiles, whole

GROUPS, MOUNTS = "/proc/self/cgroup", "/proc/self/mountinfo"
UNLIMITED = 1 << 60  # bytes: version 1 writes a number near 2^63 where there is no limit
MARKS = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}


@dataclass(frozen=True)
class Limits:
    """version: of the control groups, 0 where there are none. cpus: processors' worth of time (a quota of 1.5
    is 150 ms in every 100 ms); period: seconds; cpuset: processors it may run on; memory: bytes. None: no
    limit. container: what it is called, "" where nothing tells. stat: the file that tells of throttling by
    that quota."""

    version: int = 0
    cpus: float | None = None
    period: float | None = None
    cpuset: frozenset[int] | None = None
    memory: int | None = None
    container: str = ""
    stat: str = ""


def read(files: SystemFiles) -> Limits:
    """Return the tightest limit of each kind, of the process's group and of the groups above it."""
    mounts, groups = _mounts(files), _groups(files)
    name = _container(files)
    if groups is None:
        files.miss("container limits", GROUPS)
        return Limits(container=name)
    folders = {kind: _folders(mounts.get(kind), groups[kind]) for kind in groups if kind in mounts}
    quotas: list[tuple[tuple[float, float], str]] = []
    sets, memories = [], []
    for folder in folders.get("", ()):
        quotas += [(quota, folder)] if (quota := _quota2(files, folder)) else []
        sets.append(files.cpus(f"{folder}/cpuset.cpus.effective"))
        memories += [files.number(f"{folder}/{name}") for name in ("memory.max", "memory.high")]
    for folder in folders.get("cpu", ()):
        quotas += [(quota, folder)] if (quota := _quota1(files, folder)) else []
    for folder in folders.get("cpuset", ()):
        sets.append(files.cpus(f"{folder}/cpuset.effective_cpus") or files.cpus(f"{folder}/cpuset.cpus"))
    for folder in folders.get("memory", ()):
        memories.append(files.number(f"{folder}/memory.limit_in_bytes"))
    (cpus, period), holder = min(quotas, default=((None, None), ""))
    if not folders:
        files.miss("container limits", MOUNTS)
    return Limits(
        version=0 if not folders else 1 if {"cpu", "memory", "cpuset"} & set(folders) else 2,
        cpus=cpus,
        period=period,
        cpuset=min((cpus for cpus in sets if cpus), key=len, default=None),
        memory=min((m for m in memories if m is not None and 0 < m < UNLIMITED), default=None),
        container=name,
        # A group is told of its own quota's throttling, and of no other's.
        stat=f"{holder}/cpu.stat" if holder else "",
    )


def throttled(files: SystemFiles, limits: Limits) -> float | None:
    """Return the seconds for which the quota has stopped threads, over all threads; None if unknown."""
    for line in (files.text(limits.stat) or "").splitlines() if limits.stat else ():
        name, _, value = line.partition(" ")
        if (n := whole(value.strip())) is not None:
            if name == "throttled_usec":
                return n / 1e6
            if name == "throttled_time":  # version 1, in nanoseconds
                return n / 1e9
    return None


def _groups(files: SystemFiles) -> dict[str, str] | None:
    """Return the process's group by controller; "" is version 2."""
    text = files.text(GROUPS)
    if text is None:
        return None
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            found |= dict.fromkeys(controllers.split(","), path)
    return found


def _mounts(files: SystemFiles) -> dict[str, tuple[str, str]]:
    """Return the mount point of each controller, and the group that is mounted there."""
    found: dict[str, tuple[str, str]] = {}
    for line in (files.text(MOUNTS) or "").splitlines():
        before, dash, after = line.partition(" - ")
        fields, types = before.split(), after.split()
        if not dash or len(fields) < 5 or len(types) < 3:
            continue
        place = fields[4], fields[3]
        if types[0] == "cgroup2":
            found.setdefault("", place)
        elif types[0] == "cgroup":
            found |= {name: place for name in types[2].split(",") if name not in found}
    return found


def _folders(mount: tuple[str, str] | None, group: str) -> list[str]:
    """Return the visible folders of the group and of the groups above it. A container without a cgroup
    namespace gets the host's name of its group, and sees only the end of that path."""
    if mount is None:
        return []
    place, root = mount
    path = PurePosixPath(group)
    if ".." in path.parts:  # a group beside ours: what holds it cannot be seen
        path = PurePosixPath("/")
    if root != "/" and path.is_relative_to(root):
        path = "/" / path.relative_to(root)
    elif root != "/":
        path = PurePosixPath("/")
    return [f"{place}{one}".rstrip("/") for one in (path, *path.parents)]


def _quota2(files: SystemFiles, folder: str) -> tuple[float, float] | None:
    """cpu.max: "150000 100000", or "max 100000"."""
    quota, _, period = (files.text(f"{folder}/cpu.max") or "").partition(" ")
    return _share(quota, period.strip())


def _quota1(files: SystemFiles, folder: str) -> tuple[float, float] | None:
    quota, period = (files.text(f"{folder}/cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
    return _share(quota, period)


def _share(quota: str, period: str) -> tuple[float, float] | None:
    """Return processors and seconds from two texts of microseconds."""
    time, every = whole(quota), whole(period)
    return (time / every, every / 1e6) if time and every else None


def _container(files: SystemFiles) -> str:
    for mark, name in MARKS.items():
        if (files.root / mark.lstrip("/")).exists():
            return name
    text = files.text(GROUPS) or ""
    return next((name for name in ("kubepods", "docker", "lxc", "libpod") if name in text), "")
