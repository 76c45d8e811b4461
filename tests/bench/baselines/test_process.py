"""Programs that are started to be measured: what they say when they fail, and that none is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from time import monotonic, sleep

import psutil
import pytest

from paceline.bench.baselines import process
from paceline.bench.baselines.process import BackgroundProgram, free_port, require_free
from paceline.speculative.errors import PeerError

FOREVER = "while :; do sleep 60 & wait; done"


def gone(*pids: int) -> bool:
    """Whether all of them have ended, or do within seconds."""
    deadline = monotonic() + 10
    while monotonic() < deadline:
        alive = [pid for pid in pids if psutil.pid_exists(pid)]
        if all(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in alive):
            return True
        sleep(0.02)
    return False


def family(program: BackgroundProgram, size: int) -> list[int]:
    """The pids of a program and its children, once there are `size`."""
    deadline = monotonic() + 10
    found = [program.pid]
    while len(found) < size and monotonic() < deadline:
        found = [program.pid, *(c.pid for c in psutil.Process(program.pid).children(recursive=True))]
        sleep(0.01)
    return found


def test_a_program_that_ends_before_it_is_ready_is_quoted() -> None:
    program = BackgroundProgram("peer", ["sh", "-c", "echo starting; echo no such model >&2; exit 3"])
    with pytest.raises(
        PeerError, match=r"^peer ended with exit status 3; its last words: starting\nno such model$"
    ):
        program.wait_ready(lambda: False, 10)
    program.close()


def test_a_program_that_was_killed_is_told_from_one_that_failed() -> None:
    program = BackgroundProgram("peer", ["sh", "-c", "kill -s SEGV $$"])
    with pytest.raises(PeerError, match=r"^peer was ended by SIGSEGV, without a word$"):
        program.wait_ready(lambda: False, 10)
    program.close()


def test_last_words_are_quoted_within_reason() -> None:
    program = BackgroundProgram("peer", ["sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x; exit 3"])
    with pytest.raises(PeerError, match=r"^peer ended with exit status 3; its last words: x{300}\.\.\.$"):
        program.wait_ready(lambda: False, 10)
    program.close()


def test_a_program_that_never_gets_ready_is_given_up() -> None:
    program = BackgroundProgram("peer", ["sh", "-c", f"echo loading; {FOREVER}"])
    with pytest.raises(PeerError, match=r"^peer was not ready within 0.3 s; its last words: loading$"):
        program.wait_ready(lambda: False, 0.3)
    program.close()
    assert gone(program.pid)


def test_a_program_that_cannot_be_started_is_named() -> None:
    with pytest.raises(PeerError, match=r"peer: /no/such/program cannot be started: No such file"):
        BackgroundProgram("peer", ["/no/such/program"])


def test_closing_stops_a_program_that_does_not_listen_and_its_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "PATIENCE", 0.1)
    program = BackgroundProgram("peer", ["sh", "-c", f"trap '' TERM; ({FOREVER}) & {FOREVER}"])
    pids = family(program, 4)
    assert len(pids) == 4
    program.close()
    assert gone(*pids)
    program.close()  # once more does no harm


def test_children_of_a_program_that_has_ended_are_stopped_too() -> None:
    program = BackgroundProgram("peer", ["sh", "-c", "sleep 60 & echo $!"])
    assert program.ended(10)
    child = int(program.said())
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


def test_a_port_that_is_taken_is_refused_and_a_free_one_can_be_used() -> None:
    port = free_port()
    assert require_free(port) == port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(PeerError, match=rf"port {port} cannot be used \({os.strerror(98)}\): stop what"):
            require_free(port)
