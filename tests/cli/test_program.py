"""The program as the shell sees it: pipes, closed streams, terminals, and what it imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import paceline
from command_line import PROGRAM, environment, program

PLAIN = ("--draft", "none")  # to import what compiles drafters takes longer than all the rest
HEAVY = {"torch", "fastapi", "llama_cpp", "transformers", "numpy", "gguf", "jinja2", "llguidance"}


def test_the_module_runs_as_the_program(target: Path) -> None:
    done = program("run", *PLAIN, "-m", target, "-n", "4", "--ignore-eos", stdin=b"hello")
    assert done.code == 0
    assert done.out
    assert done.err.endswith("tokens/s, plain decoding\n")
    assert program("--version").out == f"paceline {paceline.__version__}\n"


def test_a_reader_that_leaves_early_ends_the_program_quietly_with_141(target: Path) -> None:
    args = ["run", *PLAIN, "-m", str(target), "hello", "-n", "60000", "-c", "60100", "--ignore-eos"]
    with subprocess.Popen(
        [*PROGRAM, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert len(process.stdout.read(10)) == 10
        process.stdout.close()
        err = process.stderr.read()
        assert (process.wait(timeout=60), err) == (141, b"")


def test_a_full_disk_is_one_line_and_code_1(target: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("only Linux has /dev/full")
    with full.open("wb") as stdout:
        done = subprocess.run(
            [*PROGRAM, "run", *PLAIN, "-m", str(target), "hello", "-n", "4"],
            stdout=stdout,
            stderr=subprocess.PIPE,
            env=environment(),
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"paceline: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(("closed", "code"), [(1, 141), (2, 0)])
def test_a_stream_that_was_closed_before_is_no_error_of_ours(target: Path, closed: int, code: int) -> None:
    done = subprocess.run(
        [*PROGRAM, "run", *PLAIN, "-m", str(target), "hello", "-n", "4"],
        capture_output=True,
        preexec_fn=lambda: os.close(closed),
        env=environment(),
        check=False,
    )
    assert done.returncode == code
    assert done.stderr == b""
    assert bool(done.stdout) == (code == 0)


def imported(code: str) -> set[str]:
    """The modules that `code` imports beyond those that Python starts with."""
    code = (
        f"import sys; before = set(sys.modules)\n{code}\nprint(*set(sys.modules) - before, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stderr.split()}


@pytest.mark.parametrize("args", [["run"], ["bench"], ["zoo", "path"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    loaded = imported(f"from paceline.cli.app import invoke; assert invoke({[*args, '--help']}) == 0")
    assert "typer" in loaded
    assert loaded & HEAVY == set()


def test_importing_paceline_imports_the_standard_library_and_no_more() -> None:
    assert imported("import paceline") - set(sys.stdlib_module_names) == {"paceline"}
