"""The suites of the package: files, sizes, and session order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest

import paceline
from paceline.api import LLM
from paceline.bench.suites.workload import FOLDER, SUITES, load
from real_model import smollm2
from suite_items import NAMES, REAL, SIZES, of, text


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with paceline.load(drafters="none", threads=1) as llm:
        yield llm


def test_every_suite_has_a_file_with_items_of_its_sizes() -> None:
    assert SUITES == NAMES + REAL
    assert {f"{name}.jsonl" for name in SUITES} == {path.name for path in FOLDER.glob("*.jsonl")}
    for name in SUITES:
        tiny, full = (len(of(name, size)) for size in SIZES)
        assert (tiny, 8 <= full <= 12) == (0 if name in REAL else full, True)


def test_groups_name_several_suites_at_once() -> None:
    assert load("toy") == load(",".join(NAMES))
    assert load("real,real-code") == load("real") == load(",".join(REAL))


def test_real_suites_have_messages_for_a_model_with_a_context() -> None:
    for name, item in [(suite, item) for suite in REAL for item in load(suite)]:
        assert item.id.startswith(f"{name}-")
        assert (item.category, item.size) == (name.removeprefix("real-"), "full")
        assert item.messages
    going_on = [item for item in load("real-chat") if any(said is None for _, said in item.messages)]
    assert len(going_on) == 3


def test_prompts_of_2000_to_6000_tokens_are_among_edits_and_grounded_work() -> None:
    with paceline.load(smollm2(), drafters="none", n_ctx=256, threads=1) as real:
        for name in REAL:
            lengths = [
                len(real.chat_tokens([{"role": role, "content": said or ""} for role, said in item.messages]))
                for item in load(name)
            ]
            assert max(lengths) <= 6_300, name
            if name in ("real-edit", "real-grounded"):
                assert sum(2_000 <= n <= 6_300 for n in lengths) >= 3, name


def test_all_suites_can_be_asked_together_and_no_two_items_ask_the_same() -> None:
    items = load(",".join(NAMES))
    assert len({item.id for item in items}) == len(items) == 120
    assert len({text(item) for item in items}) == len(items)


def test_tiny_prompts_fit_the_embedded_models_context_and_end_within_a_line(llm: LLM) -> None:
    for item in (item for name in NAMES for item in of(name, "tiny")):
        assert len(llm.tokens(text(item))) <= 700, item.id
        assert text(item) == text(item).rstrip(), item.id


@pytest.mark.parametrize("size", SIZES)
def test_an_agents_session_repeats_what_came_before(size: str) -> None:
    items = of("agent", size)
    assert Counter(item.session for item in items) == {f"{size}-{i}": 4 for i in range(3)}
    for before, item in pairwise(items):
        if before.session == item.session:
            # All of it in messages; as text all up to the opening of the call.
            assert item.messages[: len(before.messages)] == before.messages
            assert item.prompt.startswith(before.prompt)
