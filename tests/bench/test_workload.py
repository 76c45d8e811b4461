"""Suites from files: parsed and refused lines, and samples of items."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.suites.workload import (
    DEFAULT_MAX_TOKENS,
    TO_BE_FETCHED,
    Item,
    load,
    read,
    sample_items,
)
from paceline.speculative.errors import UsageError

GOOD = {"prompt": "def f("}
USER = {"role": "user", "content": "Hi"}
OWN = {"role": "assistant", "content": None}
QUESTION = {"question_id": 7, "category": "writing", "turns": ["Write.", "Shorter."]}


def written(folder: Path, *lines: Any) -> Path:
    """Write a suite of these lines: text as it is, all else as JSON."""
    path = folder / "mine.jsonl"
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_bytes(text.encode())
    return path


def refusal(text: Path | str) -> str:
    with pytest.raises(UsageError) as caught:
        load(str(text))
    return str(caught.value)


def test_only_a_prompt_or_messages_has_to_be_there(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be short."}, USER]
    path = written(tmp_path, GOOD, "", {"messages": messages, "prompt": ""})
    assert load(str(path)) == [
        Item("1", "mine", prompt="def f("),
        Item("3", "mine", messages=(("system", "Be short."), ("user", "Hi"))),
    ]


def test_every_field_is_read(tmp_path: Path) -> None:
    item = Item("a", "b", prompt="c", max_tokens=2, seed=3, session="d", size="full")
    said = {name: value for name, value in vars(item).items() if name not in ("messages", "earlier")}
    assert read(written(tmp_path, said)) == [item]


REFUSED: dict[str, tuple[Any, str]] = {
    "neither prompt nor messages": ({"id": "a"}, "give either a prompt, or messages"),
    "an unknown field": (GOOD | {"expected": 2}, "expected is 2: "),
    "a number for text": ({"prompt": 3}, "prompt is 3: "),
    "a single token": (GOOD | {"max_tokens": 1}, "max_tokens is 1: "),
    "half a character": ('{"prompt": "ab\\ud83d"}', "Invalid JSON"),
    "an unknown role": ({"messages": [{"role": "tool", "content": "1"}, USER]}, "messages.0.role is 'tool'"),
    "an open question": ({"messages": [{"role": "user", "content": None}]}, "only an assistant's content"),
    "an answer at the end": ({"messages": [USER, OWN]}, "of which the last is the user's"),
    "an answer to nothing": (
        {"messages": [USER, OWN, USER], "session": "a"},
        "no item before it in its session answers its assistant's message",
    ),
    "an empty turn": (QUESTION | {"turns": ["Write.", " "]}, "turns.1 is ' '"),
    "a turn to be fetched": (QUESTION | {"turns": [TO_BE_FETCHED]}, "run prepare_data.py of SPEED-Bench"),
    "a question whose id is a list": (QUESTION | {"question_id": [1]}, "question_id.int is [1]: "),
}


@pytest.mark.parametrize(("line", "why"), REFUSED.values(), ids=REFUSED)
def test_a_bad_line_is_refused_by_file_and_number(tmp_path: Path, line: Any, why: str) -> None:
    path = written(tmp_path, GOOD, "", line, GOOD)
    said = refusal(path)
    assert said.startswith(f"{path}, line 3: ")
    assert why in said


def test_repeated_id_and_file_without_items_are_refused(tmp_path: Path) -> None:
    assert "two items have the id '1'" in refusal(written(tmp_path, GOOD, GOOD | {"id": "1"}))
    path = written(tmp_path, "", " ")
    assert refusal(path).startswith(f"{path}: has no items")
    path.write_bytes(b"\xe9")
    assert "line 1: is no JSON" in refusal(path)
    sessions = written(tmp_path, GOOD, {"messages": [USER]}, {"messages": [{"role": "user"}]})
    assert "has no items" in refusal(f"sessions:{sessions}")


def test_suites_are_joined_in_order_and_unknown_ones_refused() -> None:
    assert load("json, code,json") == [*load("json"), *load("code")]
    for text, name in (("sql", "sql"), ("code,,edit", ""), ("", ""), ("code,x", "x")):
        assert refusal(text).startswith(f"unknown suite {name!r}: choose from toy, real, code")


def test_an_answer_may_stand_for_each_item_before_it_in_its_session(tmp_path: Path) -> None:
    said = {"session": "a"}
    third = [USER, OWN, USER, OWN, USER]
    path = written(tmp_path, GOOD | said, GOOD | said, {"messages": third} | said)
    roles = ("user", "Hi"), ("assistant", None)
    assert read(path)[2].messages == (*roles, *roles, roles[0])
    path = written(tmp_path, GOOD | said, GOOD | {"session": "b"}, {"messages": third} | said)
    assert "line 3: no item before it in its session answers" in refusal(path)


def test_a_question_of_several_turns_becomes_a_session_with_own_answers_between(tmp_path: Path) -> None:
    turns = ["One.", "Two.", "Three."]
    speed_bench = {"source": "x", "src_id": "1", "difficulty": "easy", "multiturn": True, "sub_category": ""}
    one, two, three = (("user", text) for text in turns)
    own = ("assistant", None)
    assert read(written(tmp_path, QUESTION | {"turns": turns} | speed_bench)) == [
        Item("7.1", "writing", messages=(one,), max_tokens=DEFAULT_MAX_TOKENS, session="7"),
        Item("7.2", "writing", messages=(one, own, two), max_tokens=DEFAULT_MAX_TOKENS, session="7"),
        Item("7.3", "writing", "", (one, own, two, own, three), max_tokens=DEFAULT_MAX_TOKENS, session="7"),
    ]


def test_files_and_suites_are_named_together_and_a_file_may_say_its_form(tmp_path: Path) -> None:
    path = written(tmp_path, QUESTION)
    assert load(f"json,specbench:{path}") == [*load("json"), *load(str(path))]
    other = tmp_path / "prompts.jsonl"
    other.write_text(json.dumps(GOOD))
    assert refusal(f"specbench:{other}").startswith(f"{other}, line 1: question_id is ")
    other.write_text(json.dumps(GOOD | {"id": "7.1"}))
    assert "two items have the id '7.1'" in refusal(f"{path},{other}")


def test_every_answer_of_a_recorded_session_is_asked_again_after_what_came_before_it(tmp_path: Path) -> None:
    told = [
        ("system", "Be short."), ("user", "List."), ("assistant", "ls"), ("tool", "a b"), ("user", "Now?"),
        ("assistant", "cat a"), ("tool", "1"),
    ]  # fmt: skip
    path = written(tmp_path, {"id": "x", "messages": [{"role": r, "content": c} for r, c in told]})
    first = (("system", "Be short."), ("user", "List."))
    then = (*first, ("assistant", "ls"), ("user", "a b\n\nNow?"))
    assert [item.earlier for item in load(f"sessions:{path}")] == [(), ("x.1",)]
    assert load(f"sessions:{path}") == [
        Item("x.1", "agent", messages=first, max_tokens=DEFAULT_MAX_TOKENS, session="x"),
        Item("x.2", "agent", messages=then, max_tokens=DEFAULT_MAX_TOKENS, session="x"),
    ]


def test_sample_is_spread_over_and_within_categories() -> None:
    items = [Item(str(i), "a", "x") for i in range(80)]
    assert [int(item.id) for item in sample_items(items, 10)] == [*range(0, 80, 8)]
    items = [Item(f"{category}{i}", category, "x") for category, n in (("a", 1), ("b", 9)) for i in range(n)]
    assert [item.id for item in sample_items(items, 4)] == ["a0", "b0", "b4", "b8"]
    items = [Item("1", "a", "x"), Item("2", "a", "x", session="s"), Item("3", "b", "x", session="s")]
    assert [item.id for item in sample_items(items, 2)] == ["1", "2"]


@st.composite
def workloads(draw: st.DrawFn) -> list[Item]:
    kinds = draw(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["", "s", "t"])), max_size=30))
    # A session stays in its category, so that categories can be counted.
    return [
        Item(str(i), category, "x", session=session and category + session)
        for i, (category, session) in enumerate(kinds)
    ]


@given(items=workloads(), n=st.integers(0, 35))
def test_the_laws_of_a_sample(items: list[Item], n: int) -> None:
    some = sample_items(items, n)
    assert len(some) == min(n, len(items))
    assert some == [item for item in items if item in some]
    assert {item.id for item in some} <= {item.id for item in sample_items(items, n + 1)}

    have, took = Counter(i.category for i in items), Counter(i.category for i in some)
    most = max(took.values(), default=0)
    assert all(took[category] in (have[category], most, most - 1) for category in have)

    for session in {item.session for item in items} - {""}:
        whole = [item for item in items if item.session == session]
        assert [item for item in some if item.session == session] == whole[: sum(i in some for i in whole)]
