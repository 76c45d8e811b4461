"""The machine, the trials and the diagnosis as text, in a pipe and on a narrow terminal."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import machine_trees as trees
from paceline.hardware.files import SystemFiles
from paceline.hardware.gpus import Gpu
from paceline.hardware.probe import probe
from paceline.report import doctor as report


def told(record: dict[str, Any]) -> dict[str, str]:
    """Return the lines by name; the last of several lines with one name wins."""
    return dict(report.lines(record))


def server(tmp_path: Path) -> dict[str, Any]:
    record = probe(
        SystemFiles(trees.epyc(tmp_path)), engine="CPU : AVX = 1 | AVX2 = 1", offload=False
    ).as_dict()
    record["memory"] = {"total": 256 * 10**9, "available": 10**9, "swap_total": 4 * 10**9, "swap_used": 10**9}
    gpu = Gpu("NVIDIA", "NVIDIA \x1b[31mTest", 80 * 10**9, 79 * 10**9)
    record["gpus"] = [vars(gpu), vars(Gpu("Intel", "Arc", shared=True))]
    return record


def test_a_server_in_words(tmp_path: Path) -> None:
    lines = told(server(tmp_path))
    assert lines["cores"] == "16 physical, 32 processors (SMT), 2 sockets"
    assert lines["memory"] == "256 GB, 1.0 GB free, 1.0 GB of 4.0 GB swap in use"
    assert lines["features"] == "AVX AVX2: used by the engine"
    assert lines["unused"] == "F16C FMA BMI2: there, but not in the engine's build"
    assert lines["limits"] == "no quota of processors' time"
    assert lines["threads"].startswith("16 advised (-t 16): one thread a physical core (16); ")


def test_a_container_in_words(tmp_path: Path) -> None:
    lines = told(probe(SystemFiles(trees.container(tmp_path))).as_dict())
    assert lines["limits"] == "a quota of 1.5 processors' time, 2.1 GB of memory"
    assert lines["threads"].startswith("1 advised (-t 1): ")
    assert lines["GPU"] == "none found"
    lines = told(probe(SystemFiles(trees.docker(tmp_path / "v1"))).as_dict())
    assert lines["cores"] == "2 physical, 2 of the machine's 4 processors may be used"


CAUSE = {"name": "too many", "severity": "high", "evidence": "9 \x1bthreads", "remedy": "-t 4"}


def written(**known: Any) -> str:
    file = io.StringIO()
    report.diagnosis({"run": None, "causes": [], "read_errors": []} | known, file)
    return file.getvalue()


def test_a_cause_has_its_evidence_and_its_remedy_below() -> None:
    said = written(causes=[CAUSE], read_errors=["header: \x1b[2J"])
    assert said == ("high       too many: 9 \\x1bthreads\n           -> -t 4\nnot read   header: \\x1b[2J\n")
