"""Threads that take turns at computing do not keep each other's processors."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.backends.llama_cpp import LlamaTarget, binding
from paceline.models import zoo
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY
from paceline.system.forks import OpenMPThreads


class Library:
    """It knows which threads have let their helpers go."""

    def __init__(self) -> None:
        self.released: list[int] = []

    def omp_pause_resource_all(self, _kind: int) -> int:
        self.released.append(threading.get_ident())
        return 0


def elsewhere(work: Callable[[], None]) -> int:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert thread.ident is not None
    return thread.ident


def test_a_thread_that_computes_alone_keeps_its_helpers() -> None:
    library = Library()
    helpers = OpenMPThreads(library)
    for _ in range(3):
        helpers.on_compute()
    assert library.released == []


def test_threads_that_take_turns_let_theirs_go_at_each() -> None:
    library = Library()
    helpers = OpenMPThreads(library)
    helpers.on_compute()
    other = elsewhere(helpers.on_compute)
    helpers.on_compute()
    assert library.released == [other, threading.get_ident()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_none_to_let_go() -> None:
    library = Library()
    helpers = OpenMPThreads(library)
    pid = os.fork()
    if not pid:
        helpers.release()
        os._exit(len(library.released))
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_session_of_llama_cpp_that_ends_leaves_no_threads_behind() -> None:
    tasks = Path("/proc/self/task")
    target = LlamaTarget(zoo.target_path(), n_ctx=64, threads=3)
    if not hasattr(binding.llama_cpp()._lib, "omp_pause_resource_all"):
        pytest.skip("llama.cpp was built without OpenMP")
    try:
        binding.helpers().release()
        before = set(tasks.iterdir())
        session = target.open()
        session.extend([1, 2, 3])
        target.forward([(session, EMPTY)], RequiredOutputs())
        assert len(set(tasks.iterdir()) - before) == 2
        session.close()
        assert not set(tasks.iterdir()) - before
    finally:
        target.close()
