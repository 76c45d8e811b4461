"""What this machine has for decoding, and how much of it this process may use."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import asdict, dataclass
from typing import Any

from paceline.machine.hardware import containers, cores, features, gpus, threads
from paceline.machine.hardware.containers import Limits
from paceline.machine.hardware.cores import EFFICIENCY, PERFORMANCE, Cores
from paceline.machine.hardware.features import Features
from paceline.machine.hardware.files import Files, spelled, whole
from paceline.machine.hardware.gpus import Gpu
from paceline.machine.hardware.threads import Advice
from paceline.machine.identity import cpu_name

HUGE = "/sys/kernel/mm/transparent_hugepage"


@dataclass(frozen=True)
class Memory:
    """Bytes. limit: the container's. total is the machine's."""

    total: int
    available: int
    swap_total: int = 0
    swap_used: int = 0
    limit: int | None = None

    @property
    def usable(self) -> int:
        return self.total if self.limit is None else min(self.total, self.limit)


@dataclass(frozen=True)
class Pages:
    """Huge pages. transparent, defrag: the setting that is chosen, "" where it cannot be read; reserved: how
    many there are, of `size` bytes."""

    transparent: str = ""
    defrag: str = ""
    reserved: int = 0
    size: int = 0


@dataclass(frozen=True)
class Hardware:
    """nodes: bytes of memory by NUMA node. governors: how many processors have which. load: the mean number
    of running processes over a minute, of the whole machine; None where nothing tells. offload: whether the
    engine can use a GPU; None where it was not asked. bandwidth: bytes a second, None where it was not
    measured. unread: what could not be read, a line each. kernels: the engine's kernels of our own, or why it
    has none; None where it was not asked, or never has any."""

    system: str
    processor: str
    cores: Cores
    limits: Limits
    advice: Advice
    memory: Memory | None
    nodes: dict[int, int]
    pages: Pages
    governors: dict[str, int]
    features: Features | None
    gpus: tuple[Gpu, ...]
    offload: bool | None
    load: float | None
    bandwidth: float | None
    unread: tuple[str, ...]
    kernels: str | None = None

    @property
    def affinity(self) -> str:
        """The processors to keep threads to, as `taskset -c` takes them; "" where the system may as
        well choose: they are all there are, or shared with other containers."""
        chosen = len(self.advice.cpus) < self.cores.logical and self.limits.cpus is None
        return spelled(self.advice.cpus) if chosen and self.cores.known else ""

    def as_dict(self) -> dict[str, Any]:
        """What `doctor --json` prints under "hardware"."""
        found = self.cores
        return {
            "system": self.system,
            "processor": self.processor,
            "cores": {
                "physical": found.physical,
                "logical": found.logical,
                "performance": found.of_kind(PERFORMANCE),
                "efficiency": found.of_kind(EFFICIENCY),
                "sockets": found.sockets,
                "smt": found.smt,
                "machine": len(found.cpus),
                "allowed": sorted(found.allowed),
                "known": found.known,
            },
            "nodes": [
                {"node": node, "cpus": sorted(cpus), "memory": self.nodes.get(node)}
                for node, cpus in found.nodes.items()
            ],
            "limits": asdict(self.limits)
            | {"cpuset": None if self.limits.cpuset is None else sorted(self.limits.cpuset)},
            "threads": asdict(self.advice) | {"affinity": self.affinity},
            "memory": None if self.memory is None else asdict(self.memory),
            "bandwidth": self.bandwidth,
            "huge_pages": asdict(self.pages),
            "governors": self.governors,
            "features": None if self.features is None else asdict(self.features),
            "gpus": [asdict(gpu) for gpu in self.gpus],
            "offload": self.offload,
            "kernels": self.kernels,
            "load": self.load,
            "unread": list(self.unread),
        }


def probe(
    files: Files | None = None,
    *,
    engine: str | None = None,
    offload: bool | None = None,
    bandwidth: float | None = None,
) -> Hardware:
    """Never raises: what cannot be read is told in `unread`. files: another tree than this machine's; its
    processors may all be used then. engine: what llama.cpp says of its build. bandwidth: as measured."""
    here = files is None
    files = files or Files()
    system = platform.system() if here else "Linux"
    linux = system == "Linux"
    limits = containers.read(files) if linux else Limits()
    allowed = cores.allowed_here() if here else limits.cpuset
    found = cores.read(files, allowed, system)
    memory = _memory(files, limits)
    flags = features.flags(files) if linux else None
    if not linux:
        files.unread.append(f"what the processor can do: not read on {system}")
    pages, governors = (_pages(files), _governors(files)) if linux else (Pages(), {})
    graphics = gpus.read(files, system=system, memory=None if memory is None else memory.total)
    return Hardware(
        system=f"{platform.system()} {platform.machine()}",
        processor=cpu_name() if here else "",
        cores=found,
        limits=limits,
        advice=threads.advise(found, limits),
        memory=memory,
        nodes=_node_memory(files, found),
        pages=pages,
        governors=governors,
        features=None if flags is None else features.compared(flags, engine),
        gpus=graphics,
        offload=offload,
        load=_load(files),
        bandwidth=bandwidth,
        unread=tuple(files.unread),
    )


def _memory(files: Files, limits: Limits) -> Memory | None:
    import psutil

    try:
        memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    except (OSError, RuntimeError, psutil.Error) as error:
        files.unread.append(f"memory: {error}")
        return None
    return Memory(memory.total, memory.available, swap.total, swap.used, limits.memory)


def _node_memory(files: Files, found: Cores) -> dict[int, int]:
    out = {}
    for node in found.nodes:
        for line in (files.text(f"/sys/devices/system/node/node{node}/meminfo") or "").splitlines():
            words = line.split()  # Node 0 MemTotal: 12937420 kB
            size = whole(words[3]) if len(words) == 5 and words[2] == "MemTotal:" else None
            if size is not None:
                out[node] = size << 10
    return out


def _pages(files: Files) -> Pages:
    chosen = {}
    for name in ("enabled", "defrag"):
        text = files.text(f"{HUGE}/{name}")
        chosen[name] = (text or "").partition("[")[2].partition("]")[0]
    if not chosen["enabled"]:
        files.miss("transparent huge pages", f"{HUGE}/enabled")
    numbers = {}
    for line in (files.text("/proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name in ("HugePages_Total", "Hugepagesize"):
            numbers[name] = whole((value.split() or [""])[0]) or 0
    return Pages(
        chosen["enabled"],
        chosen["defrag"],
        numbers.get("HugePages_Total", 0),
        numbers.get("Hugepagesize", 0) << 10,
    )


def _governors(files: Files) -> dict[str, int]:
    out: dict[str, int] = {}
    names = files.names(cores.CPU, "cpu")
    for name in names:
        governor = files.text(f"{cores.CPU}/{name}/cpufreq/scaling_governor")
        if governor:
            out[governor] = out.get(governor, 0) + 1
    if not out and names:
        files.miss("frequency governors", f"{cores.CPU}/{names[0]}/cpufreq/scaling_governor")
    return out


def _load(files: Files) -> float | None:
    try:
        load = float((files.text("/proc/loadavg") or "").split()[0])
        return load if math.isfinite(load) else None
    except (IndexError, ValueError):
        pass
    try:
        return os.getloadavg()[0] if hasattr(os, "getloadavg") and str(files.root) == os.sep else None
    except OSError:
        return None
