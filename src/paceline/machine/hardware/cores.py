"""The processors that this process may run on: which share a physical core, which are slower by design, and
where they stand."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from paceline.machine.hardware.files import Files

CPU = "/sys/devices/system/cpu"
PERFORMANCE, EFFICIENCY = "performance", "efficiency"
# Of the fastest one's capacity or highest frequency. Performance cores that differ among themselves (a
# favoured one turns up a little higher) lie above it, efficiency cores and compact ones below.
SLOW = 0.75

Sysctl = Callable[[str], int | None]


@dataclass(frozen=True)
class Cpu:
    """A processor as the system counts them. core: equal for those that share a physical core. package: the
    socket. kind: PERFORMANCE or EFFICIENCY."""

    number: int
    core: int
    package: int = 0
    kind: str = PERFORMANCE


@dataclass(frozen=True)
class Cores:
    """Of the whole machine, and which of it this process may use. known: False where it was counted only, and
    not read which processor is what."""

    cpus: tuple[Cpu, ...]
    allowed: frozenset[int]
    known: bool = True

    @property
    def usable(self) -> tuple[Cpu, ...]:
        return tuple(cpu for cpu in self.cpus if cpu.number in self.allowed)

    @property
    def logical(self) -> int:
        return len(self.usable)

    @property
    def physical(self) -> int:
        return len({cpu.core for cpu in self.usable})

    @property
    def smt(self) -> bool:
        """Whether some of them share a core."""
        return self.physical < self.logical

    @property
    def sockets(self) -> int:
        return len({cpu.package for cpu in self.usable})

    def of_kind(self, kind: str) -> int:
        """Physical cores."""
        return len({cpu.core for cpu in self.usable if cpu.kind == kind})


def allowed_here() -> frozenset[int] | None:
    """What this process's affinity says; None on systems that have none."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return None


def read(
    files: Files, allowed: frozenset[int] | None, system: str = "", sysctl: Sysctl | None = None
) -> Cores:
    """allowed: see `allowed_here`; None for all there are. system: platform.system(), for tests. What cannot
    be read is noted in `files`, and counted by psutil instead."""
    system = system or platform.system()
    if system == "Linux" and (cores := _linux(files, allowed)) is not None:
        return cores
    if system == "Darwin" and (cores := _apple(sysctl or _sysctl)) is not None:
        return cores
    return _counted(allowed)


def _linux(files: Files, allowed: frozenset[int] | None) -> Cores | None:
    online = files.cpus(f"{CPU}/online")
    numbers = [int(name[3:]) for name in files.names(CPU, "cpu")]
    numbers = [n for n in numbers if online is None or n in online]
    if not numbers:
        files.miss("cores", f"{CPU}/online")
        return None
    usable = frozenset(numbers) if allowed is None else frozenset(numbers) & allowed
    if not usable:  # a sandbox that shows another machine's
        files.unread.append(f"cores: {CPU} has none of those that this process may use")
        return None
    ids = {n: _core(files, n, numbers) for n in numbers}
    if None in ids.values():
        files.miss("which processors share a core", f"{CPU}/cpu{numbers[0]}/topology/thread_siblings_list")
    slow = _slow(files, numbers)
    cpus = [
        Cpu(
            number=n,
            core=n if (core := ids[n]) is None else core,
            package=max(0, files.number(f"{CPU}/cpu{n}/topology/physical_package_id") or 0),
            kind=EFFICIENCY if n in slow else PERFORMANCE,
        )
        for n in numbers
    ]
    return Cores(tuple(cpus), usable)


def _core(files: Files, n: int, numbers: list[int]) -> int | None:
    """The lowest number among those that share its core."""
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second is the older one
        siblings = files.cpus(f"{CPU}/cpu{n}/topology/{name}")
        if siblings and n in siblings:
            return min(siblings & set(numbers))
    return None


def _slow(files: Files, numbers: list[int]) -> frozenset[int]:
    """Efficiency cores: as the kernel names them (Intel), or by their capacity (Arm), or by frequency."""
    atoms, cores = files.cpus("/sys/devices/cpu_atom/cpus"), files.cpus("/sys/devices/cpu_core/cpus")
    if atoms and cores:
        return atoms - cores
    for path in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        found = {n: files.number(f"{CPU}/cpu{n}/{path}") for n in numbers}
        speeds = {n: speed for n, speed in found.items() if speed is not None and speed > 0}
        if len(speeds) == len(numbers) and len(set(speeds.values())) > 1:
            return frozenset(n for n, speed in speeds.items() if speed < SLOW * max(speeds.values()))
    return frozenset()


def _apple(sysctl: Sysctl) -> Cores | None:
    """The fastest level is the first; no process can be kept to some of them."""
    levels = sysctl("hw.nperflevels") or 0
    counts = [sysctl(f"hw.perflevel{level}.physicalcpu") for level in range(min(levels, 8))]
    kinds = [
        PERFORMANCE if level == 0 else EFFICIENCY
        for level, count in enumerate(counts)
        for _ in range(count or 0)
    ]
    cpus = tuple(Cpu(n, n, kind=kind) for n, kind in enumerate(kinds))
    return Cores(cpus, frozenset(range(len(cpus)))) if cpus else None


def _sysctl(name: str) -> int | None:
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], capture_output=True, timeout=5, check=True, text=True
        )
        return int(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _counted(allowed: frozenset[int] | None) -> Cores:
    """Without a word on which processor is what. Those of one core are taken to follow each other."""
    import psutil

    logical = os.cpu_count() or 1
    numbers = sorted(allowed) if allowed else list(range(logical))
    try:
        physical = psutil.cpu_count(logical=False) or logical
    except OSError:
        physical = logical
    physical = min(physical, logical)
    cpus = tuple(Cpu(n, n * physical // logical) for n in range(max(logical, numbers[-1] + 1)))
    return Cores(cpus, frozenset(numbers), known=False)
