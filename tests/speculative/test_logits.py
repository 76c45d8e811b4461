"""Invalid logits: one clear error for the target's, no drafts for a draft model's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from automaton import Automaton
from decoding import begin, decoded
from enumeration import Tape, Ticking
from faulty import FAULTS, FaultyToy
from paceline.backends.toy import ToyTarget
from paceline.backends.translated import CrossVocabTarget
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.compose import ComposedDrafter, PortfolioDrafter
from paceline.drafters.lookahead import LookaheadDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.slem import SlemDrafter
from paceline.speculative.errors import LogitsError, ModelError, UsageError
from paceline.speculative.forward_output import LogitsOutput, row_index
from paceline.speculative.interfaces import Budget, Drafter
from paceline.speculative.loop import decode
from paceline.speculative.policy.costs import DecodingCosts, PassCosts
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.sampling import Sampling, adjust_logits, argmax, filter_top_k, target_distribution
from paceline.speculative.tree import chain
from paceline.speculative.verify import VERIFICATION_RULES, verify
from parrot import LookupCopier
from tongues import speaking, translation

GREEDY = Sampling()
V = 8
PROMPT = [3, 1, 4, 1, 5]
BUDGET = Budget(depth=4, nodes=8, width=2)
SAMPLINGS = {
    "greedy": Sampling(),
    "greedy, penalised": Sampling(presence_penalty=0.5),
    "temperature": Sampling(temperature=0.9),
    "top-k": Sampling(temperature=0.9, top_k=3),
    "top-p": Sampling(temperature=0.9, top_p=0.9),
    "typical": Sampling(temperature=0.9, typical_p=0.9),
    "XTC": Sampling(temperature=0.9, xtc_probability=0.5),
}
# With drafts that are not sampled a text of a seed is the same, and so is where it breaks.
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "none": NoDrafter,
    "lookup": lambda: LookupDrafter(1, 3),
    "lookahead": lambda: LookaheadDrafter(3, 3, 2),
    "model": lambda: ModelDrafter(ToyTarget(V, noise=0.1), V),
}


def run(target: ToyTarget, drafter: Drafter, sampling: Sampling = GREEDY, **more: Any) -> list[int]:
    return decoded(target, drafter, PROMPT, 200, BUDGET, sampling=sampling, seed=5, **more)[0]


def broken_text(fault: str, sampling: Sampling) -> tuple[FaultyToy, list[int]]:
    """Return a target that breaks in mid-text, and the tokens up to there."""
    text = run(ToyTarget(V), NoDrafter(), sampling)
    late = max(set(text) - set(PROMPT[-1:]), key=text.index)  # the token that comes first as late as any
    return FaultyToy(V, fault=fault, after=late), text[: text.index(late) + 1]


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_target_whose_logits_are_not_numbers_is_one_error_that_says_where(
    fault: str, sampling: str, drafter: str
) -> None:
    target, text = broken_text(fault, SAMPLINGS[sampling])
    assert len(text) > 1
    place = len(PROMPT) + len(text)
    words = f"the toy model: its logits are not numbers ({FAULTS[fault][0]}) at position {place}: the file is"
    with pytest.raises(ModelError, match=re.escape(words)):
        run(target, DRAFTERS[drafter](), SAMPLINGS[sampling])


@pytest.mark.parametrize("rule", ["auto", *VERIFICATION_RULES])
@pytest.mark.parametrize("fault", FAULTS)
def test_sampled_drafts_do_not_hide_it(fault: str, rule: str) -> None:
    drafter = ModelDrafter(ToyTarget(V, noise=0.1), V, temperature=0.8)
    sampling = Sampling(temperature=0.9)
    request = begin(FaultyToy(V, fault=fault, after=2), drafter, PROMPT, 500, sampling=sampling, rule=rule)
    width = 1 if rule in ("token", "block") else 2
    policy = FixedPolicy(Budget(depth=3, nodes=6, width=width, p_split=0.05))
    steps = decode(FaultyToy(V, fault=fault, after=2), drafter, policy, [request])
    with pytest.raises(LogitsError, match=re.escape(f"({FAULTS[fault][0]}) at position")):
        list(steps)
    assert 2 not in request.session.tokens[:-1]  # after which nothing was drawn


@pytest.mark.parametrize("fault", FAULTS)
def test_log_probabilities_and_grammars_do_not_hide_it(fault: str) -> None:
    with pytest.raises(LogitsError, match="not numbers"):
        run(FaultyToy(V, fault=fault), NoDrafter(), logprobs=3)
    target, none = FaultyToy(4, fault=fault), NoDrafter()
    request = begin(target, none, [0, 1], 9, grammar=Automaton())
    with pytest.raises(LogitsError, match="not numbers"):
        list(decode(target, none, FixedPolicy(BUDGET), [request]))


def test_a_row_is_read_from_its_own_forward_only() -> None:
    assert row_index(3, range(2, 5)) == 1
    for row, is_last, words in ((5, True, "row 5 is not among"), (3, False, "overwritten")):
        with pytest.raises(AssertionError, match=words):
            row_index(row, range(2, 5), is_last)


def test_minus_infinity_in_a_row_is_a_token_that_cannot_follow_and_no_fault() -> None:
    row = np.array([-np.inf, 0.5, -np.inf, 0.0])
    assert argmax(row) == 1
    assert target_distribution(row, Sampling(temperature=1.0), ()).of(0) == 0.0
    assert adjust_logits(row, Sampling(), ()) is row
    with pytest.raises(UsageError, match="forbids every one"):  # of numbers, but nothing is left of them
        target_distribution(row, Sampling(), (), np.array([True, False, True, False]))


def test_top_k_of_any_row_has_k_tokens() -> None:
    """Features are computed for rows that are never sampled from, too."""
    for value in (np.nan, np.inf, -np.inf):
        for row in (np.full(9, value), np.where(np.arange(9) == 4, value, np.arange(9.0))):
            for k in (1, 2, 8, 9, 20):
                assert len(set(filter_top_k(row, k).tolist())) == min(k, 9)


class Table(LogitsOutput):
    """The given rows."""

    def __init__(self, *rows: list[float]) -> None:
        self._rows = [np.array(row) for row in rows]

    def logits(self, row: int) -> Any:
        return self._rows[row]


@pytest.mark.parametrize("rule", ["auto", "token", "block", "recursive", "traversal"])
def test_a_row_that_nothing_comes_to_may_be_anything(rule: str) -> None:
    """Rows behind a rejected guess are not part of the text."""
    wrong = [np.nan, np.nan]
    q = np.array([0.5, 0.5])
    fixed, sampled = chain([1, 0], "x"), chain([1, 0], "x", q=[q, q])
    never, forward = [0.0, -np.inf], Table([0.0, -np.inf], wrong, wrong)
    assert never == forward.logits(0).tolist()
    assert verify(fixed, forward, Sampling(), [0], Tape([])).path == ()
    for tree in (fixed, sampled):
        verdict = verify(tree, forward, Sampling(temperature=1.0), [0], Tape([]), rule)
        assert (verdict.path, verdict.token) == ((), 0)
    with pytest.raises(LogitsError, match="at position 2"):
        verify(chain([0], "x", q=[q]), forward, Sampling(temperature=1.0), [0], Tape([1]), rule)


# A broken draft model.


Warn = Callable[[str], None]
WORDS = [f"w{i}" for i in range(V)]


TARGET = speaking(ToyTarget(V), WORDS)


def _tli(draft: ToyTarget, warn: Warn) -> Drafter:
    speaking(draft, WORDS[::-1])
    return ModelDrafter(CrossVocabTarget(draft, translation(TARGET.vocab, draft.vocab)), V, warn=warn)


def _slem(draft: ToyTarget, warn: Warn) -> Drafter:
    speaking(draft, WORDS[::-1])
    return SlemDrafter(draft, translation(TARGET.vocab, draft.vocab), warn)


WITH_DRAFT: dict[str, Callable[[ToyTarget, Warn], Drafter]] = {
    "model": lambda draft, warn: ModelDrafter(draft, V, warn=warn),
    "model, sampled": lambda draft, warn: ModelDrafter(draft, V, temperature=0.8, warn=warn),
    "cascade": lambda draft, warn: CascadeDrafter(draft, V, LookupCopier(1, 3), warn=warn),
    "tli": _tli,
    "slem": _slem,
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("kind", WITH_DRAFT)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_draft_model_costs_its_drafts_and_nothing_else(fault: str, kind: str, sampling: str) -> None:
    warned: list[str] = []
    drafter = ComposedDrafter([WITH_DRAFT[kind](FaultyToy(V, fault=fault), warned.append)])
    request = begin(TARGET, drafter, PROMPT, 40, sampling=SAMPLINGS[sampling], seed=5)
    policy = FixedPolicy(Budget(depth=4, nodes=4, width=1))
    told = [t for _, step in decode(TARGET, drafter, policy, [request]) for t in step.tokens]
    assert told == run(ToyTarget(V), NoDrafter(), SAMPLINGS[sampling])[:40]
    model = request.stats.by_source["model"]
    assert (model.tried > 0, model.proposed) == (True, 0)
    (said,) = warned  # once
    assert said.startswith(f"the toy model: the draft model's logits are not numbers ({FAULTS[fault][0]})")


def test_a_draft_that_knows_no_allowed_token_is_not_called_broken() -> None:
    class Never(ToyTarget):
        def logits(self, state: Any) -> Any:
            return np.where(np.arange(4) == 0, 0.0, -np.inf)

    warned: list[str] = []
    drafter = ModelDrafter(Never(4), 4, warn=warned.append)
    grammar = Automaton({0: {1: 0}})
    (tree,) = drafter.propose([(drafter.open([0], 0), Budget(3, 3, grammar=grammar))])
    assert (len(tree), warned) == (0, [])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_draft_model_never_poisons_what_the_policy_believes(fault: str, temperature: float) -> None:
    """The draft model fails after one token only, so that some drafts are verified."""
    target = ToyTarget(V)
    draft = FaultyToy(V, fault=fault, after=2, noise=0.2)
    drafter = PortfolioDrafter([LookupDrafter(1, 3), ModelDrafter(draft, V, temperature=temperature)])
    policy = GoodputPolicy(DecodingCosts(PassCosts.flat(1.0, per_row=0.01)), clock=Ticking(0.001))
    sampling = Sampling(temperature=0.9)
    request = begin(target, drafter, PROMPT, 150, sampling=sampling, seed=5)
    for _, step in decode(target, drafter, policy, [request]):
        assert np.isfinite([*step.tree.score, *step.tree.reach_probability]).all()
    assert request.stats.by_source["model"].drafted > 0
    beliefs = [policy.acceptance.of("model"), policy.acceptance.of("lookup")]
    assert all(np.isfinite(belief.weights).all() for belief in beliefs)
    assert np.isfinite(policy.rate)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0)], ids=["greedy", "sampled"])
def test_masks_and_biases_do_not_hide_it(sampling: Sampling) -> None:
    row = np.array([0.0, np.nan, 1.0])
    with pytest.raises(LogitsError, match=r"\(NaN\)"):
        target_distribution(row, sampling, (), np.array([True, False, True]))
    with pytest.raises(LogitsError, match=r"\(NaN\)"):
        adjust_logits(row, Sampling(temperature=sampling.temperature, logit_bias={1: -np.inf}), ())
