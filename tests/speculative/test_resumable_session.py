"""ResumableSession."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from paceline.backends.toy import ToyTarget
from paceline.speculative.interfaces import RequiredOutputs, Target
from paceline.speculative.sessions import ResumableSession
from paceline.speculative.tree import chain

V = 5
texts = st.lists(st.lists(st.integers(0, V - 1), min_size=1, max_size=8), min_size=1, max_size=6)


@given(texts=texts)
def test_whatever_the_text_becomes_the_answers_are_that_texts(texts: Sequence[list[int]]) -> None:
    target: Target = ToyTarget(V)
    reader = ResumableSession(target)
    for text in texts:
        reader.sync_to(text)
        assert reader.session.tokens == text
        out = target.forward([(reader.session, chain([1, 2], "x"))], RequiredOutputs())[0]
        fresh = target.open()
        fresh.extend(text)
        assert (
            out.logits(0).tolist()
            == target.forward([(fresh, chain([], "x"))], RequiredOutputs())[0].logits(0).tolist()
        )
    reader.close()
    assert reader.session.tokens == []


def test_a_list_that_is_appended_to_is_read_on() -> None:
    text, target = [1, 2, 3], ToyTarget(V)
    reader = ResumableSession(target)
    first = reader.session
    for more in ([], [4, 0], [1]):
        text += more
        reader.sync_to(text)
        assert reader.session is first
        assert list(first.tokens) == text
    first.extend([2, 2])  # by somebody else
    reader.sync_to(text)
    assert list(reader.session.tokens) == text
