"""The processors that this process may run on, and the processor time that other programs take of them."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass

from paceline.hardware.files import SystemFiles

CPU = "/sys/devices/system/cpu"
USUAL_LOAD = 0.25  # processors that other programs usually keep busy
PERFORMANCE, EFFICIENCY = "performance", "efficiency"


@dataclass(frozen=True)
class Cpu:
    """A logical processor. core: the physical core. package: the socket. kind: PERFORMANCE or EFFICIENCY."""

    number: int
    core: int
    package: int = 0
    kind: str = PERFORMANCE


@dataclass(frozen=True)
class Cores:
    """The processors of the machine, and those that this process may use."""

    cpus: tuple[Cpu, ...]
    allowed: frozenset[int]

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
        """Return True if some processors share a core."""
        return self.physical < self.logical

    @property
    def sockets(self) -> int:
        return len({cpu.package for cpu in self.usable})

    def of_kind(self, kind: str) -> int:
        """Return the number of physical cores of a kind."""
        return len({cpu.core for cpu in self.usable if cpu.kind == kind})


def allowed_here() -> frozenset[int] | None:
    """Return the affinity of this process; None on systems without one."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return None


def read(files: SystemFiles, allowed: frozenset[int] | None, system: str = "") -> Cores:
    """Read the cores from /sys, else count them. allowed: usable processors, None for all."""
    linux = (system or platform.system()) == "Linux"
    cores = _linux(files, allowed) if linux else None
    return _count_cores(allowed) if cores is None else cores


def _linux(files: SystemFiles, allowed: frozenset[int] | None) -> Cores | None:
    online = files.cpus(f"{CPU}/online")
    numbers = [int(name[3:]) for name in files.names(CPU, "cpu")]
    numbers = [n for n in numbers if online is None or n in online]
    if not numbers:
        files.note_read_error("cores", f"{CPU}/online")
        return None
    usable = frozenset(numbers) if allowed is None else frozenset(numbers) & allowed
    if not usable:  # a sandbox may show another machine's /sys
        return None
    lists = {n: files.cpus(f"{CPU}/cpu{n}/topology/thread_siblings_list") for n in numbers}
    siblings = {n: frozenset(numbers).intersection(cpus or ()) for n, cpus in lists.items()}
    if any(n not in siblings[n] for n in numbers):
        path = f"{CPU}/cpu{numbers[0]}/topology/thread_siblings_list"
        files.note_read_error("which processors share a core", path)
    # The kernel names the efficiency cores of Intel's processors.
    atoms, fast = files.cpus("/sys/devices/cpu_atom/cpus"), files.cpus("/sys/devices/cpu_core/cpus")
    slow = atoms - fast if atoms and fast else frozenset()
    cpus = [
        Cpu(
            number=n,
            core=min(siblings[n]) if n in siblings[n] else n,
            package=files.number(f"{CPU}/cpu{n}/topology/physical_package_id") or 0,
            kind=EFFICIENCY if n in slow else PERFORMANCE,
        )
        for n in numbers
    ]
    return Cores(tuple(cpus), usable)


def _count_cores(allowed: frozenset[int] | None) -> Cores:
    """Count the processors, and assume that those of one core are adjacent."""
    import psutil

    logical = os.cpu_count() or 1
    numbers = sorted(allowed) if allowed else list(range(logical))
    physical = min(psutil.cpu_count(logical=False) or logical, logical)
    cpus = tuple(Cpu(n, n * physical // logical) for n in range(max(logical, numbers[-1] + 1)))
    return Cores(cpus, frozenset(numbers))


def cores_taken(others: float, threads: int, logical: int, limit: float = USUAL_LOAD) -> bool:
    """Return whether other programs, which keep `others` processors busy, take more than `limit` processors
    from the threads."""
    return others + threads > logical + limit


class OtherLoad:
    """A context that measures how many of this process's processors others kept busy meanwhile."""

    def __enter__(self) -> OtherLoad:
        self._began, self._before = time.monotonic(), _busy_seconds()
        self.processors = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        seconds = max(1e-9, time.monotonic() - self._began)
        self.processors = max(0.0, (_busy_seconds() - self._before) / seconds)


def _busy_seconds() -> float:
    """Return the seconds that other processes and the host took of the allowed processors."""
    import psutil

    times, allowed = psutil.cpu_times(percpu=True), allowed_here()
    usable = [one for n, one in enumerate(times) if allowed is None or n in allowed] or times
    busy = sum(getattr(one, kind, 0.0) for one in usable for kind in ("user", "nice", "system", "steal"))
    own = os.times()
    return float(busy) - own.user - own.system
