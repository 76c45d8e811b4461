"""The command for a machine with a GPU: what it carries, its time limits, what is left of an ended run."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from argparse import Namespace
from pathlib import Path

import gpu
import pytest

from tools import setup


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def ends(pid: int) -> bool:
    """Return whether a process that was killed is gone, which may take a moment."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_program_ends_in_time_with_all_that_it_started(tmp_path: Path) -> None:
    command = ["sh", "-c", "sleep 600 & echo $!; wait"]
    said, why = gpu.limited(command, 1.5, tmp_path / "log", dict(os.environ))
    assert why.startswith("stopped after 2 s")
    assert ends(int(said))


def test_a_step_has_what_it_found_and_the_reason_for_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    parts: list[gpu.Part] = [
        ("good", ["echo", "found"], gpu.last_line),
        ("absent", ["no-such-program"], gpu.last_line),
        ("failing", ["sh", "-c", "echo half; echo broken >&2; exit 5"], gpu.last_line),
        ("garbled", ["echo", "no table"], gpu.costs),
        ("tests", ["sh", "-c", "echo '[gw0] PASSED a::b'; echo 'a::c FAILED'; exit 1"], gpu.tests),
    ]
    monkeypatch.setattr(gpu, "STEPS", {"one": (lambda given: iter(parts), 600), "two": (gpu.train, 600)})
    end = time.monotonic() + 600
    given = Namespace(out=tmp_path, work=tmp_path, only="one,two", limit=gpu.USUAL_LIMIT, end=end)
    gpu.run_steps(given)
    found = json.loads((tmp_path / "one.json").read_text())["parts"]
    assert found["good"]["text"] == "found"
    assert "why" not in found["good"]
    assert "no-such-program" in found["absent"]["why"]
    assert (found["failing"]["text"], found["failing"]["why"]) == ("half", "exit code 5: broken")
    assert "Expecting value" in found["garbled"]["why"]
    assert (found["tests"]["text"], found["tests"].get("why")) == ("1 failed, 1 passed", None)
    table = "\n".join(gpu.summary(tmp_path))
    assert "| one | good | 0 | found |" in table
    assert "| two | | | NOT DONE: no stored answers were packed (--add training=FOLDER) |" in table


def test_without_time_each_step_says_so(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    given = Namespace(out=tmp_path, work=tmp_path, only="facts", limit=gpu.USUAL_LIMIT, end=time.monotonic())
    gpu.run_steps(given)
    reasons = {found["why"] for found in json.loads((tmp_path / "facts.json").read_text())["parts"].values()}
    assert reasons == {"no time was left"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_run_that_is_ended_shows_what_it_found_and_leaves_no_program(tmp_path: Path) -> None:
    script(tmp_path / "nvidia-smi", "echo Test GPU")
    script(
        tmp_path / "nvcc", f"echo $$ > {tmp_path}/pid.part; mv {tmp_path}/pid.part {tmp_path}/pid; sleep 600"
    )
    command = [sys.executable, gpu.__file__, "run", "--only", "facts", "--out", str(tmp_path / "out")]
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen([*command, "--work", str(tmp_path / "work")], stdout=-1, text=True, env=env) as run:
        while not (tmp_path / "pid").exists():
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        said = run.communicate()[0]
    assert run.returncode == 143
    assert "| facts | GPU | 0 | Test GPU |" in said
    assert "| facts | | | NOT DONE: was ended |" in said
    assert ends(int((tmp_path / "pid").read_text()))


def test_pieces_hold_the_source_for_cuda_wheels_and_what_is_added(tmp_path: Path) -> None:
    long_name = "vendor/llama.cpp/ggml/src/ggml-cuda/template-instances/" + "x" * 90 + ".cu"
    needed = ["CMakeLists.txt", "llama_cpp/llama.py", "vendor/llama.cpp/ggml/src/ggml.c", long_name]
    others = ["vendor/llama.cpp/ggml/src/ggml-vulkan/a.cpp", "vendor/llama.cpp/tools/b.cpp", "docs/c.md"]
    with tarfile.open(tmp_path / "sdist.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as tar:
        for name in ["PKG-INFO", *needed, *others]:
            member = tarfile.TarInfo(f"llama_cpp_python-1/{name}")
            data = os.urandom(3000)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "small-1.whl", "w") as wheel:
        wheel.writestr("small.py", "SMALL = 1")
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "config.json").write_text("{}")
    out, work = tmp_path / "out", tmp_path / "work"
    work.mkdir()
    given = Namespace(out=out, sdist=tmp_path / "sdist.tar.gz", wheels=tmp_path / "wheels", piece=0.004)
    given.add = [f"heads/eagle3={tmp_path / 'head'}"]
    gpu.pack(given)
    pieces = sorted(out.iterdir())
    assert len(pieces) > 2
    assert max(piece.stat().st_size for piece in pieces) <= 4000
    with pytest.raises(SystemExit, match="pieces are not all, or damaged"):
        gpu.unpack(pieces[:-1], work)
    gpu.unpack(pieces[::-1], work)
    found = {str(path.relative_to(work / "llama")) for path in (work / "llama").rglob("*") if path.is_file()}
    version = setup.requirements()[0][0].partition("==")[2]
    assert found == set(needed)
    assert (work / "site" / f"llama_cpp_python-{version}.dist-info" / "METADATA").exists()
    assert (work / "heads" / "eagle3" / "config.json").read_text() == "{}"
    assert (work / "site" / "small.py").exists()
