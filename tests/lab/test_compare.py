"""What a difference between two outputs is made of: its place, the gap, and the noise of batching."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from paceline.core.ports import Budget, Want
from paceline.core.sampling import Sampling
from paceline.core.tree import ROOT, DraftTree
from paceline.engines.toy import ToyForward, ToySession, ToyTarget
from paceline.lab import compare
from paceline.lab.compare import (
    Difference,
    among_decoys,
    batch_noise,
    explain,
    first_difference,
    teacher_forced,
)

PROMPT = [1, 2, 3]
TEXT = [4, 5, 6, 7, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("a", "b", "index"),
    [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([1, 2], [1], 1)],
)
def test_the_first_difference_is_a_token_or_an_end(a: list[int], b: list[int], index: int | None) -> None:
    assert first_difference(a, b) == index


def test_noise_is_what_two_logits_of_one_row_moved_apart() -> None:
    a = np.zeros((2, 3))
    b = np.array([[1.0, 1.0, 1.0], [0.5, -0.25, 0.0]])
    assert batch_noise(a, b) == 0.75


@pytest.mark.parametrize("budget", [Budget(0, 0), Budget(3, 3), Budget(3, 6, width=2), Budget(20, 20)])
def test_teacher_forcing_gives_the_rows_of_plain_decoding_in_any_shape(budget: Budget) -> None:
    target = ToyTarget()
    tokens = [*PROMPT, *TEXT]
    rows = []
    state = None
    for token in tokens[:-1]:
        state = target.after(state, token)
        rows.append(target.logits(state))
    np.testing.assert_array_equal(teacher_forced(target, tokens, 3, budget), np.stack(rows[2:]))


def test_the_right_branch_stands_last_among_decoys_that_differ_from_it() -> None:
    tree, path = among_decoys([5, 6], 3, 8)
    assert tree.parents == (ROOT, ROOT, ROOT, 0, 1, 2)
    assert [tree.tokens[node] for node in path] == [5, 6]
    assert path == [2, 5]
    assert len(set(tree.tokens[:3])) == len(set(tree.tokens[3:])) == 3


def test_equal_outputs_have_no_difference() -> None:
    assert explain(ToyTarget(), PROMPT, TEXT, TEXT, Budget(4, 4)) is None


def test_a_difference_has_the_gap_between_the_two_tokens_and_not_the_best_two() -> None:
    target = ToyTarget()
    other = [*TEXT[:4], 6, 1, 1]
    row = teacher_forced(target, [*PROMPT, *TEXT], 3, Budget(0, 0))[4]
    gap = abs(float(row[0] - row[6]))
    assert explain(target, PROMPT, TEXT, other, Budget(4, 4)) == Difference(4, gap, 0.0)
    assert gap > 0.0
    assert not Difference(4, gap, 0.0).near_tie
    assert Difference(4, 0.001, 0.001).near_tie


class Muddled(ToySession):
    """Commits an accepted branch with the cells of the first one."""

    def keep(self, path: Sequence[int], root: int) -> None:
        if path:
            self._grown[path[-1] + 1] = self._grown[1]
        super().keep(path, root)


def test_an_engine_that_mixes_up_its_branches_cannot_pass_that_off_as_noise() -> None:
    class Target(ToyTarget):
        def open(self) -> ToySession:
            return Muddled(self)

    other = [*TEXT[:4], 6, 1, 1]
    difference = explain(Target(), PROMPT, TEXT, other, Budget(4, 8, width=2))
    assert difference is not None
    assert difference.gap < difference.noise
    assert not difference.near_tie


def test_a_forbidden_token_does_not_spoil_the_noise() -> None:
    sampling = Sampling(logit_bias={2: -math.inf})
    difference = explain(ToyTarget(), PROMPT, TEXT, [*TEXT[:4], 6], Budget(4, 4), sampling)
    assert difference is not None
    assert difference.noise == 0.0


def test_an_output_that_ends_early_is_never_a_near_tie() -> None:
    difference = explain(ToyTarget(), PROMPT, TEXT, TEXT[:3], Budget(4, 4))
    assert difference == Difference(3, math.inf, 0.0)
    assert not difference.near_tie


def test_the_gap_is_that_of_the_logits_the_request_sampled_from() -> None:
    target = ToyTarget()
    other = [*TEXT[:4], 6]
    plain = explain(target, PROMPT, TEXT, other, Budget(4, 4))
    biased = explain(target, PROMPT, TEXT, other, Budget(4, 4), Sampling(logit_bias={6: 100.0}))
    assert plain is not None
    assert biased is not None
    assert biased.gap == pytest.approx(100.0, abs=plain.gap + 1e-9)


@pytest.mark.parametrize(
    ("index", "window"), [(0, (1, 128)), (70, (9, 137)), (200, (139, 267)), (399, (275, 403))]
)
def test_of_a_long_text_a_window_around_the_difference_is_computed_again(
    monkeypatch: pytest.MonkeyPatch, index: int, window: tuple[int, int]
) -> None:
    windows: list[tuple[int, int]] = []

    def noting(target: ToyTarget, tokens: list[int], start: int, budget: Budget) -> np.ndarray:
        windows.append((start, len(tokens)))
        return teacher_forced(target, tokens, start, budget)

    monkeypatch.setattr(compare, "teacher_forced", noting)
    long = TEXT * 50
    other = (long[index] + 1) % 8
    row = teacher_forced(ToyTarget(), [*PROMPT, *long], 3, Budget(0, 0))[index]
    difference = explain(ToyTarget(), PROMPT, long, [*long[:index], other], Budget(4, 4))
    assert difference == Difference(index, abs(float(row[long[index]] - row[other])), 0.0)
    assert windows == [window] * 2


def test_made_up_drafts_fit_the_pass_and_the_context() -> None:
    target = ToyTarget(n_ctx=len(PROMPT) + len(TEXT))
    sizes: list[int] = []
    forward = target.forward

    def noting(batch: list[tuple[ToySession, DraftTree]], want: Want) -> list[ToyForward]:
        sizes.append(len(batch[0][1]))
        assert len(batch[0][0].tokens) + sizes[-1] <= target.caps.n_ctx
        return forward(batch, want)

    target.forward = noting  # type: ignore[assignment, method-assign]
    teacher_forced(target, [*PROMPT, *TEXT], 3, Budget(600, 1200, width=2))
    assert sizes == [8, 2, 0]
