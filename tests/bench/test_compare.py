"""Differences between two outputs: position, gap, and noise of batching."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import paceline
from paceline.api import LLM
from paceline.backends.logit_drift import teacher_forced_logits
from paceline.backends.toy import ToySession, ToyTarget
from paceline.bench.text_comparison import Difference, OutputComparison, explain, judge, warm_up
from paceline.speculative.errors import NotLosslessError
from paceline.speculative.interfaces import Budget, Session
from paceline.speculative.sampling import Sampling

PROMPT = [1, 2, 3]
TEXT = [4, 5, 6, 7, 0, 1, 2, 3]


def test_a_difference_has_the_gap_between_the_two_tokens_and_not_the_best_two() -> None:
    target = ToyTarget()
    other = [*TEXT[:4], 6, 1, 1]
    row = teacher_forced_logits(target, [*PROMPT, *TEXT], 3, 1)[4]
    gap = float(row[0] - row[6])
    assert gap != 0.0
    difference = explain(target, PROMPT, TEXT, other, Budget(4, 4))
    assert difference is not None
    assert difference == Difference(4, gap, 0.0)
    assert (difference.tokens, difference.drafted_gap) == ((0, 6), gap)
    assert not difference.near_tie
    assert Difference(4, 0.001, 0.001).near_tie


class Muddled(ToySession):
    """A session that commits accepted tokens with the cells of the first one."""

    def commit(self, path: Sequence[int], root: int) -> None:
        if path:
            self._tree_states[path[-1] + 1] = self._tree_states[1]
        super().commit(path, root)


class MuddledTarget(ToyTarget):
    def open(self, beside: Session | None = None) -> ToySession:
        return Muddled(self)


def test_an_engine_that_mixes_up_its_cells_cannot_pass_that_off_as_noise() -> None:
    other = [*TEXT[:4], 6, 1, 1]
    difference = explain(MuddledTarget(), PROMPT, TEXT, other, Budget(2, 2))
    assert difference is not None
    assert difference.noise == 0.0
    assert difference.drafted_gap != difference.gap
    assert not difference.near_tie


def test_noise_beyond_what_rounding_can_do_excuses_nothing() -> None:
    assert Difference(4, 0.2, 0.3, spread=2.0).near_tie
    assert not Difference(4, 0.2, 2.01, spread=2.0).near_tie
    # Nor is one that passes of several rows do not see: something else has made it.
    assert Difference(4, 0.2, 0.3, spread=2.0, drafted_gap=-0.3).near_tie
    assert not Difference(4, 0.2, 0.3, spread=2.0, drafted_gap=0.31).near_tie


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
    assert biased.gap == pytest.approx(plain.gap - 100.0)


TEXT_PROMPT = [10, 20, 30, 40] * 12
SAMPLED = Sampling(temperature=0.8)


@pytest.fixture
def llm(models: Path) -> Iterator[LLM]:
    with paceline.load(models / "target.gguf", models / "draft.gguf", threads=1, n_ctx=128) as llm:
        yield llm


def test_equal_outputs_are_identical_however_they_were_sampled(llm: LLM) -> None:
    assert judge(llm, TEXT_PROMPT, [1, 2], [1, 2], Sampling()) == OutputComparison(True, "yes")
    assert judge(llm, TEXT_PROMPT, [1, 2], [1, 2], SAMPLED) == OutputComparison(True, "yes")


def test_sampled_outputs_that_differ_prove_nothing(llm: LLM) -> None:
    judgement = judge(llm, TEXT_PROMPT, [1, 2], [1, 3], SAMPLED)
    assert (judgement.identical, judgement.at, judgement.difference) == (False, 1, None)
    assert judgement.verdict.startswith("no: not from token 1 on")
    judgement.require_lossless()


def test_greedy_outputs_that_differ_beyond_noise_are_an_error(llm: LLM) -> None:
    plain = llm.generate(TEXT_PROMPT, max_tokens=6, plain=True, ignore_eos=True).tokens
    other = (*plain[:3], (plain[3] + 1) % 256, *plain[4:])
    judgement = judge(llm, TEXT_PROMPT, plain, other, Sampling())
    assert (judgement.identical, judgement.at, judgement.verdict) == (False, 3, "NO: not from token 3 on")
    with pytest.raises(NotLosslessError, match="from token 3 on: the two tokens' logits are"):
        judgement.require_lossless()
    dry = llm.sampling(dry_multiplier=0.8, dry_sequence_breakers=(llm.target.text.piece(40).decode(),))
    judged = judge(llm, TEXT_PROMPT, [10], [11], replace(dry, dry_breakers={})).difference
    assert judged == explain(llm.target, TEXT_PROMPT, [10], [11], llm.drafting.budget, Sampling())


def test_after_the_warm_up_the_prompt_is_in_the_targets_cache_and_not_in_the_drafts(llm: LLM) -> None:
    assert llm.draft is not None
    warm_up(llm, TEXT_PROMPT)
    target, draft = llm.target.cache.slots[0].cached, llm.draft.cache.slots[0].cached  # type: ignore[attr-defined]
    assert target[: len(TEXT_PROMPT)] == TEXT_PROMPT
    assert draft == []
    assert llm.draft._decoder._passes > 0  # type: ignore[attr-defined]
