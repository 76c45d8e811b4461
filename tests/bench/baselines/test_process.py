"""Other programs as processes: their log, their limits, and their end."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest

from paceline.bench.baselines import process
from paceline.bench.baselines.process import BackgroundProgram
from paceline.speculative.errors import BaselineError

THREE = "ended with exit status 3; its log: "
FOREVER = "while :; do sleep 60 & wait; done"


def gone(*pids: int) -> bool:
    """Return whether all of them end within seconds."""
    deadline = monotonic() + 10
    while monotonic() < deadline:
        alive = [pid for pid in pids if psutil.pid_exists(pid)]
        if all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in alive):
            return True
        sleep(0.02)
    return False


def family(program: BackgroundProgram, size: int) -> list[int]:
    """Return the pids of a program and its children, once there are `size`."""
    deadline = monotonic() + 10
    found = [program.pid]
    while len(found) < size and monotonic() < deadline:
        found = [program.pid, *(c.pid for c in psutil.Process(program.pid).children(recursive=True))]
        sleep(0.01)
    assert len(found) == size
    return found


@pytest.mark.parametrize(
    ("script", "words"),
    [
        # llama.cpp's settings in the environment are not passed on.
        ("echo starting$LLAMA_ARG_CTX_SIZE; echo wrong >&2; exit 3", f"{THREE}starting / wrong"),
        (
            "echo error: no flag -x; for i in 1 2; do echo usage; done; exit 3",
            f"{THREE}error: no flag -x / usage / usage",
        ),
        ("kill -s SEGV $$", "was ended by SIGSEGV; its log: empty"),
        ("head -c 100000 /dev/zero | tr '\\0' x; exit 3", f"{THREE}{'x' * 300}..."),
        (f"echo loading; {FOREVER}", "was not ready within 0.3 s; its log: loading"),
    ],
)
def test_log_of_a_program_that_does_not_start_is_quoted(
    script: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "17")
    program = BackgroundProgram("baseline", ["sh", "-c", script])
    with pytest.raises(BaselineError) as caught:
        program.wait_ready(lambda: False, 0.3 if FOREVER in script else 10)
    assert str(caught.value) == f"baseline {words}"
    program.close()
    assert gone(program.pid)
    assert program.memory() is None


def test_missing_program_is_named() -> None:
    with pytest.raises(BaselineError, match="/no/such/program cannot be started"):
        BackgroundProgram("baseline", ["/no/such/program"])


def test_run_to_end_in_a_folder_leaves_both_outputs(tmp_path: Path) -> None:
    script = r"printf '\377'; pwd; echo err >&2; sleep 0.1; exit $0"
    with closing(BackgroundProgram("baseline", ["sh", "-c", script, "0"], tmp_path)) as program:
        assert program.run_to_end(60) > 0
        assert program.output() == (f"\ufffd{tmp_path}\n", "err\n")
    with (
        closing(BackgroundProgram("baseline", ["sh", "-c", script, "3"])) as program,
        pytest.raises(BaselineError, match=THREE),
    ):
        program.run_to_end(60)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("yes", "wrote more than 1 MiB"),
        ("yes >&2", "wrote more than 1 MiB"),
        (FOREVER, "did not end within 0.5 s"),
    ],
)
def test_program_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch, script: str, words: str) -> None:
    monkeypatch.setattr(process, "MAX_OUTPUT", 1 << 20)
    with (
        closing(BackgroundProgram("baseline", ["sh", "-c", script])) as program,
        pytest.raises(BaselineError, match=words),
    ):
        program.run_to_end(0.5 if script == FOREVER else 20)
    assert gone(program.pid)


def test_close_kills_a_program_that_ignores_sigterm_and_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SHUTDOWN_SECONDS", 0.1)
    program = BackgroundProgram("baseline", ["sh", "-c", f"trap '' TERM; ({FOREVER}) & {FOREVER}"])
    pids = family(program, 4)
    program.close()
    assert gone(*pids)
    program.close()  # once more does no harm


def test_close_kills_children_of_a_program_that_has_ended() -> None:
    program = BackgroundProgram("baseline", ["sh", "-c", "sleep 60 & echo $!"])
    assert program.ended(10)
    child = int(program.output_tail())
    assert psutil.pid_exists(child)
    program.close()
    assert gone(child)


@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_program_ends_when_we_do(number: signal.Signals | None) -> None:
    script = f"""
        import time
        from paceline.bench.baselines.process import BackgroundProgram
        from paceline.cli.interrupts import install_exit_handlers
        install_exit_handlers()
        program = BackgroundProgram("baseline", ["sh", "-c", "trap '' TERM; {FOREVER}"])
        print(program.pid, flush=True)
        time.sleep({0 if number is None else 60})
    """
    us = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert us.stdout is not None
    pid = int(us.stdout.readline())
    if number is not None:
        assert psutil.pid_exists(pid)
        us.send_signal(number)
    us.communicate()
    assert gone(pid)


def test_memory_is_that_of_a_program_and_its_children() -> None:
    with closing(BackgroundProgram("baseline", ["sh", "-c", FOREVER])) as program:
        each = [psutil.Process(pid).memory_info().rss for pid in family(program, 2)]
        assert min(each) > 0
        assert program.memory() == sum(each)
