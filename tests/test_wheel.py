"""The wheel has exactly the package's files, and runs unpacked."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline
from command_line import environment

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.iterdir()
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_the_wheel_holds_the_package_with_its_models_types_and_licence(wheel: zipfile.ZipFile) -> None:
    version = paceline.__version__
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src/paceline").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"paceline/py.typed", "paceline/models/zoo/models/paceline-target.gguf"} <= sources
    assert "paceline/models/zoo/models/paceline-draft.gguf" in sources
    assert "paceline/bench/suites/code.jsonl" in sources
    about = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    assert set(wheel.namelist()) == sources | {f"paceline-{version}.dist-info/{name}" for name in about}


def test_what_made_the_models_and_the_suites_is_not_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    folders = ("paceline/models/zoo/", "paceline/bench/suites/")
    sources = {name for name in wheel.namelist() if name.startswith(folders) and name.endswith(".py")}
    assert sources == {"paceline/models/zoo/__init__.py"} | {
        f"paceline/bench/suites/{name}.py" for name in ("__init__", "workload")
    }


def test_the_unpacked_wheel_completes_a_prompt_with_the_embedded_models(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    wheel.extractall(tmp_path)
    code = (
        "import paceline; print(paceline.__file__); "
        "paceline.load(threads=1, flash_attention=False).generate('import', max_tokens=3)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(PYTHONPATH=str(tmp_path)),
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'paceline/__init__.py'}\n")
    assert [line for line in done.stderr.splitlines() if "busy machine" not in line] == []
