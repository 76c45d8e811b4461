"""The checklist and the system's settings: what is measured, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import machine_trees as trees
from command_line import command
from paceline.doctor.checklist import drafting_checks
from paceline.hardware.cores import read as read_cores
from paceline.hardware.files import Limits, SystemFiles
from paceline.hardware.settings import read_settings


def test_settings_name_what_costs_speed_and_what_to_type(tmp_path: Path) -> None:
    maps = "7f00 default anon=3 N0=300 N1=10 kernelpagesize_kB=4\n"
    root = trees.write(
        trees.epyc(tmp_path),
        {
            "sys/devices/system/node/node0/meminfo": "",
            "sys/devices/system/node/node1/meminfo": "",
            "proc/self/numa_maps": maps,
            "proc/meminfo": "HugePages_Total:      12\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]",
            "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "powersave",
        },
    )
    files = SystemFiles(root)
    found = {
        one.name: one
        for one in read_settings(files, read_cores(files, None, "Linux"), Limits(cpus=4.0), 1 << 30)
    }
    assert found["NUMA"].value == "N0 1 MB, N1 0 MB"
    assert found["HugePages_Total"].value == "12"
    wrong = {name for name, one in found.items() if one.ok is False}
    assert wrong == {"NUMA", "transparent huge pages", "governor", "quota of the container", "swap"}
    assert all(found[name].advice for name in wrong)
    assert found["quota of the container"].advice == "-t 4"


def source(tried: int, proposed: int, right: int) -> dict[str, int]:
    return {"tried": tried, "proposed": proposed, "right": right}


@pytest.mark.parametrize(
    ("by_source", "speedup", "expected"),
    [
        ({"suffix": source(40, 10, 6), "model": source(30, 30, 20)}, 1.4, [True, True, True]),
        ({"suffix": source(10, 0, 0), "model": source(40, 40, 1)}, 0.7, [False, False, False]),
        ({"lookup": source(40, 4, 1)}, None, [True, None, False]),
    ],
)
def test_checks_of_a_run_follow_its_counts(
    by_source: dict[str, dict[str, int]], speedup: float | None, expected: list[bool | None]
) -> None:
    run = {"run": {"stats": {"steps": 40, "by_source": by_source}}, "speedup": speedup, "said": "yes"}
    checks = drafting_checks(run)
    assert [one["ok"] for one in checks] == expected
    assert all(bool(one["advice"]) == (one["ok"] is False) for one in checks)


def test_the_command_prints_five_checks_and_the_settings(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = ["-m", f"{models}/target.gguf", "-md", f"{models}/draft.gguf", "-t", "1"]
    checks = command(capsys, "doctor", *pair, "--checklist", "--json").json["checks"]
    assert len(checks) == 5
    assert {one["ok"] for one in checks} <= {True, False, None}
    assert "what the engine uses" in command(capsys, "doctor", *pair, "--system").out
