"""A limit on all of a conversation: what is hung up on, and what is left alone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from paceline.system.deadline import Deadline, OverdueError


@pytest.fixture
def line() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    with ours, theirs:
        yield ours


def read(line: socket.socket, then: BaseException | None = None) -> None:
    """Waits for what never comes."""
    with Deadline(0.05) as deadline:
        deadline.watch(lambda: line)
        assert line.recv(1) == b""  # as if the other side had hung up
        if then is not None:
            raise then


def test_a_read_that_waits_is_ended(line: socket.socket) -> None:
    with pytest.raises(OverdueError, match=r"^did not finish within 0.05 s$"):
        read(line)


def test_a_connection_that_is_made_too_late_is_ended_too(line: socket.socket) -> None:
    made, looked = threading.Event(), threading.Event()

    def current() -> socket.socket | None:
        looked.set()
        return line if made.is_set() else None

    def read_late() -> None:
        with Deadline(0.01) as deadline:
            deadline.watch(current)
            assert looked.wait(30)
            made.set()
            line.recv(1)

    with pytest.raises(OverdueError):
        read_late()


def test_what_fails_because_it_was_hung_up_on_is_overdue(line: socket.socket) -> None:
    with pytest.raises(OverdueError) as caught:
        read(line, OSError("broken"))
    assert str(caught.value.__cause__) == "broken"


def test_ctrl_c_stays_ctrl_c(line: socket.socket) -> None:
    with pytest.raises(KeyboardInterrupt):
        read(line, KeyboardInterrupt())


def test_what_ends_in_time_is_left_alone_and_so_is_its_error(line: socket.socket) -> None:
    deadline = Deadline(60.0)
    deadline.watch(lambda: line)
    with pytest.raises(ValueError, match="mine"), deadline:
        raise ValueError("mine")
    line.sendall(b"still open")


def test_time_that_is_extended_begins_anew(line: socket.socket) -> None:
    waiting = threading.Event()
    with Deadline(0.5) as deadline:
        deadline.watch(lambda: line)
        for _ in range(4):
            waiting.wait(0.2)
            deadline.extend()
    line.sendall(b"still open")
