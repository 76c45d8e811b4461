"""Processor features, and those that the engine's build leaves unused."""

from __future__ import annotations

from pathlib import Path

import machine_trees as trees
from paceline.hardware.files import SystemFiles
from paceline.hardware.probe import cpu_features, cpu_flags

SAID = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 0 | OPENMP = 1 | REPACK = 1 | "


def test_what_the_build_leaves_unused_is_told(tmp_path: Path) -> None:
    has = cpu_flags(SystemFiles(trees.laptop(tmp_path)))
    assert has is not None
    found = cpu_features(has, SAID)
    assert found.there == ("AVX", "AVX2", "F16C", "FMA", "BMI2", "AVX_VNNI")
    assert found.used == ("AVX", "AVX2", "F16C")
    assert found.unused == ("FMA", "BMI2", "AVX_VNNI")


def test_an_arm_processor_has_names_of_its_own(tmp_path: Path) -> None:
    has = cpu_flags(SystemFiles(trees.board(tmp_path)))
    assert has is not None
    found = cpu_features(has, "CPU : NEON = 1 | ARM_FMA = 1 | REPACK = 1 | ")
    assert found.there == ("NEON", "ARM_FMA", "FP16_VA", "DOTPROD")
    assert found.unused == ("FP16_VA", "DOTPROD")


def test_processors_that_differ_have_what_all_of_them_have(tmp_path: Path) -> None:
    root = trees.write(tmp_path, {"proc/cpuinfo": "flags : avx avx2\n\nflags : avx"})
    assert cpu_flags(SystemFiles(root)) == frozenset({"avx"})
