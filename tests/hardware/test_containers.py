"""Limits of control groups, and of all that hold the process's own."""

from __future__ import annotations

from pathlib import Path

import machine_trees as trees
from paceline.hardware.files import Limits, SystemFiles, read_limits


def test_the_quota_of_a_group_that_holds_ours_counts(tmp_path: Path) -> None:
    files = SystemFiles(trees.container(tmp_path))
    limits = read_limits(files)
    assert (limits.known, limits.cpus, limits.memory) == (True, 1.5, 2 << 30)
    assert (limits.cpuset, files.read_errors) == (frozenset(range(8)), [])


def test_a_container_that_sees_its_own_group_only(tmp_path: Path) -> None:
    limits = read_limits(SystemFiles(trees.docker(tmp_path)))
    assert (limits.cpus, limits.memory, limits.cpuset) == (2.5, None, frozenset({1, 2}))


def test_without_control_groups_it_is_told(tmp_path: Path) -> None:
    files = SystemFiles(tmp_path)
    assert read_limits(files) == Limits()
    assert files.read_errors == ["container limits: /proc/self/mountinfo is not there"]


def test_a_group_outside_of_what_can_be_seen_is_not_followed(tmp_path: Path) -> None:
    root = trees.container(tmp_path / "machine")
    trees.write(tmp_path, {"outside/cpu.max": "1000 100000"})
    (root / "proc/self/cgroup").write_text("0::/../../../../../outside\n")
    assert read_limits(SystemFiles(root)).cpus is None
