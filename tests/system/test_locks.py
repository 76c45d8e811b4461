"""Locks between threads, and between processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from paceline.speculative.errors import PacelineError, UsageError
from paceline.system.locks import HOLDER, FairLock, run_lock

HOLD = """
import sys
from pathlib import Path
from paceline.system.locks import run_lock
with run_lock(Path(sys.argv[1])):
    print(flush=True)
    input()
"""


def test_a_fair_lock_is_given_in_the_order_of_asking() -> None:
    lock, taken = FairLock(), list[int]()

    def work(thread: int) -> None:
        for _ in range(30):
            with lock.acquire():
                taken.append(thread)
                time.sleep(0.0005)

    with ThreadPoolExecutor(4) as pool, lock.acquire():
        pool.map(work, range(4))
        time.sleep(0.05)
    assert len(taken) == 120
    assert sum(a != b for a, b in pairwise(taken)) >= 100


@pytest.mark.parametrize("damage", [Path.unlink, lambda holder: holder.write_bytes(b"\xff"), Path.touch])
def test_a_folder_in_use_is_refused_whoever_holds_it(
    damage: Callable[[Path], object], tmp_path: Path
) -> None:
    with run_lock(tmp_path):
        (tmp_path / HOLDER).write_text("")
        damage(tmp_path / HOLDER)
        with pytest.raises(UsageError, match="another process"), run_lock(tmp_path):
            pass


def test_a_folder_in_use_names_its_process_until_that_is_killed(tmp_path: Path) -> None:
    folder, arguments = tmp_path / "new" / "run", [sys.executable, "-c", HOLD, str(tmp_path / "new" / "run")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(UsageError, match=f"in use by process {holder.pid} "), run_lock(folder):
            pass
        holder.kill()
    with run_lock(folder), pytest.raises(UsageError, match="in use"), run_lock(folder):
        pass
    assert not list(folder.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(PacelineError, match="cannot be written"), run_lock(tmp_path / "file" / "run"):
        pass
