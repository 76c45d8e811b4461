"""Fixed rows: the recorded row at the context, and rows that depend on the path alone after it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.backends.toy import ToyTarget
from paceline.bench.certify.held import ContextRow, FixedRowsTarget, record_rows
from paceline.speculative.errors import ContractError
from paceline.speculative.interfaces import RequiredOutputs
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


def test_commit_needs_a_forward_and_a_path_that_is_one(held: FixedRowsTarget) -> None:
    session = opened(held)
    with pytest.raises(ContractError, match="before forward"):
        session.commit([], 1)
    rows(held, session, TREE)
    with pytest.raises(ContractError, match="does not follow"):
        session.commit([0, 3], 1)
