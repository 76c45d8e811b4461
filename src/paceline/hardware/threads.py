"""The number of threads that decoding should use."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cache

from paceline.hardware import cores
from paceline.hardware.cores import PERFORMANCE, Cores
from paceline.hardware.files import Limits, SystemFiles, read_limits
from paceline.speculative.errors import UsageError
from paceline.speculative.validation import read_number

NODES = "/sys/devices/system/node"
VARIABLE = "PACELINE_THREADS"  # the default, as for every option


@dataclass(frozen=True)
class ThreadAdvice:
    """The advised number of threads. why: a line for each reason."""

    threads: int
    why: tuple[str, ...]


def advise(cores: Cores, limits: Limits) -> ThreadAdvice:
    """Advise one thread per physical core, without efficiency cores: all threads wait for the slowest.
    A quota is rounded down. Other threads spin while they wait for a throttled one, which burns the rest of
    the quota (ollama issue 17916: 8 threads on a quota of 4 decoded at a 45th of the speed of 4)."""
    threads = cores.of_kind(PERFORMANCE) or cores.physical
    why = [f"one thread a physical core ({threads})"]
    if cores.smt:
        why.append(f"{cores.logical} processors share {cores.physical} cores (SMT)")
    if left := cores.physical - threads:
        why.append(f"efficiency cores left out ({left}): all threads wait for the slowest")
    threads = max(1, threads)
    if limits.cpus is not None and limits.cpus < threads:
        threads = max(1, math.floor(limits.cpus))
        effect = "more threads than that stand still together"
        why.append(f"the container's quota is {limits.cpus:g} processors' time: {effect}")
    if len(cores.cpus) > cores.logical:
        why.append(f"of {len(cores.cpus)} processors this process may use {cores.logical}")
    return ThreadAdvice(threads, tuple(why))


def advised() -> ThreadAdvice:
    """Advise threads for this process on this machine."""
    return advise(_cores(cores.allowed_here()), read_limits(SystemFiles()))


@cache
def _cores(allowed: frozenset[int] | None) -> Cores:
    """Read the cores of this machine once: hundreds of small files that do not change."""
    return cores.read(SystemFiles(), allowed)


def physical_cores() -> int:
    """Return the physical cores that this process may run on."""
    return max(1, _cores(cores.allowed_here()).physical)


def processors_by_core() -> list[int]:
    """Return the usable processors: the first of each physical core, then those that share one."""
    cpus = _cores(cores.allowed_here()).usable
    first = {cpu.core: cpu.number for cpu in reversed(cpus)}.values()
    return [*sorted(first), *(cpu.number for cpu in cpus if cpu.number not in first)]


def memory_nodes() -> list[int]:
    """Return the numbers of the NUMA nodes; none if the system does not say."""
    return [int(name[4:]) for name in SystemFiles().names(NODES, "node")]


def logical_cores() -> int:
    """Return the processors that this process may run on."""
    return len(cores.allowed_here() or ()) or os.cpu_count() or 1


def choose_threads(request: int | None) -> int:
    """Return the requested threads, else those of PACELINE_THREADS, else the advised. Raises UsageError."""
    given = os.environ.get(VARIABLE, "")
    if request is None and not given:
        return min(physical_cores(), advised().threads)
    try:
        threads = read_number(int, given) if request is None else request
    except ValueError:
        raise UsageError(f"{VARIABLE}={given}: must be a whole number") from None
    if not 1 <= threads <= logical_cores():
        limits = f"must be at least 1, and this machine has {logical_cores()} cores"
        advice = f"use {min(physical_cores(), advised().threads)}"
        raise UsageError(f"{threads} threads (threads, -t, {VARIABLE}): {limits}: {advice}")
    return threads
