"""Instruction sets of the processor, and those that the installed engine uses."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.hardware.files import SystemFiles

CPUINFO = "/proc/cpuinfo"
# Instruction sets for matrix products by llama.cpp's names, with their flags in /proc/cpuinfo.
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
    """Instruction sets by llama.cpp's names. there: all. used, unused: None without an engine."""

    there: tuple[str, ...]
    used: tuple[str, ...] | None = None
    unused: tuple[str, ...] | None = None


def flags(files: SystemFiles) -> frozenset[str] | None:
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
