"""Probe the hardware that matters for decoding, and the limits of this process."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from typing import Any

from paceline.hardware import containers, cores, features, gpus, threads
from paceline.hardware.containers import Limits
from paceline.hardware.cores import EFFICIENCY, PERFORMANCE, Cores
from paceline.hardware.features import CpuFeatures
from paceline.hardware.files import SystemFiles
from paceline.hardware.gpus import Gpu
from paceline.hardware.threads import ThreadAdvice
from paceline.system.identity import cpu_name


@dataclass(frozen=True)
class MemoryInfo:
    """The machine's memory in bytes. limit: of the container."""

    total: int
    available: int
    swap_total: int = 0
    swap_used: int = 0
    limit: int | None = None

    @property
    def usable(self) -> int:
        return self.total if self.limit is None else min(self.total, self.limit)


@dataclass(frozen=True)
class Hardware:
    """The hardware of a machine; None means unknown.

    offload: True if the engine can use a GPU. read_errors: a line each.
    kernels: Paceline's kernels for the engine, or why there are none.
    """

    system: str
    processor: str
    cores: Cores
    limits: Limits
    advice: ThreadAdvice
    memory: MemoryInfo | None
    features: CpuFeatures | None
    gpus: tuple[Gpu, ...]
    offload: bool | None
    read_errors: tuple[str, ...]
    kernels: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the object "hardware" of `doctor --json`."""
        cores = self.cores
        return {
            "system": self.system,
            "processor": self.processor,
            "cores": {
                **{name: getattr(cores, name) for name in ("physical", "logical", "sockets", "smt")},
                "performance": cores.of_kind(PERFORMANCE),
                "efficiency": cores.of_kind(EFFICIENCY),
                "machine": len(cores.cpus),
                "allowed": sorted(cores.allowed),
            },
            "limits": asdict(self.limits)
            | {"cpuset": None if self.limits.cpuset is None else sorted(self.limits.cpuset)},
            "threads": asdict(self.advice),
            "memory": None if self.memory is None else asdict(self.memory),
            "features": None if self.features is None else asdict(self.features),
            "gpus": [asdict(gpu) for gpu in self.gpus],
            "offload": self.offload,
            "kernels": self.kernels,
            "unread": list(self.read_errors),
        }


def probe(
    files: SystemFiles | None = None,
    *,
    engine: str | None = None,
    offload: bool | None = None,
) -> Hardware:
    """Probe this machine, or a recorded tree of files. Unreadable files are noted in `read_errors`.

    engine: llama.cpp's description of its build.
    """
    here = files is None
    files = files or SystemFiles()
    system = platform.system() if here else "Linux"
    linux = system == "Linux"
    limits = containers.read(files) if linux else Limits()
    allowed = cores.allowed_here() if here else limits.cpuset
    found = cores.read(files, allowed, system)
    memory = read_memory(limits)
    flags = features.flags(files) if linux else None
    if not linux:
        files.read_errors.append(f"what the processor can do: not read on {system}")
    graphics = gpus.read(files, system=system, memory=memory.total)
    return Hardware(
        system=f"{platform.system()} {platform.machine()}",
        processor=cpu_name() if here else "",
        cores=found,
        limits=limits,
        advice=threads.advise(found, limits),
        memory=memory,
        features=None if flags is None else features.cpu_features(flags, engine),
        gpus=graphics,
        offload=offload,
        read_errors=tuple(files.read_errors),
    )


def read_memory(limits: Limits) -> MemoryInfo:
    import psutil

    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return MemoryInfo(memory.total, memory.available, swap.total, swap.used, limits.memory)


def free_memory() -> int:
    """Return the free bytes, of which a container's limit leaves half to what it uses already."""
    import psutil

    available, limit = int(psutil.virtual_memory().available), containers.read(SystemFiles()).memory
    return available if limit is None else min(available, limit // 2)
