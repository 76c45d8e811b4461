"""What the processor can do, and what of it the installed build of the engine makes use of."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.hardware.files import SystemFiles

CPUINFO = "/proc/cpuinfo"
# llama.cpp's names (ggml_cpu_get features), and the flag of /proc/cpuinfo that stands for each. What makes no
# difference to a matrix product is left out.
X86 = {
    "AVX": "avx",
    "AVX2": "avx2",
    "F16C": "f16c",
    "FMA": "fma",
    "BMI2": "bmi2",
    "AVX_VNNI": "avx_vnni",
    "AVX512": "avx512f",
    "AVX512_VBMI": "avx512vbmi",
    "AVX512_VNNI": "avx512_vnni",
    "AVX512_BF16": "avx512_bf16",
    "AMX_INT8": "amx_int8",
}
ARM = {
    "NEON": "asimd",
    "ARM_FMA": "asimd",
    "FP16_VA": "asimdhp",
    "DOTPROD": "asimddp",
    "MATMUL_INT8": "i8mm",
    "SVE": "sve",
    "SME": "sme",
}


@dataclass(frozen=True)
class CpuFeatures:
    """In llama.cpp's names. there: of the processor; used: of those, by the engine; unused: the others. used
    and unused are None where no engine could be asked."""

    there: tuple[str, ...]
    used: tuple[str, ...] | None = None
    unused: tuple[str, ...] | None = None


def flags(files: SystemFiles) -> frozenset[str] | None:
    """Of all processors alike: on a machine of different ones, what every one of them has."""
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
    """has: see `flags`. engine: what `llama_print_system_info` says; None without one."""
    names = ARM if "asimd" in has else X86  # x86 has an "sme", too
    there = tuple(name for name, flag in names.items() if flag in has)
    if engine is None:
        return CpuFeatures(there)
    built = built_with(engine)
    used = tuple(name for name in there if name in built)
    return CpuFeatures(there, used, tuple(name for name in there if name not in built))


def built_with(engine: str) -> frozenset[str]:
    """The features that are switched on in a text such as "CPU : AVX = 1 | FMA = 1 | "."""
    return frozenset(name for name, value in re.findall(r"(\w+) = (\d+)", engine) if int(value) > 0)
