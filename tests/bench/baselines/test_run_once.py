"""Programs that are run to their end: what they say, and those that never end or say too much."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep

import psutil
import pytest

from paceline.bench.baselines import run_once as module
from paceline.bench.baselines.run_once import run_once
from paceline.speculative.errors import PeerError


def shell(command: str, timeout: float = 60.0) -> tuple[int, str, str]:
    return run_once("peer", ["sh", "-c", command], timeout)


def test_what_it_says_on_either_side_is_kept(tmp_path: Path) -> None:
    assert shell("echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")
    seen: list[int] = []
    line = ["sh", "-c", "echo $X; pwd; sleep 0.1"]
    code, out, _ = run_once("peer", line, 60.0, folder=tmp_path, env={"X": "1"}, look=seen.append)
    assert (code, out) == (0, f"1\n{tmp_path}\n")
    assert len(set(seen)) == 1
    assert shell(r"printf '\377'")[1] == "\ufffd"


def test_one_that_says_more_than_any_program_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST", 1 << 20)
    for where in ("", ">&2"):
        with pytest.raises(PeerError, match=r"^peer wrote more than 1 MiB and was stopped"):
            shell(f"yes {where}", 20.0)


def test_one_that_never_ends_is_stopped_with_all_it_started(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"^peer did not end within 0.3 s and was stopped"):
        shell(f"sleep 600 & echo $! > {tmp_path}/pid; wait", 0.3)
    assert gone(tmp_path)


def test_what_it_leaves_behind_is_stopped(tmp_path: Path) -> None:
    assert shell(f"sleep 600 & echo $! > {tmp_path}/pid")[0] == 0
    assert gone(tmp_path)


def gone(folder: Path) -> bool:
    """Whether what was started has ended, or does within seconds."""
    pid = int((folder / "pid").read_text())
    deadline = monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if monotonic() > deadline:
            return False
        sleep(0.02)
    return True


def test_one_that_cannot_be_started_is_named() -> None:
    with pytest.raises(PeerError, match=r"^peer: /no/such/program cannot be started: No such file"):
        run_once("peer", ["/no/such/program"], 1.0)
