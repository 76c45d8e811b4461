"""Answers in a log's record, form by form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.text.records import ANSWERS, parse_record, record_parts

ROLES = ("system", "user", "assistant", "user", "assistant")
CONTENTS = ["be brief", "what is it?", "a dog", "sure?", "yes"]
CHAT = [{"role": role, "content": content} for role, content in zip(ROLES, CONTENTS, strict=True)]


def answers(record: dict[str, Any]) -> list[Any]:
    return [content for role, content in record_parts(record) if role in ANSWERS]


def said(**message: Any) -> dict[str, Any]:
    """A record with one message of the assistant."""
    return {"messages": [{"role": "assistant", "content": None, **message}]}


def called(name: str, arguments: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}}


def test_the_assistants_messages_are_answers() -> None:
    assert answers({"messages": CHAT}) == ["a dog", "yes"]
    assert [content for _, content in record_parts({"messages": CHAT})] == CONTENTS


@pytest.mark.parametrize(
    ("record", "found"),
    [
        *(({"prompt": "q", name: "a"}, ["a"]) for name in ("completion", "response")),
        ({"text": "a whole text"}, ["a whole text"]),
        ({"prompt_tokens": [1, 2], "tokens": [3, 4]}, [[3, 4]]),
        ({"messages": CHAT[:2], "completion": "a dog"}, ["a dog"]),
        ({"choices": [{"message": {"role": "assistant", "content": "a"}}, {"text": "b"}]}, ["a", "b"]),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, ["a"]),
        ({"request": {"messages": CHAT[:2]}, "response": {"choices": [{"message": CHAT[2]}]}}, ["a dog"]),
        ({"response": {"body": {"choices": [{"message": CHAT[2]}]}}}, ["a dog"]),
        (said(reasoning_content="hm", content="a"), ["hm", "a"]),
        (said(tool_calls=[called("ls", '{"path": "."}'), 7]), ['{"name": "ls", "arguments": {"path": "."}}']),
        (said(content="a", tool_calls=[called("f", {"b": 1})]), ['a\n{"name": "f", "arguments": {"b": 1}}']),
        (said(tool_calls=[called("f", {"b": "é"})]), ['{"name": "f", "arguments": {"b": "é"}}']),
        (said(content=[{"type": "text", "text": "a"}, {"type": "x"}]), ["a"]),
    ],
)
def test_answers_are_found_in_every_known_form(record: dict[str, Any], found: list[Any]) -> None:
    assert answers(record) == found


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [1, None, {"role": "assistant"}, {"role": "assistant", "content": 5}]},
        {"choices": {"message": {"content": "a"}}},
        {"completion": "", "text": " \n", "tokens": []},
        *({"tokens": tokens} for tokens in ([1, "2"], [True, False])),
        {"response": {"response": {"response": {"response": {"text": "deeper than any log"}}}}},
    ],
)
def test_what_is_no_answer_is_none(record: dict[str, Any]) -> None:
    assert answers(record) == []


def test_half_a_character_becomes_a_question_mark() -> None:
    assert answers(parse_record(b'{"text": "a \\ud83d b"}') or {}) == ["a ? b"]


@pytest.mark.parametrize("line", [b"", b"{", b"[1]", b"3", b"\xff", b"[" * 100_000, json.dumps("x").encode()])
def test_a_line_that_is_no_object_is_no_record(line: bytes) -> None:
    assert parse_record(line) is None
