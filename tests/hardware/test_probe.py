"""The complete hardware probe, which no file content can break."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

import machine_trees as trees
from paceline.hardware.files import SystemFiles
from paceline.hardware.probe import probe


def test_a_server_tells_its_cores_and_features(tmp_path: Path) -> None:
    found = probe(SystemFiles(trees.epyc(tmp_path)), engine="CPU : AVX = 1", offload=False)
    assert found.features is not None
    assert found.features.used == ("AVX",)
    assert found.read_errors == ()
    said = found.as_dict()
    assert said["cores"] | {"allowed": None} == {
        "physical": 16,
        "logical": 32,
        "performance": 16,
        "efficiency": 0,
        "sockets": 2,
        "smt": True,
        "machine": 32,
        "allowed": None,
    }
    assert said["offload"] is False


def test_a_containers_limits_decide(tmp_path: Path) -> None:
    found = probe(SystemFiles(trees.docker(tmp_path)))
    assert found.cores.allowed == frozenset({1, 2})
    assert found.threads.threads == 2
    found = probe(SystemFiles(trees.container(tmp_path / "pod")))
    assert found.threads.threads == 1
    assert found.memory is not None
    assert found.memory.usable <= 2 << 30


def test_broken_files_are_told_one_by_one(tmp_path: Path) -> None:
    found = probe(SystemFiles(trees.broken(tmp_path)))
    assert [line.partition(":")[0] for line in found.read_errors] == [
        "container limits",
        "which processors share a core",
        "what the processor can do",
    ]
    assert found.features is None


def _files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


with TemporaryDirectory() as _folder:
    NAMES = _files(trees.broken(Path(_folder) / "a")) + _files(trees.docker(Path(_folder) / "b"))
WORDS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            b"0-3",
            b"max 1",
            b"1 1",
            b"0",
            b"-1",
            b"9" * 30,
            b"9" * 5000,
            b"nan 1",
            b"0::/a",
            b"x - cgroup2 x rw",
            b"a:b:c",
        ]
    ),
)


@settings(max_examples=25, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(set(NAMES))), WORDS, max_size=12))
def test_whatever_files_say_it_is_told(said: dict[str, bytes]) -> None:
    with TemporaryDirectory() as folder:
        for name, data in said.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        found = probe(SystemFiles(Path(folder)))
    json.dumps(found.as_dict(), allow_nan=False)
    assert found.threads.threads >= 1
