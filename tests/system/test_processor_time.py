"""A child is judged by its own processor time, not by the clock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from time import sleep
from types import SimpleNamespace

import psutil
import pytest

from paceline.system import processor_time
from paceline.system.processor_time import Overrun, limit_processor_time

LONG = 1000.0


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    monkeypatch.setattr(processor_time, "POLL_SECONDS", 0.002)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]) as sleeping:
        yield sleeping
        sleeping.kill()


def fake_polls(monkeypatch: pytest.MonkeyPatch, step: float) -> list[float]:
    """Let the child seem to use `step` seconds from poll to poll; return the polls."""
    polls = [0.0]

    def cpu_times() -> SimpleNamespace:
        polls.append(polls[-1] + step)
        return SimpleNamespace(user=polls[-1], system=1.0)

    monkeypatch.setattr(psutil, "Process", lambda _: SimpleNamespace(cpu_times=cpu_times))
    return polls


@pytest.mark.parametrize(("step", "slow"), [(1.0, True), (0.0, False)])
def test_child_is_killed_for_much_time_or_none(
    step: float, slow: bool, child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_polls(monkeypatch, step)
    with limit_processor_time(child, 5.0, 0.05) as overrun:
        assert child.wait()
    assert (overrun.slow, overrun.stalled) == (slow, not slow)


def test_child_that_gets_a_little_time_goes_on_however_long(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    polls = fake_polls(monkeypatch, 0.001)
    with limit_processor_time(child, LONG, 0.003) as overrun:
        while len(polls) < 50:
            sleep(0.001)
        assert child.poll() is None
    assert overrun == Overrun()
