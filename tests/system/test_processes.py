"""Limits of subprocesses count processor time and progress."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest

from paceline.system import processes
from paceline.system.processes import IdleError, OverusedError, run_within

run = partial(run_within, cpu_seconds=60.0, idle_seconds=60.0)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_output_of_any_size_and_the_exit_status_are_returned() -> None:
    done = run(python("import sys; print('x' * 200_000); sys.exit(3)"))
    assert (done.returncode, len(done.stdout)) == (3, 200_001)


LOOP = "while True: pass"
CHILD_LOOP = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {LOOP!r}])"


@pytest.mark.parametrize("loop", [LOOP, CHILD_LOOP])
def test_a_process_that_computes_too_long_is_ended_with_its_children(loop: str) -> None:
    with pytest.raises(OverusedError, match="computed"):
        run_within(python(loop), cpu_seconds=0.2, idle_seconds=60.0)


def test_a_process_without_progress_is_ended() -> None:
    with pytest.raises(IdleError, match="nothing"):
        run_within(python("import time; time.sleep(60)"), cpu_seconds=60.0, idle_seconds=0.5)


def test_a_slow_process_that_makes_progress_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """More polls than both limits allow in seconds, with a little processor time in each."""
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(processes, "_usage", lambda pid, before: (before[0] + 1e-4, 0))
    code = "import time; time.sleep(1)"
    assert run_within(python(code), cpu_seconds=0.1, idle_seconds=0.1).returncode == 0


def test_any_exception_kills_the_process() -> None:
    def interrupt(elapsed: float, cpu: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(python("import time; time.sleep(60)"), tick=interrupt)


def test_usage_of_an_ended_process_is_the_last_one_known() -> None:
    process = subprocess.Popen(python(""))
    process.wait()
    assert processes._usage(process.pid, (1.5, 7)) == (1.5, 7)
