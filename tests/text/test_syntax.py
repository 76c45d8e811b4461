"""JSON schemas and regular expressions: what they match, and why some cannot be used."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.speculative.errors import UsageError
from paceline.text.grammar_check import parse_grammar
from paceline.text.grammar_source import from_pattern, from_schema

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 3}, "n": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('{"name": "ab"}', True),
        ('{"name":"ab","n":-3}', True),
        ('{\n  "name": "é",\n  "n": 0\n}', True),
        ('{"name": "abcd"}', False),
        ('{"n": 1}', False),
        ('{"name": "ab", "m": 1}', False),
        ('{"name": "ab"', False),
        ('{"name": "ab"} ', False),
        ('{"name":  "ab"}', False),
        ("", False),
    ],
)
def test_a_schema_matches_the_json_it_allows_with_little_space(text: str, allowed: bool) -> None:
    assert from_schema(SCHEMA).matches(text) is allowed
    assert from_schema(json.dumps(SCHEMA)).matches(text) is allowed


def test_a_schema_may_be_true_recursive_or_set_its_own_spaces() -> None:
    assert from_schema(True).matches('{"a": [1, null]}')
    nested = {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}
    assert from_schema(nested).matches("[[], [[]]]")
    assert from_schema({**SCHEMA, "x-guidance": {"whitespace_flexible": True}}).matches('{"name":   "a"}')


PATTERNS = [
    r"[a-c]+",
    r"(ab|a|)c?",
    r"\d{2}",
    r"a.c",
    r"a/b|/",
    r"é*",
    r"\\",
    r"(?i)aB",
    "a\nb",
    r"^a$",
    r"\w\s",
]


@given(pattern=st.sampled_from(PATTERNS), text=st.text("abcABé01/\\\n ", max_size=4))
@settings(max_examples=150, deadline=None)
def test_a_regular_expression_matches_the_texts_python_matches_with_it(pattern: str, text: str) -> None:
    assert from_pattern(pattern).matches(text) is (re.fullmatch(pattern.strip("^$"), text) is not None)


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("", "the JSON schema is not JSON: Expecting value: line 1 column 1"),
        ('{"minimum": NaN}', "the JSON schema is not JSON: Out of range float values"),
        ("[" * 100_000, "the JSON schema is not JSON: maximum recursion depth"),
        ({"enum": {1, 2}}, "the JSON schema is not JSON: Object of type set"),
        ({"minimum": float("inf")}, "the JSON schema is not JSON: Out of range float"),
        ("3", "the JSON schema cannot be used: schema must be an object or boolean"),
        ({"type": "text"}, "the JSON schema cannot be used: Invalid type: text"),
        ({"type": "string", "pattern": "("}, "the JSON schema cannot be used: unclosed group"),
        ({"$ref": "#/$defs/none"}, "the JSON schema cannot be used: Pointer '/$defs/none' does not exist"),
        ({"not": {}}, 'the JSON schema cannot be used: Unimplemented keys: ["not"]'),
        ("false", "no text can satisfy the JSON schema: schema is false"),
        (
            {"minLength": 3, "maxLength": 1, "type": "string"},
            "no text can satisfy the JSON schema: minLength",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_in_one_line(schema: Any, complaint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_grammar(schema, None)
    assert str(refusal.value).startswith(complaint)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("(", "unclosed group"),
        ("a{3,1}", "invalid repetition count range"),
        (r"(a)\1", "backreferences are not supported"),
        ("a(?=b)", "look-around"),
        ("a\\", "it ends in a backslash that escapes nothing"),
    ],
)
def test_a_regular_expression_that_cannot_be_used_is_refused_in_one_line(
    pattern: str, complaint: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_grammar(None, pattern)
    assert str(refusal.value).startswith(f"the regular expression cannot be used: {complaint}")
    assert "\n" not in str(refusal.value)


def test_at_most_one_grammar_is_chosen() -> None:
    assert parse_grammar(None, None) is None
    assert parse_grammar({}, None) == from_schema("{}")
    assert parse_grammar(None, "a") == from_pattern("a")
    with pytest.raises(UsageError, match="a text can follow only one of them"):
        parse_grammar({}, "a")


def test_references_in_circles_are_followed_once() -> None:
    names = [f"n{n}" for n in range(40)]
    every = {"anyOf": [{"type": "null"}, *({"$ref": f"#/$defs/{name}"} for name in names)]}
    nodes = {name: {"type": "object", "properties": {"of": every}, "required": ["of"]} for name in names}
    syntax = parse_grammar({"$defs": nodes, "$ref": "#/$defs/n0"}, None)
    assert syntax is not None
    assert syntax.matches('{"of": {"of": null}}')
