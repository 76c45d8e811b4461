"""Log-probabilities are those of the target's unmodified rows, whichever drafter proposed the token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from automaton import Automaton
from decoding import decoded
from paceline.backends.toy import ToyTarget
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.speculative.interfaces import Budget, Drafter, Grammar
from paceline.speculative.sampling import Sampling, logprob
from paceline.speculative.stats import Logprob, Step
from rows import text_rows

V = 4
PROMPT = [0, 1, 2, 0, 1]
DRAFTERS: dict[str, tuple[Drafter, Budget]] = {
    "none": (NoDrafter(), Budget(0, 0)),
    "lookup": (LookupDrafter(1, 3), Budget(4, 4)),
    "tree": (ModelDrafter(ToyTarget(V, seed=5, noise=0.3), V), Budget(3, 9, width=3, p_split=0.01)),
    "sampled tree": (ModelDrafter(ToyTarget(V, seed=5), V, temperature=1.0), Budget(3, 6, width=2)),
}
SAMPLINGS = {
    "greedy": Sampling(),
    "filtered": Sampling(temperature=1.5, top_k=2),
    "edited": Sampling(temperature=0.7, frequency_penalty=1.0, logit_bias={1: 2.0}),
}


def steps(
    drafter: Drafter,
    budget: Budget,
    sampling: Sampling,
    logprobs: int,
    grammar: Grammar | None = None,
) -> list[Step]:
    given: dict[str, Any] = {"sampling": sampling, "logprobs": logprobs}
    return decoded(ToyTarget(V, seed=5), drafter, PROMPT, 12, budget, grammar=grammar, **given)[1]


def by_hand(tokens: Sequence[int], n_top: int) -> list[Logprob]:
    """Return the log-softmax of every row, computed singly."""
    target = ToyTarget(V, seed=5)
    out = []
    for n, token in enumerate(tokens):
        (row,) = text_rows(target, [*PROMPT, *tokens[:n]])
        said = row - math.log(np.exp(row).sum())
        top = sorted(range(V), key=lambda t: (-said[t], t))[:n_top]
        out.append(Logprob(float(said[token]), tuple((t, float(said[t])) for t in top)))
    return out


def assert_same(told: Sequence[Logprob], right: Sequence[Logprob]) -> None:
    assert [[t for t, _ in one.top] for one in told] == [[t for t, _ in one.top] for one in right]
    for ours, theirs in zip(told, right, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-12)
        assert [x for _, x in ours.top] == pytest.approx([x for _, x in theirs.top], abs=1e-12)


@pytest.mark.parametrize("n_top", [0, 1, 3, V])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize(("drafter", "budget"), DRAFTERS.values(), ids=DRAFTERS)
def test_each_token_has_its_rows_log_softmax(
    drafter: Drafter, budget: Budget, sampling: Sampling, n_top: int
) -> None:
    done = steps(drafter, budget, sampling, n_top)
    tokens = [token for step in done for token in step.tokens]
    assert [len(step.logprobs) for step in done] == [len(step.tokens) for step in done]
    assert_same([logprob for step in done for logprob in step.logprobs], by_hand(tokens, n_top))


def test_a_grammar_does_not_change_them() -> None:
    drafter, budget = DRAFTERS["tree"]
    done = steps(drafter, budget, Sampling(temperature=1.0), 2, Automaton())
    tokens = [token for step in done for token in step.tokens]
    assert_same([logprob for step in done for logprob in step.logprobs], by_hand(tokens, 2))


@pytest.mark.parametrize("below", [10.0, 20.0, 30.0])
def test_the_tail_counts_however_unlikely_each_of_its_tokens_is(below: float) -> None:
    """At 10 nats below the likeliest, 32,000 tokens hold more than half of the mass."""
    row = np.full(32_001, 15.0 - below, dtype=np.float32)
    row[7] = 15.0
    mass = math.log1p(32_000 * math.exp(-below))
    said, top = logprob(row, 7, 2)
    assert said == pytest.approx(-mass, abs=1e-12)
    assert [token for token, _ in top] == [7, 0]
    assert [x for _, x in top] == pytest.approx([-mass, -below - mass], abs=1e-12)
    assert logprob(row, 32_000)[0] == top[1][1]


def test_large_logits_and_impossible_tokens_are_no_obstacle() -> None:
    said, top = logprob(np.array([1e4, 1e4 - 1.0, -np.inf], dtype=np.float32), 1, 3)
    assert said == pytest.approx(-1.0 - math.log(1 + math.exp(-1.0)))
    assert [token for token, _ in top] == [0, 1, 2]
    assert top[2][1] == -math.inf
