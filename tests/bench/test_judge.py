"""The verdict over two outputs, and the fair start before them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline
from paceline.api import LLM
from paceline.bench.near_ties import OutputComparison, judge, warm_up
from paceline.bench.text_comparison import Difference
from paceline.speculative.errors import LosslessError
from paceline.speculative.sampling import Sampling

PROMPT = [10, 20, 30, 40] * 12
GREEDY = Sampling()
SAMPLED = Sampling(temperature=0.8)


@pytest.fixture
def llm(models: Path) -> Iterator[LLM]:
    with paceline.load(models / "target.gguf", models / "draft.gguf", threads=1, n_ctx=128) as llm:
        yield llm


def test_equal_outputs_are_identical_however_they_were_sampled(llm: LLM) -> None:
    assert judge(llm, PROMPT, [1, 2], [1, 2], GREEDY) == OutputComparison(True, "yes")
    assert judge(llm, PROMPT, [1, 2], [1, 2], SAMPLED) == OutputComparison(True, "yes")


def test_sampled_outputs_that_differ_prove_nothing(llm: LLM) -> None:
    judgement = judge(llm, PROMPT, [1, 2], [1, 3], SAMPLED)
    assert (judgement.identical, judgement.at, judgement.difference) == (False, 1, None)
    assert (
        judgement.said == "no: not from token 1 on, where rounding can have moved a draw; --temp 0 can tell"
    )
    judgement.require_lossless()


def test_greedy_outputs_that_differ_beyond_noise_are_an_error(llm: LLM) -> None:
    plain = llm.generate(PROMPT, max_tokens=6, plain=True, ignore_eos=True).tokens
    other = (*plain[:3], (plain[3] + 1) % 256, *plain[4:])
    judgement = judge(llm, PROMPT, plain, other, GREEDY)
    assert (judgement.identical, judgement.at, judgement.said) == (False, 3, "NO: not from token 3 on")
    with pytest.raises(LosslessError, match="from token 3 on: the two tokens' logits are"):
        judgement.require_lossless()


def test_a_near_tie_is_no_error() -> None:
    OutputComparison(False, "up to token 3", 3, Difference(3, 1e-6, 1e-5)).require_lossless()


def test_after_the_warm_up_the_prompt_is_in_the_targets_cache_and_not_in_the_drafts(llm: LLM) -> None:
    assert llm.draft is not None
    warm_up(llm, PROMPT)
    target, draft = llm.target.cache.slots[0].cached, llm.draft.cache.slots[0].cached  # type: ignore[attr-defined]
    assert target[: len(PROMPT)] == PROMPT
    assert draft == []
    assert llm.draft._passes > 0  # type: ignore[attr-defined]
