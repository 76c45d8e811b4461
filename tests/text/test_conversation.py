"""Messages, tools and choices in OpenAI's form: what is taken, what templates get of it, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from paceline.speculative.errors import UsageError
from paceline.text.messages import ToolChoice, parse_messages, parse_tool_choice, parse_tools
from paceline.text.messages import template_variables as variables

NESTED = json.loads("[" * 42 + "]" * 42)
USER = {"role": "user", "content": "a"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1, {"y": null}]}'}}
F = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
G = {"type": "function", "function": {"name": "g"}}


def calling(call: Any) -> list[Any]:
    return [{"role": "assistant", "content": None, "tool_calls": [call]}]


def test_parts_are_joined_and_what_is_null_is_left_out() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    said = {"role": "developer", "content": parts, "name": None, "tool_calls": None, "refusal": None}
    assert parse_messages([said]) == [{"role": "system", "content": "a b"}]
    assert parse_messages([{**USER, "content": [], "tool_calls": []}]) == [{**USER, "content": ""}]
    assert parse_messages("a") == [USER]


def test_arguments_become_mappings_and_results_get_names() -> None:
    said = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "2"}]}
    called, result = parse_messages([*calling(CALL), said])
    assert called["content"] is None
    assert called["tool_calls"] == [{**CALL, "function": {"name": "f", "arguments": {"x": [1, {"y": None}]}}}]
    assert result == {"role": "tool", "tool_call_id": "1", "content": "2", "name": "f"}


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [("", {}), ({"a": (1, 2)}, {"a": [1, 2]}), *((text, text) for text in ('{"a": 1', "[1]", "[" * 9999))],
)
def test_arguments_that_are_no_object_stay_what_a_model_wrote(arguments: Any, taken: Any) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    (message,) = parse_messages([{"role": "assistant", "tool_calls": [call]}])
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": taken}}]


def test_a_thought_has_all_of_its_names() -> None:
    for name in ("reasoning", "thinking", "reasoning_content"):
        (message,) = parse_messages([{"role": "assistant", "content": "b", name: "a"}])
        assert message["reasoning_content"] == message["thinking"] == "a"


def test_tools_are_taken_as_they_are_but_for_what_is_null() -> None:
    strict = {"type": "function", "function": {**F["function"], "strict": None}}  # type: ignore[dict-item]
    assert parse_tools((strict, {"function": G["function"]})) == [F, G]
    assert parse_tools(None) == parse_tools([]) == []


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        (None, ToolChoice([F, G])),
        ("none", ToolChoice([])),
        ("required", ToolChoice([F, G], ("f", "g"))),
        ({"type": "function", "function": {"name": "g"}}, ToolChoice([F, G], ("g",))),
    ],
)
def test_a_choice_says_what_may_be_called_and_what_must(choice: Any, chosen: ToolChoice) -> None:
    assert parse_tool_choice([F, G], choice) == chosen


def test_template_variables_are_json() -> None:
    assert variables(None) == {}
    assert variables({"think": False, "documents": ({"a": 1},)}) == {"think": False, "documents": [{"a": 1}]}


BAD_MESSAGES: list[Any] = [
    ([{**USER, "content": [{"type": "image_url"}]}], "has a part of type 'image_url': must be text"),
    ([{**USER, "content": [{"type": "text", "text": 1}]}], r"messages\[0\]: its content 1: must be"),
    ([USER, {"role": "assistant", "content": None}], r"messages\[1\]: its content None: must be text"),
    ([{"content": "a"}], r"messages\[0\]: its role None: must be text"),
    (calling({"function": {"name": "a b"}}), "its name 'a b': must be of 1 to 128 letters"),
    (calling({"function": {"name": "f", "arguments": [1]}}), "must be JSON text or a mapping"),
    (calling({"id": 1, "function": {"name": "f"}}), "its id 1: must be text"),
    ([{"role": "assistant", "tool_calls": {"a": 1}}], "its tool_calls .*: must be a list"),
    ([{**USER, "x": object}], r"messages\[0\] .*: must be what JSON has"),
    ([{**USER, "x": float("nan")}], r"messages\[0\] nan: must be what JSON has"),
    ([{**USER, "x": NESTED}], r"messages\[0\]: lists and mappings within one another, over 40 levels"),
    ([{1: 2}], r"messages\[0\] 1: must be text"),
]
BAD_TOOLS: list[Any] = [
    (F, "tools .*: must be a list of function descriptions"),
    ([{"type": "web_search", "function": {"name": "f"}}], r"tools\[0\] .*: must be a mapping"),
    ([F, {"function": {"name": ""}}], r"tools\[1\]: its name '': must be of 1 to 128"),
    ([F, F], r"tools\[1\]: there is another one named f"),
    ([{"function": {"name": "f", "parameters": "{}"}}], "its parameters '{}': must be a JSON schema"),
]
BAD_CHOICES: list[Any] = [
    (([], "required"), "tool_choice asks for a call, and there are no tools"),
    (([F], "any"), 'tool_choice \'any\': must be "none", "auto", "required" or'),
    (([F], {"name": "f"}), "tool_choice .*: must be"),
    (([F], {"function": {"name": "h"}}), "tool_choice: the function 'h': must be one of the tools: f"),
]
BAD_VARIABLES: list[Any] = [
    ({"tools": []}, "chat_template_kwargs: tools is not to be set there"),
    (5, "chat_template_kwargs 5: must be a mapping"),
    ({"x": len}, "chat_template_kwargs .*: must be what JSON has"),
]


@pytest.mark.parametrize(
    ("parse", "given", "complaint"),
    [
        *((parse_messages, *row) for row in BAD_MESSAGES),
        *((parse_tools, *row) for row in BAD_TOOLS),
        *((lambda choice: parse_tool_choice(*choice), *row) for row in BAD_CHOICES),
        *((variables, *row) for row in BAD_VARIABLES),
    ],
)
def test_bad_messages_tools_choices_and_variables_are_refused(
    parse: Callable[[Any], Any], given: Any, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse(given)
