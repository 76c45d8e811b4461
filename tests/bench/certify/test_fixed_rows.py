"""Fixed rows, the texts of the checks, and the choice of contexts where mistakes show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.backends.toy import ToyTarget
from paceline.bench.certify.certificate import MIN_TEXT_TOKENS, CertifyPlan, extend_texts
from paceline.bench.certify.fixed_rows import (
    ContextRow,
    FixedRowsTarget,
    SamplingSetup,
    record_rows,
    recorded_places,
    select_contexts,
    uncertainty,
)
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.speculative.interfaces import Budget, RequiredOutputs
from paceline.speculative.sampling import Sampling
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain

V = 8
TEXT = [1, 2, 3, 4, 5, 6, 7, 0, 3, 1, 4, 1, 5, 2, 6]
CONTEXT = [1, 2, 3]
TREE = DraftTree((5, 6, 7, 5), (ROOT, 0, 0, ROOT), (0.5,) * 4, ("test",) * 4)


@pytest.fixture
def place() -> ContextRow:
    return ContextRow(at=4)


@pytest.fixture
def held(place: ContextRow) -> FixedRowsTarget:
    target = ToyTarget(V)
    return FixedRowsTarget(target, record_rows(target, TEXT, 12), place)


def rows(held: FixedRowsTarget, session: Any, tree: DraftTree = EMPTY) -> list[np.ndarray]:
    out = held.forward([(session, tree)], RequiredOutputs())[0]
    return [out.logits(row) for row in range(len(tree) + 1)]


def opened(held: FixedRowsTarget, *tokens: int) -> Any:
    session = held.open()
    session.extend(CONTEXT)
    if tokens:
        session.extend(tokens)
    return session


def test_rows_are_recorded_of_the_last_tokens_one_for_each(held: FixedRowsTarget, place: ContextRow) -> None:
    target = ToyTarget(V)
    session = target.open()
    session.extend(TEXT[:-1])
    last = target.forward([(session, EMPTY)], RequiredOutputs())[0].logits(0)
    for n in (1, 12, 100):
        found = record_rows(target, TEXT, n)
        assert found.shape == (min(n, len(TEXT) - 1), V)
        np.testing.assert_array_equal(found[-1], last.astype(np.float32))
    for place.at in (0, 4, 11):
        np.testing.assert_array_equal(rows(held, opened(held))[0], held.rows[place.at])


def test_below_the_context_a_row_depends_on_the_path_alone(held: FixedRowsTarget) -> None:
    root, *nodes = rows(held, opened(held), TREE)
    for node, row in enumerate(nodes):
        path = TREE.path_tokens(node)
        np.testing.assert_array_equal(rows(held, opened(held, *path))[0], row)
        again = rows(held, opened(held), chain(path, "test"))
        np.testing.assert_array_equal(again[-1], row)
        np.testing.assert_array_equal(again[0], root)
    np.testing.assert_array_equal(nodes[0], nodes[3])  # the same token, drafted twice


def test_a_session_that_kept_a_path_answers_what_its_text_does(held: FixedRowsTarget) -> None:
    session = opened(held)
    rows(held, session, TREE)
    session.commit([0, 2], 3)
    assert session.tokens == [*CONTEXT, 5, 7, 3]
    np.testing.assert_array_equal(rows(held, session)[0], rows(held, opened(held, 5, 7, 3))[0])
    session.extend([6])
    np.testing.assert_array_equal(rows(held, session)[0], rows(held, opened(held, 5, 7, 3, 6))[0])


def test_target_and_draft_answer_from_the_same_place(held: FixedRowsTarget, place: ContextRow) -> None:
    numbers = np.repeat(np.arange(12, dtype=np.float32), V).reshape(12, V)
    numbered = [FixedRowsTarget(ToyTarget(V), numbers + np.float32(more), place) for more in (0, 100)]
    for tokens in ((), (5,), (5, 6), (2, 0, 1)):
        ours, theirs = (rows(one, opened(one, *tokens), TREE) for one in numbered)
        np.testing.assert_array_equal(np.array(theirs) - np.array(ours), 100)


def test_argmax_and_the_likeliest_tokens_are_those_of_the_row(held: FixedRowsTarget) -> None:
    out = held.forward([(opened(held), TREE)], RequiredOutputs(top_k=3))[0]
    assert out.features.top_k is not None
    for row in range(len(TREE) + 1):
        logits = out.logits(row)
        assert out.argmax(row) == int(logits.argmax())
        assert out.features.top_k[row].tolist() == np.argsort(-logits, kind="stable")[:3].tolist()
    assert held.forward([(opened(held), TREE)], RequiredOutputs())[0].features.top_k is None


FEW = 4
# Rows of the target and of the draft: equal; unlike; nothing in common; a likely draft that is accepted half.
P = np.array([[0.7, 0.1, 0.1, 0.1], [0.6, 0.2, 0.1, 0.1], [0.0, 0.5, 0.5, 0.0], [0.5, 0.5, 0.0, 0.0]])
Q = np.array([[0.7, 0.1, 0.1, 0.1], [0.2, 0.3, 0.1, 0.4], [0.5, 0.0, 0.0, 0.5], [1.0, 0.0, 0.0, 0.0]])
PLACES = recorded_places([[0, 1, 2, 3, 0]], [np.zeros((4, FEW), np.float32)])


def setup(p_min: float = 0.0) -> SamplingSetup:
    place = ContextRow()
    with np.errstate(divide="ignore"):
        target, draft = (
            FixedRowsTarget(ToyTarget(FEW), np.log(rows).astype(np.float32), place) for rows in (P, Q)
        )
    drafter, sampling = ModelDrafter(draft, FEW, temperature=1.0), Sampling(temperature=1.0)
    return SamplingSetup(target, drafter, place, Budget(3, 3, p_min=p_min), sampling, "auto")


def test_a_context_is_worth_what_is_open_about_the_acceptance_of_its_draft() -> None:
    scores = [uncertainty(setup(), place) for place in PLACES]
    assert scores == pytest.approx([0.0, 0.6 * 0.4, 0.0, 0.5 * 0.5], abs=1e-6)
    for silent in (setup(p_min=1.1), replace(setup(), drafter=NoDrafter())):
        assert silent.first_q(PLACES[0]) is None
        assert uncertainty(silent, PLACES[0]) == 0.0


def test_the_best_contexts_come_first_each_text_in_turn_and_those_without_drafts_last() -> None:
    assert [context.row for context in select_contexts(setup(), PLACES, 2)] == [3, 1]
    assert len(select_contexts(setup(), PLACES, 40)) == 4
    texts = [replace(place, text=text) for place, text in zip(PLACES, (0, 1, 2, 1), strict=True)]
    rows = [context.row for context in select_contexts(setup(), texts, 4)]
    assert rows[:2] == [3, 1]
    assert sorted(rows[2:]) == [0, 2]


def test_a_short_text_goes_on_with_the_others_round_and_round() -> None:
    texts = [[1, 2], [3], list(range(200))]
    made = extend_texts(texts, 512)
    assert [len(text) for text in made] == [MIN_TEXT_TOKENS, MIN_TEXT_TOKENS, 200]
    assert made[0] == [1, 2, 3, *range(MIN_TEXT_TOKENS - 3)]
    assert made[1] == [3, *range(MIN_TEXT_TOKENS - 1)]
    assert made[2] == texts[2]
    assert extend_texts([[5]], 512) == [[5] * MIN_TEXT_TOKENS]
    assert extend_texts([[1, 2], list(range(200))], 50) == [[1, 2, *range(48)], list(range(50))]


def test_a_plan_that_leaves_nothing_to_chance_is_given_a_temperature() -> None:
    assert CertifyPlan(sampling=Sampling(top_k=5)).sampling == Sampling(temperature=1.0, top_k=5)
    assert CertifyPlan(sampling=Sampling(temperature=0.3)).sampling.temperature == 0.3
