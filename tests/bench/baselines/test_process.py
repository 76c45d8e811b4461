"""Child processes: error messages, and that none is left running."""

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
from paceline.speculative.errors import PeerError

THREE = "ended with exit status 3; its last words: "
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
    return found


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo starting; echo wrong >&2; exit 3", f"{THREE}starting / wrong"),
        ("kill -s SEGV $$", "was ended by SIGSEGV; its last words: none"),
        ("head -c 100000 /dev/zero | tr '\\0' x; exit 3", f"{THREE}{'x' * 300}..."),
        (f"echo loading; {FOREVER}", "was not ready within 0.3 s; its last words: loading"),
    ],
)
def test_a_program_that_does_not_get_ready_is_quoted(script: str, words: str) -> None:
    program = BackgroundProgram("peer", ["sh", "-c", script])
    with pytest.raises(PeerError) as caught:
        program.wait_ready(lambda: False, 0.3 if FOREVER in script else 10)
    assert str(caught.value) == f"peer {words}"
    program.close()
    assert gone(program.pid)


def test_a_program_that_cannot_be_started_is_named() -> None:
    with pytest.raises(PeerError, match=r"peer: /no/such/program cannot be started: No such file"):
        BackgroundProgram("peer", ["/no/such/program"])


def test_a_program_is_run_to_its_end_in_its_folder(tmp_path: Path) -> None:
    script = r"printf '\377'; pwd; echo err >&2; sleep 0.1; exit 3"
    with closing(BackgroundProgram("peer", ["sh", "-c", script], tmp_path)) as program:
        assert program.run_to_end(60) > 0
        assert (program.returncode, program.output()) == (3, (f"\ufffd{tmp_path}\n", "err\n"))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("yes", "wrote more than 1 MiB"),
        ("yes >&2", "wrote more than 1 MiB"),
        (FOREVER, "did not end within 0.5 s"),
    ],
)
def test_a_program_that_never_ends_or_writes_too_much_is_stopped(
    monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    monkeypatch.setattr(process, "MAX_OUTPUT", 1 << 20)
    with (
        closing(BackgroundProgram("peer", ["sh", "-c", script])) as program,
        pytest.raises(PeerError, match=words),
    ):
        program.run_to_end(0.5 if script == FOREVER else 20)
    assert gone(program.pid)


def test_closing_stops_a_program_that_does_not_listen_and_its_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "SHUTDOWN_SECONDS", 0.1)
    program = BackgroundProgram("peer", ["sh", "-c", f"trap '' TERM; ({FOREVER}) & {FOREVER}"])
    pids = family(program, 4)
    assert len(pids) == 4
    program.close()
    assert gone(*pids)
    program.close()  # once more does no harm


def test_children_of_a_program_that_has_ended_are_stopped_too() -> None:
    program = BackgroundProgram("peer", ["sh", "-c", "sleep 60 & echo $!"])
    assert program.ended(10)
    child = int(program.output()[0])
    assert psutil.pid_exists(child)
    program.close()
    assert gone(child)


def test_no_program_survives_us_even_if_we_are_killed() -> None:
    script = f"""
        import time
        from paceline.bench.baselines.process import BackgroundProgram
        program = BackgroundProgram("peer", ["sh", "-c", "{FOREVER}"])
        print(program.pid, flush=True)
        time.sleep(60)
    """
    us = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert us.stdout is not None
    pid = int(us.stdout.readline())
    assert psutil.pid_exists(pid)
    us.send_signal(signal.SIGKILL)
    us.communicate()
    assert gone(pid)


def test_memory_is_that_of_a_program_and_its_children() -> None:
    program = BackgroundProgram("peer", ["sh", "-c", FOREVER])
    pids = family(program, 2)
    each = [psutil.Process(pid).memory_info().rss for pid in pids]
    assert len(each) == 2
    assert min(each) > 0
    assert program.memory() == sum(each)
    program.close()
    with pytest.raises(PeerError, match="peer has ended"):
        program.memory()
