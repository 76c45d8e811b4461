"""Where new memory comes from, as the kernel itself tells it."""

from __future__ import annotations

import mmap
import platform
from pathlib import Path

import pytest

from paceline.core.errors import PacelineError
from paceline.machine.hardware import placement

MAPS = Path("/proc/self/numa_maps")
SIZE = 8 << 20

told = pytest.mark.skipif(
    not placement.placeable() or not MAPS.exists(), reason="this system does not tell where memory lies"
)


def policy_of(memory: mmap.mmap) -> str:
    """Of the mapping that these pages are in, the word of numa_maps."""
    import ctypes

    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    lines = [line.split() for line in MAPS.read_text().splitlines()]
    below = [line for line in lines if int(line[0], 16) <= address]
    return below[-1][1]


@told
def test_what_is_touched_meanwhile_is_spread_and_nothing_after_it() -> None:
    before, during, after = (mmap.mmap(-1, SIZE) for _ in range(3))
    try:
        before.write(b"x" * SIZE)
        with placement.spread([0]):
            during.write(b"x" * SIZE)
            assert policy_of(during) == "interleave:0"
        after.write(b"x" * SIZE)
        assert policy_of(after) == "default"
    except PacelineError as error:
        pytest.skip(str(error))  # a container forbids it


@told
def test_an_error_inside_ends_it_too() -> None:
    memory = mmap.mmap(-1, SIZE)
    try:
        with pytest.raises(KeyboardInterrupt), placement.spread([0]):
            raise KeyboardInterrupt
    except PacelineError as error:
        pytest.skip(str(error))
    memory.write(b"x" * SIZE)
    assert policy_of(memory) == "default"


@told
def test_what_was_chosen_before_is_chosen_again() -> None:
    preferred = (1, [0])  # as `numactl --preferred=0` leaves it
    try:
        before = placement.policy()
        placement.set_policy(preferred)
    except PacelineError as error:
        pytest.skip(str(error))
    try:
        with placement.spread([0]):
            assert placement.policy() == (placement.INTERLEAVE, [0])
        assert placement.policy() == preferred
    finally:
        placement.set_policy(before)
    assert placement.policy() == before


@told
def test_nodes_that_are_not_there_are_refused() -> None:
    with pytest.raises(PacelineError, match="cannot be spread"), placement.spread([63]):
        pass


def test_a_system_without_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not placement.placeable()
    with pytest.raises(PacelineError, match="on this system"), placement.spread([0]):
        pass
