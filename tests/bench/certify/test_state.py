"""The state check: exact engines pass, and every wrong cache is detected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.backends.llama_cpp import LlamaTarget
from paceline.backends.logit_drift import batch_logit_drift
from paceline.backends.toy import ToySession, ToyTarget
from paceline.bench.certify.state import StateCheck, among_decoys, check_state
from paceline.speculative.interfaces import Budget, Target
from paceline.speculative.tree import ROOT
from planted import STATE_MISTAKES

TEXTS = [[1, 2, 3, 4, 5, 6, 7, 0] * 5, [7, 7, 1, 0, 2, 6, 3] * 6]


def check(target: Target, budget: Budget) -> StateCheck:
    ticks: list[None] = []
    state = check_state(target, TEXTS, budget, 0.0, sequences=12, seed=1, tick=lambda: ticks.append(None))
    assert len(ticks) == state.sequences == 12
    return state


@pytest.mark.parametrize("budget", [Budget(4, 12, width=3), Budget(0, 0)])
def test_an_exact_engine_has_the_state_of_its_text(budget: Budget) -> None:
    state = check(ToyTarget(), budget)
    assert state.passed
    assert state.worst == 0.0
    assert state.tokens > 12 * 20


def broken(keep: str) -> type[ToySession]:
    class Broken(ToySession):
        def commit(self, path: Sequence[int], root: int) -> None:
            if keep == "rejected cells stay" and self._tree_states:
                extra = [state for node, state in enumerate(self._tree_states[1:]) if node not in path][:1]
                super().commit(path, root)
                self._states += extra
                return
            if keep == "first branch for the accepted one" and path:
                self._tree_states[path[-1] + 1] = self._tree_states[1]
            super().commit(path, root)
            if keep == "root forgotten" and not path and len(self._states) > 1:
                self._states[-1] = self._states[-2]

    return Broken


@pytest.mark.parametrize(
    "mistake", ["rejected cells stay", "first branch for the accepted one", "root forgotten"]
)
def test_cells_that_are_left_over_or_misplaced_are_caught(mistake: str) -> None:
    target, session = ToyTarget(), broken(mistake)
    target.open = lambda beside=None: session(target)  # type: ignore[method-assign]
    assert not check(target, Budget(4, 12, width=3)).passed


@pytest.fixture
def beside(models: Path) -> Iterator[LlamaTarget]:
    """Load a target with two sessions."""
    with closing(LlamaTarget(models / "target.gguf", n_ctx=128, sessions=2)) as target:
        yield target


def noisy(target: LlamaTarget) -> StateCheck:
    texts = [[token % target.vocab.size for token in text] for text in TEXTS]
    noise = max(batch_logit_drift(target, text, 8) for text in texts)
    budget = Budget(4, 12, width=3)
    return check_state(target, texts, budget, noise, sequences=8, seed=1, tick=lambda: None)


def test_two_sessions_walk_side_by_side_where_there_is_room(beside: LlamaTarget, models: Path) -> None:
    state = noisy(beside)
    assert (state.passed, state.beside) == (True, True)
    assert state.rows > (100 if beside.caps.equal_rows else 15)
    assert not beside.caps.equal_rows or (state.worst, state.limit) == (0.0, 0.0)
    with closing(LlamaTarget(models / "target.gguf", n_ctx=128)) as alone:
        assert not noisy(alone).beside


@pytest.mark.parametrize("name", STATE_MISTAKES)
def test_a_mistake_of_the_cache_is_caught(beside: LlamaTarget, name: str) -> None:
    with STATE_MISTAKES[name]():
        assert not noisy(beside).passed


def test_what_passes_may_move_a_row_by_twice_the_noise_and_never_by_much_of_its_spread() -> None:
    for passing, failing, noise in ((0.2, 0.21, 0.1), (2.0, 2.01, 1.5), (1e-5, 1e-3, 0.0)):
        assert StateCheck(1, 1, passing, noise, spread=2.0).passed
        assert not StateCheck(1, 1, failing, noise, spread=2.0).passed


def test_a_row_that_is_not_a_number_never_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    values = chain([0.0, float("nan")], repeat(0.0))
    monkeypatch.setattr("paceline.bench.certify.state.max_logit_difference", lambda a, b: next(values))
    assert not check(ToyTarget(), Budget(2, 2)).passed


@given(
    depth=st.integers(0, 5),
    width=st.integers(1, 4),
    nodes=st.integers(0, 12),
    right=st.lists(st.integers(0, 7), max_size=5),
    seed=st.integers(0, 99),
)
@settings(max_examples=20, deadline=None)
def test_decoys_stay_within_the_budget_and_the_right_path_is_one(
    depth: int, width: int, nodes: int, right: list[int], seed: int
) -> None:
    tree, path = among_decoys(right[:depth], depth, width, nodes, 8, np.random.default_rng(seed))
    assert len(tree) <= min(nodes, depth * width)
    assert max(tree.depths(), default=0) <= depth
    assert [tree.tokens[node] for node in path] == right[: len(path)]
    tree.check_path(path)
    assert tree.parents.count(ROOT) <= width
