"""llama.cpp with cells of its own for each session: chains only, the same texts, prefixes found again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline import zoo
from paceline.core.ports import Want
from paceline.core.tree import EMPTY, chain
from paceline.engines.llama import binding, cache
from paceline.engines.llama.session import LlamaSession
from paceline.engines.llama.target import LlamaTarget
from paceline.llm import LLM
from paceline.zoo.quantize import quantize

PROMPTS = [
    "def add(a, b):\n",
    "class Stack:\n    def push(self",
    "import os\n",
    '{"name": "',
    "for i in range(10",
]


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In F32, where what is decoded together rounds as it does alone."""
    out = tmp_path_factory.mktemp("apart") / "target-F32.gguf"
    quantize(zoo.target_path(), out, "F32")
    return out


@pytest.fixture(scope="module")
def llm(exact: Path) -> Iterator[LLM]:
    settings: dict[str, Any] = {
        "n_ctx": 256,
        "threads": 1,
        "policy": "fixed",
    }  # it drafts whatever that takes
    with paceline.load(exact, zoo.draft_path(), sessions=3, trees=False, **settings) as loaded:
        yield loaded


def test_drafts_are_chains(llm: LLM) -> None:
    assert llm.target.caps.branch == 1
    assert llm.draft is not None
    assert llm.draft.caps.branch == 1


def test_many_at_once_say_what_each_says_alone(llm: LLM, exact: Path) -> None:
    with paceline.load(exact, drafters="none", n_ctx=256, threads=1) as plain:
        alone = [plain.generate(prompt, max_tokens=40).text for prompt in PROMPTS]
    together = llm.generate(PROMPTS, max_tokens=40)
    assert [one.text for one in together] == alone
    assert sum(one.stats.accepted for one in together) > 0


def test_a_text_that_goes_on_finds_its_beginning(llm: LLM) -> None:
    llm.target.forget()
    first = llm.generate(PROMPTS[1], max_tokens=30)
    tokens = [*llm.tokens(PROMPTS[1]), *first.tokens]
    with llm.stream(tokens, max_tokens=4) as stream:
        next(stream)
        assert stream._request.n_cached >= len(tokens) - 2


def test_what_shares_a_header_only_leaves_the_long_text_where_it_is(exact: Path) -> None:
    target = LlamaTarget(exact, n_ctx=256, sessions=2, trees=False)
    header, long_text = list(range(50, 60)), list(range(100, 180))

    def read(tokens: list[int]) -> int:
        """How many of them were in the cache already."""
        session = target.open()
        session.extend(tokens)
        cached = len(tokens) - 1 - session.unread
        target.forward([(session, session.unread)], Want())
        session.close()
        return cached

    try:
        assert read([*header, *long_text, 1]) == 0
        assert read([*header, 7, 8, 9, 1]) == 0  # an empty one is better than what the long text would lose
        assert read([*header, *long_text, 2, 3]) >= len(header) + len(long_text) - 1
        assert read([*header, 7, 8, 9, 2]) >= len(header)
    finally:
        target.close()


def opened(target: LlamaTarget, tokens: list[int]) -> tuple[LlamaSession, int]:
    """A session that has read them; and how many of them were in the cache already."""
    session = target.open()
    session.extend(tokens)
    cached = len(tokens) - 1 - session.unread
    target.forward([(session, session.unread)], Want())
    return session, cached


def test_sessions_in_use_stand_beside_each_other_and_take_what_they_hold_along(exact: Path) -> None:
    """llama.cpp computes those with consecutive numbers together."""
    texts = [list(range(10 + 20 * at, 29 + 20 * at)) for at in range(5)]
    target = LlamaTarget(exact, n_ctx=64, sessions=5, trees=False)
    try:
        said = []
        for at, held in enumerate(texts):
            session, _ = opened(target, held)
            assert session.slot.sequence == at  # an empty one while there is one
            (out,) = target.forward([(session, EMPTY)], Want())
            said.append(out.logits(0).copy())
            session.close()
        sessions = []
        for at in (0, 3, 4):
            session, cached = opened(target, texts[at])
            assert cached == len(texts[at]) - 1
            sessions.append(session)
        assert [session.slot.sequence for session in sessions] == [0, 1, 2]
        outs = target.forward([(session, EMPTY) for session in reversed(sessions)], Want())
        for out, at in zip(outs, (4, 3, 0), strict=True):
            np.testing.assert_allclose(out.logits(0), said[at], atol=0.02)
        for session in sessions:
            session.close()
        for held in texts:  # what had to make room is still there
            session, cached = opened(target, held)
            assert cached == len(held) - 1
            session.close()
    finally:
        target.close()


def test_what_a_dropped_session_had_drafted_is_not_taken_along(exact: Path) -> None:
    tokens = list(range(30, 50))
    target = LlamaTarget(exact, n_ctx=64, sessions=3, trees=False)
    try:
        alone, _ = opened(target, tokens)
        (out,) = target.forward([(alone, EMPTY)], Want())
        said = out.logits(0).copy()
        alone.close()
        target.forget()
        busy, _ = opened(target, [5, 6, 7])
        dropped, _ = opened(target, tokens)
        target.forward([(dropped, chain([1, 2, 3], "test"))], Want())
        assert dropped.slot.sequence == 1
        del dropped
        fresh, cached = opened(target, [100, 101, 102])  # which puts the old text elsewhere
        assert (fresh.slot.sequence, cached) == (1, 0)
        again, cached = opened(target, tokens)
        assert (again.slot.sequence, cached) == (2, len(tokens) - 1)
        (out,) = target.forward([(again, EMPTY)], Want())
        np.testing.assert_allclose(out.logits(0), said, atol=0.02)
        busy.close()
    finally:
        target.close()


def test_a_gap_in_the_ranks_is_closed(exact: Path) -> None:
    """By the shorter side; who has drafted stays where they are until that is settled."""
    texts = [list(range(10 + 20 * at, 29 + 20 * at)) for at in range(6)]
    target = LlamaTarget(exact, n_ctx=64, sessions=6, trees=False)
    try:
        sessions = [opened(target, tokens)[0] for tokens in texts]
        outs = target.forward([(session, EMPTY) for session in sessions], Want())
        said = [out.logits(0).copy() for out in outs]
        for session in sessions:
            session.rollback()
        sessions[1].close()
        sessions[4].close()
        left = [0, 2, 3, 5]
        target.forward([(sessions[2], chain([1, 2], "test"))], Want())
        assert [sessions[at].slot.sequence for at in left] == [0, 2, 3, 4]
        target.forward([(sessions[5], EMPTY)], Want())
        assert [sessions[at].slot.sequence for at in left] == [1, 2, 3, 4]
        sessions[3].close()
        target.forward([(sessions[2], EMPTY)], Want())
        # It has its answer, of which nothing is kept yet.
        assert [sessions[at].slot.sequence for at in (0, 2, 5)] == [1, 2, 4]
        sessions[5].rollback()
        target.forward([(sessions[2], EMPTY)], Want())
        assert [sessions[at].slot.sequence for at in (0, 2, 5)] == [1, 2, 3]
        sessions[2].rollback()
        outs = target.forward([(sessions[at], EMPTY) for at in (5, 2)], Want())
        for out, at in zip(outs, (5, 2), strict=True):
            np.testing.assert_allclose(out.logits(0), said[at], atol=0.02)
    finally:
        target.close()


def two_with_a_gap(target: LlamaTarget) -> tuple[LlamaSession, LlamaSession]:
    """The second of three sessions has gone, and the last one would take its number at the next pass."""
    sessions = [opened(target, list(range(10 + 20 * at, 29 + 20 * at)))[0] for at in range(3)]
    sessions[1].close()
    return sessions[0], sessions[2]


def test_what_is_too_much_to_copy_stays(exact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = LlamaTarget(exact, n_ctx=64, sessions=3, trees=False)
    try:
        _first, last = two_with_a_gap(target)
        monkeypatch.setattr(cache, "MOST_MOVED", 100)
        target.forward([(last, EMPTY)], Want())
        assert last.slot.sequence == 2
        last.rollback()
        monkeypatch.undo()
        target.forward([(last, EMPTY)], Want())
        assert last.slot.sequence == 1
    finally:
        target.close()


def test_trunks_of_a_model_with_a_window_stay_where_they_are(
    exact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp would write out the window alone, and the rest would be missed when the text is cut."""
    monkeypatch.setattr(binding, "is_windowed", lambda _model: True)
    target = LlamaTarget(exact, n_ctx=64, sessions=3, trees=False)
    try:
        _first, last = two_with_a_gap(target)
        target.forward([(last, EMPTY)], Want())
        assert last.slot.sequence == 2
        fresh, _ = opened(target, [100, 101])
        assert fresh.slot.sequence == 1
    finally:
        target.close()


@pytest.mark.parametrize("name", ["llama_state_seq_get_data", "llama_state_seq_set_data"])
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_move_that_fails_loses_nothing_but_time(
    exact: Path, monkeypatch: pytest.MonkeyPatch, name: str, interrupted: bool
) -> None:
    target = LlamaTarget(exact, n_ctx=64, sessions=3, trees=False)
    try:
        alone, _ = opened(target, list(range(50, 69)))
        (out,) = target.forward([(alone, EMPTY)], Want())
        said = out.logits(0).copy()
        alone.close()
        target.forget()
        _first, last = two_with_a_gap(target)
        real = getattr(binding.llama_cpp(), name)

        def failing(*given: Any) -> int:
            if interrupted:
                real(*given)
                raise KeyboardInterrupt  # as it comes after a call that took long
            return 0

        monkeypatch.setattr(binding.llama_cpp(), name, failing)
        with pytest.raises(KeyboardInterrupt) if interrupted else nullcontext():
            target.forward([(last, EMPTY)], Want())
        monkeypatch.undo()
        last.rollback()
        (out,) = target.forward([(last, EMPTY)], Want())
        np.testing.assert_allclose(out.logits(0), said, atol=0.02)
    finally:
        target.close()
