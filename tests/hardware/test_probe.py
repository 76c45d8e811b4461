"""The complete hardware probe, which no file content can break."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import machine_trees as trees
from paceline.hardware.files import SystemFiles
from paceline.hardware.probe import cpu_features, cpu_flags, probe

SAID = "CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 0 | OPENMP = 1 | REPACK = 1 | "
ARM = "CPU : NEON = 1 | ARM_FMA = 1 | REPACK = 1 | "


def test_a_server_tells_its_cores_and_features(tmp_path: Path) -> None:
    found = probe(SystemFiles(trees.epyc(tmp_path)), engine="CPU : AVX = 1", offload=False)
    assert found.features is not None
    assert found.features.used == ("AVX",)
    assert found.read_errors == ()
    said = found.as_dict()
    cores = {"physical": 16, "logical": 32, "performance": 16, "efficiency": 0, "sockets": 2, "smt": True}
    assert said["cores"] | {"allowed": None} == cores | {"machine": 32, "allowed": None}
    assert said["offload"] is False


def test_broken_files_are_told_one_by_one(tmp_path: Path) -> None:
    found = probe(SystemFiles(trees.broken(tmp_path)))
    unread = ["container limits", "which processors share a core", "what the processor can do"]
    assert [line.partition(":")[0] for line in found.read_errors] == unread
    assert found.features is None


@pytest.mark.parametrize(
    ("machine", "build", "there", "used"),
    [
        (trees.laptop, SAID, "AVX AVX2 F16C FMA BMI2 AVX_VNNI", "AVX AVX2 F16C"),
        (trees.board, ARM, "NEON ARM_FMA FP16_VA DOTPROD", "NEON ARM_FMA"),
    ],
    ids=["x86", "Arm"],
)
def test_features_that_the_build_leaves_unused_are_listed(
    tmp_path: Path, machine: Callable[[Path], Path], build: str, there: str, used: str
) -> None:
    flags = cpu_flags(SystemFiles(machine(tmp_path)))
    assert flags is not None
    found = cpu_features(flags, build)
    assert (found.there, found.used) == (tuple(there.split()), tuple(used.split()))
    assert found.unused == tuple(name for name in there.split() if name not in used.split())


def test_processors_that_differ_have_the_features_of_all(tmp_path: Path) -> None:
    root = trees.write(tmp_path, {"proc/cpuinfo": "flags : avx avx2\n\nflags : avx"})
    assert cpu_flags(SystemFiles(root)) == frozenset({"avx"})


with TemporaryDirectory() as _folder:
    ROOTS = trees.broken(Path(_folder) / "a"), trees.docker(Path(_folder) / "b")
    NAMES = {str(path.relative_to(root)) for root in ROOTS for path in root.rglob("*") if path.is_file()}
NUMBERS = b"0-3|max 1|1 1|0|-1|nan 1|0::/a|x - cgroup2 x rw|a:b:c".split(b"|")
WORDS = st.binary(max_size=40) | st.sampled_from([*NUMBERS, b"9" * 30, b"9" * 5000])


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(NAMES)), WORDS, max_size=12))
def test_whatever_files_say_it_is_told(said: dict[str, bytes]) -> None:
    with TemporaryDirectory() as folder:
        for name, data in said.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        found = probe(SystemFiles(Path(folder)))
    json.dumps(found.as_dict(), allow_nan=False)
    assert found.threads.threads >= 1
