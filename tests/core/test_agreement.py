"""What several drafters say about one place: the formula, and what is learned of it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.agreement import START, START_OF, Agreement, Heard
from paceline.core.calibrate import SUREST, sigmoid

TRUST, RIVAL, SAID, AGAINST = START

own = st.floats(-8.0, 8.0)
guess = st.dictionaries(st.sampled_from("abc"), own, min_size=1).map(lambda who: list(who.items()))
guesses = st.lists(guess, min_size=1, max_size=4)


def by_hand(siblings: list[list[tuple[str, float]]], at: int) -> float:
    """The formula, as it is written."""
    who = dict(siblings[at])
    z = 0.0
    for name in {name for heard in siblings for name, _ in heard}:
        others = [dict(heard)[name] for i, heard in enumerate(siblings) if i != at and name in dict(heard)]
        z += SAID + TRUST * min(who[name], SUREST) if name in who else AGAINST
        z += RIVAL * min(max(others), SUREST) if others else 0.0
    return z


@given(guesses)
def test_at_first_it_is_the_formula_with_what_it_starts_from(siblings: list[list[tuple[str, float]]]) -> None:
    assert Agreement().logits(siblings) == pytest.approx([by_hand(siblings, i) for i in range(len(siblings))])


@given(guesses, st.randoms(use_true_random=False))
def test_neither_the_order_of_guesses_nor_that_of_drafters_matters(
    siblings: list[list[tuple[str, float]]], r: random.Random
) -> None:
    order = list(range(len(siblings)))
    r.shuffle(order)
    shuffled: list[Heard] = [r.sample(siblings[i], len(siblings[i])) for i in order]
    straight, turned = Agreement(), Agreement()
    for agreement, said in ((straight, siblings), (turned, shuffled)):
        for name in "abc":  # known before, so that they have the same bits
            agreement.of(name)
        agreement.logits(said)
    assert turned.logits(shuffled) == pytest.approx([straight.logits(siblings)[i] for i in order])


@given(st.lists(st.tuples(guesses, st.integers(-1, 3)), max_size=20))
def test_whatever_comes_it_stays_a_number(past: list[tuple[list[list[tuple[str, float]]], int]]) -> None:
    agreement = Agreement()
    for siblings, right in past:
        believed = agreement.logits(siblings)
        assert agreement.observe(siblings, right if 0 <= right < len(siblings) else None) == believed
        assert all(abs(z) < 1e3 for z in agreement.logits(siblings))


def test_what_comes_true_is_believed_more_and_its_rival_less() -> None:
    agreement, siblings = Agreement(), [[("a", 0.5), ("b", 0.1)], [("c", 0.7)]]
    first = agreement.logits(siblings)
    agreement.observe(siblings, 0)
    second = agreement.logits(siblings)
    assert second[0] > first[0]
    assert second[1] < first[1]
    agreement.observe(siblings, None)
    assert agreement.logits(siblings)[0] < second[0]


def test_what_is_believed_as_firmly_as_can_be_is_not_raised_further() -> None:
    agreement, siblings = Agreement(), [[(name, SUREST) for name in "abcd"], [("e", -SUREST)]]
    before = agreement.logits(siblings)
    assert before[0] >= SUREST
    assert before[1] <= -SUREST
    agreement.observe(siblings, 0)
    assert agreement.logits(siblings) == before


@pytest.mark.parametrize("seed", range(3))
def test_it_learns_how_often_each_company_is_right(seed: int) -> None:
    """Three speak, each of its own chance; who is right depends on who agrees, and on nothing else."""
    agreement, r = Agreement(), random.Random(seed)
    pair, lone = [("model", 0.4), ("b", -0.3)], [("c", 1.0)]
    told = []
    for _ in range(3000):
        luck = r.random()
        right = 0 if luck < 0.75 else 1 if luck < 0.85 else None
        told.append([sigmoid(z) for z in agreement.observe([pair, lone], right)])
    last = told[-500:]
    assert sum(p for p, _ in last) / 500 == pytest.approx(0.75, abs=0.06)
    assert sum(p for _, p in last) / 500 == pytest.approx(0.1, abs=0.05)


def test_who_computes_starts_with_more_trust() -> None:
    trust, rival, said, against = START_OF["model"]
    assert (trust > TRUST, rival < RIVAL, said > SAID, against < AGAINST) == (True,) * 4
