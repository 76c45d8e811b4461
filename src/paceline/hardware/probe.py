"""Probe the hardware that matters for decoding, and the limits of this process."""

from __future__ import annotations

import platform
import re
from dataclasses import asdict, dataclass
from typing import Any

from paceline.hardware import cores, gpus, threads
from paceline.hardware.cores import EFFICIENCY, PERFORMANCE, Cores
from paceline.hardware.files import Limits, SystemFiles, read_limits
from paceline.hardware.gpus import Gpu
from paceline.hardware.settings import SystemSetting, read_settings
from paceline.hardware.threads import ThreadAdvice
from paceline.system.home import cpu_name

CPUINFO = "/proc/cpuinfo"
# Instruction sets for matrix products by llama.cpp's names, with their flags in /proc/cpuinfo.
X86 = {
    "AVX": "avx", "AVX2": "avx2", "F16C": "f16c", "FMA": "fma", "BMI2": "bmi2", "AVX_VNNI": "avx_vnni",
    "AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16", "AMX_INT8": "amx_int8",
}  # fmt: skip
ARM = {
    "NEON": "asimd", "ARM_FMA": "asimd", "FP16_VA": "asimdhp", "DOTPROD": "asimddp", "MATMUL_INT8": "i8mm",
    "SVE": "sve", "SME": "sme",
}  # fmt: skip


@dataclass(frozen=True)
class CpuFeatures:
    """Instruction sets by llama.cpp's names. there: all. used, unused: None without an engine."""

    there: tuple[str, ...]
    used: tuple[str, ...] | None = None
    unused: tuple[str, ...] | None = None


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
    offload: True if the engine can use a GPU. read_errors: a line for each error.
    kernels: Paceline's kernels for the engine, or why there are none."""

    system: str
    processor: str
    cores: Cores
    limits: Limits
    threads: ThreadAdvice
    memory: MemoryInfo
    features: CpuFeatures | None
    gpus: tuple[Gpu, ...]
    offload: bool | None
    read_errors: tuple[str, ...]
    kernels: str | None = None
    settings: tuple[SystemSetting, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the object "hardware" of `doctor --json`."""
        cores, cpuset = self.cores, self.limits.cpuset
        return asdict(self) | {
            "cores": {
                **{name: getattr(cores, name) for name in ("physical", "logical", "sockets", "smt")},
                "performance": cores.of_kind(PERFORMANCE),
                "efficiency": cores.of_kind(EFFICIENCY),
                "machine": len(cores.cpus),
                "allowed": sorted(cores.allowed),
            },
            "limits": asdict(self.limits) | {"cpuset": None if cpuset is None else sorted(cpuset)},
        }


def probe(
    files: SystemFiles | None = None, *, engine: str | None = None, offload: bool | None = None
) -> Hardware:
    """Probe this machine, or a recorded tree of files. Unreadable files are noted in `read_errors`.
    engine: llama.cpp's description of its build."""
    here = files is None
    files = files or SystemFiles()
    system = platform.system() if here else "Linux"
    linux = system == "Linux"
    limits = read_limits(files) if linux else Limits()
    allowed = cores.allowed_here() if here else limits.cpuset
    found = cores.read(files, allowed, system)
    memory = read_memory(limits)
    flags = cpu_flags(files) if linux else None
    if not linux:
        files.read_errors.append(f"what the processor can do: not read on {system}")
    graphics = gpus.read(files, system=system, memory=memory.total)
    return Hardware(
        system=f"{platform.system()} {platform.machine()}",
        processor=cpu_name() if here else "",
        cores=found,
        limits=limits,
        threads=threads.advise(found, limits),
        memory=memory,
        features=None if flags is None else cpu_features(flags, engine),
        gpus=graphics,
        offload=offload,
        read_errors=tuple(files.read_errors),
        settings=tuple(read_settings(files, found, limits, memory.swap_used)) if linux else (),
    )


def cpu_flags(files: SystemFiles) -> frozenset[str] | None:
    """Return the flags that all processors have, or None."""
    found = [
        frozenset(line.partition(":")[2].split())
        for line in (files.text(CPUINFO) or "").splitlines()
        if line.partition(":")[0].strip() in ("flags", "Features")
    ]
    if not found:
        files.note_read_error("what the processor can do", CPUINFO)
        return None
    return frozenset.intersection(*found)


def cpu_features(has: frozenset[str], engine: str | None) -> CpuFeatures:
    """Compare the processor's flags with the output of `llama_print_system_info`, None without an engine."""
    names = ARM if "asimd" in has else X86  # x86 has an "sme", too
    there = tuple(name for name, flag in names.items() if flag in has)
    if engine is None:
        return CpuFeatures(there)
    # A text such as "CPU : AVX = 1 | FMA = 1 | ".
    built = {name for name, enabled in re.findall(r"(\w+) = (\d+)", engine) if int(enabled) > 0}
    used = tuple(name for name in there if name in built)
    return CpuFeatures(there, used, tuple(name for name in there if name not in built))


def read_memory(limits: Limits) -> MemoryInfo:
    import psutil

    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return MemoryInfo(memory.total, memory.available, swap.total, swap.used, limits.memory)


def free_memory() -> int:
    """Return the free bytes, of which a container's limit leaves half to what it uses already."""
    import psutil

    available, limit = int(psutil.virtual_memory().available), read_limits(SystemFiles()).memory
    return available if limit is None else min(available, limit // 2)
