"""The suffix history against brute force, compiled and interpreted."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters import suffix_history as compiled

HERE = "paceline.drafters.suffix_history"
tokens = st.integers(0, 2)
texts = st.lists(st.lists(tokens, max_size=12), max_size=8)


def interpreted() -> ModuleType:
    """Import the module without numba."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numba", None)
        patch.delitem(sys.modules, HERE)
        return importlib.import_module(HERE)


MODULES = {"compiled": compiled, "interpreted": interpreted()}


@pytest.fixture(params=MODULES)
def module(request: pytest.FixtureRequest) -> ModuleType:
    return MODULES[request.param]


def places(
    module: ModuleType, past: compiled.SuffixHistory, text: list[int], most: int
) -> list[tuple[int, int]]:
    """Return (continuation, match length) of the places that `find` returns."""
    own = module.SuffixHistory()
    own.extend(text)
    ends, lengths = np.zeros(most, np.int64), np.zeros(most, np.int64)
    arrays = (past.ring, past.links, past.heads, past.state[0], own.ring, own.state[0])
    n = module.find(*arrays, most, ends, lengths, 0)
    return list(zip(ends[:n].tolist(), lengths[:n].tolist(), strict=True))


def expected(
    past: list[int], kept: int, text: list[int], lengths: tuple[int, ...], reach: int
) -> list[tuple[int, int]]:
    """Return the same by brute force. kept: tokens still in the ring."""
    found = []
    for end in range(1, len(past)):
        n = 0
        while (
            n < min(reach, len(text), end - (len(past) - kept))
            and past[end - 1 - n] == text[len(text) - 1 - n] >= 0
        ):
            n += 1
        if n:
            found.append((end, n))
    return sorted(found, key=lambda f: (-max(x for x in lengths if x <= f[1]), -f[0]))


@given(past=texts, text=st.lists(tokens, min_size=1, max_size=40), splits=st.booleans())
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("name", MODULES)
def test_every_place_is_found_longer_ngrams_first_then_recent_ones(
    name: str, past: list[list[int]], text: list[int], splits: bool
) -> None:
    module = MODULES[name]
    history = module.SuffixHistory()
    flat: list[int] = []
    for one in past:
        if flat and flat[-1] != module.SEPARATOR:
            flat.append(module.SEPARATOR)
        history.end_text()
        for part in [[token] for token in one] if splits else [one]:
            history.extend(part)
        flat += one
    found = places(module, history, text, 1000)
    assert found == expected(flat, len(flat), text, module.NGRAM_LENGTHS, module.MAX_MATCH_TOKENS)
    assert places(module, history, text, 3) == found[:3]


@given(past=st.lists(tokens, max_size=300), text=st.lists(tokens, min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("name", MODULES)
def test_of_a_full_ring_the_last_tokens_are_found_and_no_others(
    name: str, past: list[int], text: list[int]
) -> None:
    module = MODULES[name]
    history = module.SuffixHistory(limit=16)
    for at in range(0, len(past), 7):
        history.extend(past[at : at + 7])
    kept = min(16, len(past))
    assert len(history) == kept
    found = places(module, history, text, 1000)
    assert found == expected(past, kept, text, module.NGRAM_LENGTHS, module.MAX_MATCH_TOKENS)


def test_it_finds_the_same_after_growing_as_when_made_large_enough(module: ModuleType) -> None:
    text = np.random.default_rng(0).integers(0, 50, 5000).tolist()
    grown, made = module.SuffixHistory(), module.SuffixHistory(len(text))
    for at in range(0, len(text), 100):
        grown.extend(text[at : at + 100])
    made.extend(text)
    assert len(grown.ring) == len(made.ring) == 8192
    for array in ("ring", "links", "heads", "state"):
        assert np.array_equal(getattr(grown, array), getattr(made, array))


@given(past=texts, text=st.lists(tokens, max_size=40), said=st.lists(tokens, max_size=40))
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("name", MODULES)
def test_what_a_text_was_supposed_to_go_on_with_is_there_for_a_while(
    name: str, past: list[list[int]], text: list[int], said: list[int]
) -> None:
    module = MODULES[name]
    history, longer = module.SuffixHistory(), module.SuffixHistory()
    for one in [*past, text]:
        for each in (history, longer):
            each.end_text()
            each.extend(one)
    heads, state = bytes(history.heads), list(history.state)
    longer.extend(said)
    with history.with_continuation(said):
        assert places(module, history, said or [0], 1000) == places(module, longer, said or [0], 1000)
        assert list(history.state) == list(longer.state)
    assert (bytes(history.heads), list(history.state)) == (heads, state)
    history.extend(said)
    assert all(
        bytes(getattr(history, array)) == bytes(getattr(longer, array))
        for array in ("ring", "links", "heads", "state")
    )


def test_what_is_supposed_is_taken_back_when_something_fails(module: ModuleType) -> None:
    history = module.SuffixHistory()
    history.extend([1, 2, 3])
    with pytest.raises(KeyError), history.with_continuation([7, 8]):
        raise KeyError
    assert len(history) == 3
    assert places(module, history, [7], 10) == []


def test_positions_beyond_32_bits_are_told_apart(module: ModuleType) -> None:
    """Entries are positions modulo 2**32."""
    history = module.SuffixHistory(limit=1024)
    history.state[0] = (1 << 32) - 5
    history.extend([7, 8, 9, 1, 7, 8, 9])
    total = int(history.state[0])
    assert total == (1 << 32) + 2
    ends = [end - total for end, _ in places(module, history, [7, 8, 9], 10)]
    assert ends == [-4]


def test_a_frequent_ngram_does_not_hide_a_rare_one_of_another_level(module: ModuleType) -> None:
    history = module.SuffixHistory()
    history.extend([1, 2, 3, 4, 5, 6, 7, 8, 9])
    history.end_text()
    history.extend([0] * 600)
    assert places(module, history, [1, 2, 3, 4, 5, 6, 7, 8], 10) == [(8, 8)]


def test_without_a_folder_for_the_cache_it_compiles_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba")
    real = numba.njit

    def njit(*function: Callable[..., int], **options: bool) -> object:
        if options:
            raise RuntimeError("cannot cache function: no locator available")
        return real(*function)

    def next_one(n: int) -> int:
        return n + 1

    monkeypatch.setattr(numba, "njit", njit)
    made = compiled.compiled(next_one)
    assert hasattr(made, "py_func")
    assert made(1) == 2
