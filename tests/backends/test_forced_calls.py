"""A schema that makes a model call a tool, in its own format: what satisfies it is read as that call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline.text.grammar_source import from_schema
from paceline.text.messages import Tool, parse_tool_choice
from paceline.text.tools.formats import TABLE, ToolFormat, force_call
from paceline.text.tools.parser import AnswerParser

NODE = {
    "type": "object",
    "properties": {"next": {"$ref": "#/$defs/node"}, "n": {"type": "integer"}},
    "required": ["n"],
}
CHAIN: Tool = {
    "type": "function",
    "function": {
        "name": "chain",
        "parameters": {
            "properties": {"first": {"$ref": "#/$defs/node"}, "$ref": {"type": "boolean"}},
            "required": ["first"],
            "$defs": {"node": NODE},
        },
    },
}
TIME: Tool = {"type": "function", "function": {"name": "time_now"}}
ONE: dict[str, Any] = {"type": "function", "function": {"name": "chain"}}
RIGHT = {"first": {"next": {"n": 1}, "n": 2}, "$ref": True}


def spelled(format_: ToolFormat, begin: str, name: str, arguments: Any) -> str:
    """Return the text that a model would write after `begin`."""
    if name in begin:
        return json.dumps(arguments)
    named, said = format_.keys
    call = {named: name, said: arguments}
    return json.dumps([call] if format_.calls_are_list else call)


@pytest.mark.parametrize("format_", TABLE, ids=lambda one: one.name)
@pytest.mark.parametrize("choice", ["required", ONE], ids=["required", "named"])
def test_what_satisfies_the_schema_is_a_call(format_: ToolFormat, choice: Any) -> None:
    must = force_call(format_, parse_tool_choice([CHAIN, TIME], choice))
    assert must is not None
    syntax = from_schema(must.json_schema)
    said = spelled(must.format, must.prefix, "chain", RIGHT)
    assert syntax.matches(said)
    answer = AnswerParser(must.format, [CHAIN, TIME], prefix=must.prefix).parse(said)
    assert answer.content == ""
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [("chain", RIGHT)]
    wrongs: list[Any] = [{"first": {"next": {}, "n": 2}}, {}, {"first": {"n": "2"}}, []]
    for wrong in wrongs:
        assert not syntax.matches(spelled(must.format, must.prefix, "chain", wrong))
    if "chain" not in must.prefix:
        assert syntax.matches(spelled(must.format, must.prefix, "time_now", {})) == (choice == "required")
        assert not syntax.matches(spelled(must.format, must.prefix, "other", {}))
        assert not syntax.matches("[]")


def test_nothing_is_forced_where_the_model_is_free() -> None:
    for choice in ("none", "auto", None):
        assert force_call(TABLE[0], parse_tool_choice([CHAIN], choice)) is None
