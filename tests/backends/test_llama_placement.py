"""Pinned threads and interleaved memory."""

from __future__ import annotations

import ctypes
import os
import platform
from pathlib import Path
from typing import Any

import pytest

from paceline.backends.llama_cpp import placement
from paceline.backends.llama_cpp.target import LlamaTarget
from paceline.settings import INTERLEAVE, PINNED
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import NO_OUTPUTS
from paceline.speculative.tree import EMPTY

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two processors"
)


def cores_of_pinned_threads() -> set[int]:
    each = [os.sched_getaffinity(int(thread.name)) for thread in Path("/proc/self/task").iterdir()]
    return set().union(*(cpus for cpus in each if len(cpus) == 1))


def compute(target: LlamaTarget) -> tuple[list[float], set[int]]:
    """Return the logits of a pass, and the cores of the threads that are pinned after it."""
    session = target.open()
    session.extend([1, 2, 3])
    (out,) = target.forward([(session, EMPTY)], NO_OUTPUTS)
    row, cores = out.logits(0).tolist(), cores_of_pinned_threads()
    session.close()
    return row, cores


def test_pinned_threads_have_a_core_each_and_another_model_has_all_again(models: Path) -> None:
    everywhere = os.sched_getaffinity(0)
    settings: Any = {"threads": 2, "kernels": False}
    plain = LlamaTarget(models / "target.gguf", **settings)
    pinned = LlamaTarget(models / "target.gguf", placement=PINNED, **settings)
    try:
        row, _ = compute(plain)
        pinned_row, cores = compute(pinned)
        assert pinned_row == row
        assert len(cores) == 2
        compute(plain)
        assert os.sched_getaffinity(0) == everywhere
        compute(pinned)
    finally:
        plain.close()
        pinned.close()
    assert os.sched_getaffinity(0) == everywhere


@pytest.mark.skipif(platform.machine() not in placement.SET_MEMPOLICY, reason="another processor")
def test_interleaved_memory_is_asked_for_only_while_a_model_is_loaded() -> None:
    def policy() -> int:
        mode = ctypes.c_int(-1)
        ctypes.CDLL(None).syscall(placement.SET_MEMPOLICY[platform.machine()] + offset, ctypes.byref(mode),
                                  None, ctypes.c_ulong(0), None, ctypes.c_ulong(0))  # fmt: skip
        return mode.value

    offset = 1 if platform.machine() == "x86_64" else -1  # get_mempolicy
    with placement.interleaved(INTERLEAVE, nodes=[0, 0]):
        assert policy() == placement.MPOL_INTERLEAVE
    assert policy() == placement.MPOL_DEFAULT
    with pytest.raises(UsageError, match="1 memory node"), placement.interleaved(INTERLEAVE, nodes=[0]):
        pass
