"""Core topology: threads that share a core, efficiency cores, and sockets."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

import machine_trees as trees
from paceline.hardware import cores
from paceline.hardware.cores import EFFICIENCY, PERFORMANCE, Cores
from paceline.hardware.files import SystemFiles


def seen(root: Path, allowed: frozenset[int] | None = None) -> Cores:
    return cores.read(SystemFiles(root), allowed, "Linux")


def test_two_sockets_with_two_threads_a_core(tmp_path: Path) -> None:
    found = seen(trees.epyc(tmp_path))
    assert (found.physical, found.logical, found.smt, found.sockets) == (16, 32, True, 2)
    assert found.of_kind(EFFICIENCY) == 0


def test_efficiency_cores_as_the_kernel_names_them(tmp_path: Path) -> None:
    found = seen(trees.laptop(tmp_path))
    assert (found.of_kind(PERFORMANCE), found.of_kind(EFFICIENCY)) == (4, 8)
    assert (found.physical, found.logical) == (12, 16)


def test_what_nothing_tells_of_is_counted(tmp_path: Path) -> None:
    files = SystemFiles(tmp_path)
    found = cores.read(files, None, "Linux")
    assert found.logical == os.cpu_count()
    assert files.read_errors == ["cores: /sys/devices/system/cpu/online is not there"]


def test_counting_takes_threads_of_one_core_to_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 8 if logical else 4)
    found = cores.read(SystemFiles(tmp_path), None, "Windows")
    assert (found.physical, found.logical) == (4, 8)
