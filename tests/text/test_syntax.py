"""JSON schemas and regular expressions: what they match, and why some cannot be used."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.speculative.errors import UsageError
from paceline.text.grammar_source import from_pattern, from_schema, parse_grammar
from paceline.text.json_schema import LOOSENED

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 3}, "n": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}


ALLOWED = ['{"name": "ab"}', '{"name":"ab","n":-3}', '{\n  "name": "é",\n  "n": 0\n}']
FORBIDDEN = [
    '{"name": "abcd"}', '{"n": 1}', '{"name": "ab", "m": 1}', '{"name": "ab"', '{"name": "ab"} ',
    '{"name":  "ab"}', "",
]  # fmt: skip


@pytest.mark.parametrize("text", ALLOWED + FORBIDDEN)
def test_schema_matches_only_valid_json_with_little_space(text: str) -> None:
    assert from_schema(SCHEMA).matches(text) is (text in ALLOWED)
    assert from_schema(json.dumps(SCHEMA)).matches(text) is (text in ALLOWED)


def test_a_schema_may_be_true_recursive_or_set_its_own_spaces() -> None:
    assert from_schema(True).matches('{"a": [1, null]}')
    nested = {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}
    assert from_schema(nested).matches("[[], [[]]]")
    assert from_schema({**SCHEMA, "x-guidance": {"whitespace_flexible": True}}).matches('{"name":   "a"}')


PATTERNS = [
    r"[a-c]+", r"(ab|a|)c?", r"\d{2}", r"a.c", r"a/b|/", r"é*", r"\\", r"(?i)aB", "a\nb", r"^a$", r"\w\s",
]  # fmt: skip


@given(pattern=st.sampled_from(PATTERNS), text=st.text("abcABé01/\\\n ", max_size=4))
@settings(max_examples=150, deadline=None)
def test_a_regular_expression_matches_the_texts_python_matches_with_it(pattern: str, text: str) -> None:
    assert from_pattern(pattern).matches(text) is (re.fullmatch(pattern.strip("^$"), text) is not None)


NO_JSON, UNUSABLE = "the JSON schema is not JSON: ", "the JSON schema cannot be used: "
NO_TEXT = "no text can satisfy the JSON schema: "


def refused(schema: Any, pattern: str | None, complaint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_grammar(schema, pattern)
    assert str(refusal.value).startswith(complaint)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("", NO_JSON + "Expecting value: line 1 column 1"),
        ('{"minimum": NaN}', NO_JSON + "Out of range float values"),
        ("[" * 100_000, NO_JSON + "maximum recursion depth"),
        ({"enum": {1, 2}}, NO_JSON + "Object of type set"),
        ({"minimum": float("inf")}, NO_JSON + "Out of range float"),
        (5, "the JSON schema 5: must be JSON text, a mapping, True or False"),
        ('{"const": "\\ud800"}', "the JSON schema is not UTF-8 text"),
        ("3", UNUSABLE + "schema must be an object or boolean"),
        ({"type": "text"}, UNUSABLE + "Invalid type: text"),
        ({"type": "string", "pattern": "("}, UNUSABLE + "unclosed group"),
        ({"$ref": "#/$defs/none"}, UNUSABLE + "Pointer '/$defs/none' does not exist"),
        ({"x-guidance": {}, "not": {}}, UNUSABLE + 'Unimplemented keys: ["not"]'),
        ("false", NO_TEXT + "schema is false"),
        ({"minLength": 3, "maxLength": 1, "type": "string"}, NO_TEXT + "minLength"),
    ],
)
def test_unusable_schema_is_refused_in_one_line(schema: Any, complaint: str) -> None:
    refused(schema, None, complaint)


@pytest.mark.parametrize(
    ("pattern", "complaint"),
    [
        ("(", "unclosed group"), ("a{3,1}", "invalid repetition count range"),
        (r"(a)\1", "backreferences are not supported"), ("a(?=b)", "look-around"),
        ("a\\", "it ends in a backslash that escapes nothing"),
    ],
)  # fmt: skip
def test_unusable_regular_expression_is_refused_in_one_line(pattern: str, complaint: str) -> None:
    refused(None, pattern, f"the regular expression cannot be used: {complaint}")


LOOSE: tuple[Any, ...] = (
    {"type": "array"},
    {},
    {},
    {},
    True,
    {"const": 2},
    3,
    0,
    {},
    {},
    {},
    {},
    False,
    False,
)
TREE = {
    "type": "object",
    "properties": {"of": {"$ref": "#/$defs/a~1b"}},
    "$defs": {"a/b": {"type": "integer"}},
}
AROUND = {"type": ["string", "null"], "pattern": "^a(?!b)"}
NAMED_NOT = {"type": "object", "properties": {"not": {"const": {"if": 1}}}}
COUNTED = {"type": "object", "minProperties": 1, "patternProperties": {"^a": {"type": "null"}}}


@pytest.mark.parametrize(
    ("schema", "text", "note"),
    [
        *(
            ({it: value}, "[1, 1]", f"{it} is not enforced")
            for it, value in zip(LOOSENED, LOOSE, strict=True)
        ),
        ({"type": "string", "format": "int32"}, '"x"', "the format int32 is not enforced"),
        (AROUND, '"ab"', "the pattern ^a(?!b) is not enforced: it looks"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1", None),
        ({"type": "string", "format": "uri", "maxLength": 1_000_000}, '"http://a.de"', None),
        (COUNTED, '{"a": null}', None),
        (NAMED_NOT, '{"not": {"if": 1}}', None),
        ({"items": TREE}, '[{"of": 1}]', None),
        ({"items": {"$id": "http://a.de", "items": TREE}}, '[[{"of": 1}]]', None),
        ({"prefixItems": [{"$ref": "#/$defs/n", "$defs": {"n": {"const": 5}}}]}, "[5]", None),
    ],
)
def test_what_cannot_be_enforced_is_left_out_with_a_note(schema: Any, text: str, note: str | None) -> None:
    syntax = parse_grammar(schema)
    assert syntax is not None
    assert syntax.matches(text)
    assert [one[: len(note or "")] for one in syntax.notes] == ([note] if note else [])


NESTED = {
    "properties": {"b": {"properties": {"c": {}}, "type": "object"}, "d": {"type": "object"}},
    "type": "object",
}


@pytest.mark.parametrize(
    ("schema", "text", "closed"),
    [
        (NESTED, '{"x": 1}', True),
        (NESTED, '{"b": {"x": 1}}', True),
        (NESTED, '{"d": {"x": 1}}', False),
        ({**NESTED, "additionalProperties": True}, '{"x": 1}', False),
        ({"allOf": [NESTED, {"properties": {"x": {}}, "type": "object"}]}, '{"d": {}, "x": 1}', False),
        ({**NESTED, "anyOf": [{"properties": {"x": {}}}]}, '{"x": 1}', False),
        ({"anyOf": [NESTED, {"type": "null"}]}, '{"x": 1}', True),
    ],
)
def test_strict_schemas_close_objects_where_that_forbids_no_property(
    schema: Any, text: str, closed: bool
) -> None:
    assert from_schema(schema).matches(text)
    strict = from_schema(schema, strict=True)
    assert strict.matches(text) is not closed
    assert bool(strict.notes) is closed or schema is NESTED or "properties" in schema


def test_choices_are_texts_whatever_characters_they_have() -> None:
    texts = ["yes", "yes, a/b\n", "é[1]", "\\x"]
    syntax = parse_grammar(choice=texts)
    assert syntax is not None
    assert [syntax.matches(text) for text in [*texts, "no", "é1", "yes,"]] == [True] * 4 + [False] * 3
    for bad in ([], [""], "", 5):
        with pytest.raises(UsageError, match="the choices"):
            parse_grammar(choice=bad)  # type: ignore[arg-type]


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
