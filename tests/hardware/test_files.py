"""Small system files below any root, lists of processors as the kernel has them, and limits of containers."""

from __future__ import annotations

from pathlib import Path

import pytest

import machine_trees as trees
from paceline.hardware.files import Limits, SystemFiles, cpu_list, read_limits


def test_a_list_of_processors_is_read_as_it_is_spelled() -> None:
    assert cpu_list("0-3, 8,\n10-10") == frozenset([0, 1, 2, 3, 8, 10])


@pytest.mark.parametrize("text", ["x", "1-", "3-1", "0-99999999999", "٣-٢"])
def test_what_is_no_such_list_is_none(text: str) -> None:
    assert cpu_list(text) is None


def test_what_cannot_be_read_is_none_and_noted(tmp_path: Path) -> None:
    files = SystemFiles(tmp_path)
    (tmp_path / "text").write_text("no number\n")
    assert (files.text("/text"), files.number("/text"), files.cpus("/none")) == ("no number", None, None)
    for name in ("text", "none"):
        files.note_read_error("size", f"/{name}")
    assert files.read_errors == ["size: /text cannot be used", "size: /none is not there"]


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
