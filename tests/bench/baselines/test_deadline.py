"""A limit on all of a conversation: what is hung up on, and what is left alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from paceline.bench.baselines.endpoint import OverdueError, deadline


@pytest.fixture
def line() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    ours.settimeout(30)
    with ours, theirs:
        yield ours


def read(line: socket.socket, then: BaseException | None = None) -> None:
    """Waits for what never comes."""
    with deadline(line, 0.05):
        assert line.recv(1) == b""  # as if the other side had hung up
        if then is not None:
            raise then


def test_a_read_that_waits_is_ended(line: socket.socket) -> None:
    with pytest.raises(OverdueError, match=r"^did not finish within 0.05 s$") as caught:
        read(line, OSError("broken"))  # as reads of what was hung up on may end
    assert str(caught.value.__cause__) == "broken"


def test_ctrl_c_stays_ctrl_c(line: socket.socket) -> None:
    with pytest.raises(KeyboardInterrupt):
        read(line, KeyboardInterrupt())


def test_what_ends_in_time_is_left_alone_and_so_is_its_error(line: socket.socket) -> None:
    with pytest.raises(ValueError, match="mine"), deadline(line, 60.0):
        raise ValueError("mine")
    line.sendall(b"still open")
