"""llama.cpp with cells of its own for each session: chains only, the same texts, prefixes found again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline
from paceline import zoo
from paceline.core.ports import Want
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
    with paceline.load(exact, zoo.draft_path(), sessions=3, trees=False, n_ctx=256, threads=1) as loaded:
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
