"""How many threads decoding should use."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cache

from paceline.core.errors import UsageError
from paceline.machine.hardware import containers, cores
from paceline.machine.hardware.containers import Limits
from paceline.machine.hardware.cores import EFFICIENCY, PERFORMANCE, Cores
from paceline.machine.hardware.files import Files, spelled


@dataclass(frozen=True)
class Advice:
    """threads: so many. why: a line each."""

    threads: int
    why: tuple[str, ...]


def advise(cores: Cores, limits: Limits) -> Advice:
    """One thread a physical core: those that share one share the units that decoding saturates. Efficiency
    cores are left out: a pass goes from one matrix to the next when the slowest thread is done.

    A quota is rounded down, 1.5 processors to one thread. Of two threads the one that is throttled stands
    still for the rest of the period, and the other one, which waits for it by spinning, burns what is left
    (ollama issue 17916: 8 threads on a quota of 4 decoded at a 45th of the speed of 4). And passes that take
    once 10 ms and once 60 cannot be planned with."""
    threads = cores.of_kind(PERFORMANCE) or cores.physical
    why = [f"one thread a physical core ({threads})"]
    if cores.smt:
        why.append(f"{cores.logical} processors share {cores.physical} cores (SMT)")
    if left := cores.of_kind(EFFICIENCY) if cores.of_kind(PERFORMANCE) else 0:
        why.append(f"{left} efficiency {'core' if left == 1 else 'cores'} left out: all wait for the slowest")
    threads = max(1, threads)
    if limits.cpus is not None and limits.cpus < threads:
        threads = max(1, math.floor(limits.cpus))
        why.append(
            f"the container's quota is {limits.cpus:g} processors' time: more threads than that stand still "
            "together"
        )
    if len(cores.cpus) > cores.logical:
        why.append(f"of {len(cores.cpus)} processors this process may use {spelled(cores.allowed)}")
    return Advice(threads, tuple(why))


def advised() -> Advice:
    """For this process on this machine."""
    return advise(_cores(cores.allowed_here()), containers.read(Files()))


@cache
def _cores(allowed: frozenset[int] | None) -> Cores:
    """Of this machine: hundreds of small files, which say the same every time."""
    return cores.read(Files(), allowed)


def physical_cores() -> int:
    """Of those this process may run on."""
    return max(1, _cores(cores.allowed_here()).physical)


def logical_cores() -> int:
    """Processors this process may run on, which in a container can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_threads(asked: int | None) -> int:
    """`asked` if the machine has that many cores; what is advised if None."""
    if asked is None:
        return min(physical_cores(), advised().threads)
    if asked < 1:
        raise UsageError(f"{asked} threads: must be at least 1")
    if asked > logical_cores():
        raise UsageError(
            f"{asked} threads, but this machine has {logical_cores()} cores: "
            f"use {choose_threads(None)} (threads, -t)"
        )
    return asked
