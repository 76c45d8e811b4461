"""What a pair takes of the machine's memory."""

from __future__ import annotations

from types import SimpleNamespace

import psutil
import pytest

from advice_facts import facts
from paceline.doctor.draft_advice.measuring import available_memory
from paceline.doctor.draft_advice.ranking import memory_needed
from paceline.hardware.gpus import Gpu


def test_weights_and_the_same_context_of_both() -> None:
    assert memory_needed((facts(size=1000, kv_bytes=30), facts(size=100, kv_bytes=2)), 10) == (1420, True)


def test_a_size_that_is_not_known_makes_a_lower_bound_but_nothing_is_a_size() -> None:
    assert memory_needed((facts(size=1, kv_bytes=64), facts(size=1, kv_bytes=0)), 10) == (642, False)
    stateful = facts(size=1, kv_bytes=0, memory="recurrent")
    assert memory_needed((facts(size=1, kv_bytes=64), stateful), 10) == (642, True)


@pytest.mark.parametrize(("limit", "free"), [(None, 1000), (300, 300), (5000, 1000)])
def test_a_containers_limit_counts(limit: int | None, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    monkeypatch.setattr("paceline.hardware.containers.read", lambda _: SimpleNamespace(memory=limit))
    assert available_memory() == free


def test_the_memory_of_gpus_counts_where_layers_lie_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (
        Gpu("NVIDIA", "H200", 10**11, 10**10),
        Gpu("AMD", "unknown"),
        Gpu("Apple", "M", free=5, shared=True),
    )
    monkeypatch.setattr("paceline.hardware.gpus.read", lambda files: found)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000))
    monkeypatch.setattr("paceline.hardware.containers.read", lambda _: SimpleNamespace(memory=None))
    assert (available_memory(), available_memory(gpus=True)) == (1000, 1000 + 10**10)
