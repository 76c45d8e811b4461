"""Calls read from an answer: in every format, however the text arrives, and nothing of it lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.text.messages import Tool
from paceline.text.tools.formats import GENERIC, HERMES, TABLE, ToolFormat
from paceline.text.tools.parser import AssistantMessage, MessageDelta, AnswerParser

FORMATS = {one.name: one for one in TABLE}


def tool(name: str, **properties: Any) -> Tool:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("weather", city={"type": "string"}, days={"type": "integer"}, note={"type": ["string", "null"]}),
    tool("add", n={"type": "integer"}),
]


def numbers() -> Callable[[], str]:
    n = count()
    return lambda: f"id{next(n)}"


def read(format_: ToolFormat, text: str) -> AssistantMessage:
    return AnswerParser(format_, TOOLS, numbers()).parse(text)


def calls(format_: str, text: str) -> tuple[str, list[tuple[str, str]]]:
    answer = read(FORMATS[format_], text)
    return answer.content, [(call.name, call.arguments) for call in answer.calls]


W, A = ("weather", '{"city": "a"}'), ("add", '{"n": 1}')
CALLS = '{"name": "weather", "arguments": {"city": "a"}}', '{"name": "add", "arguments": {"n": 1}}'
NAMELESS = W[1], A[1]
# Two calls, as models of each format write them; {} are the calls or their arguments.
WRITTEN = {
    "hermes": "<tool_call>\n{}\n</tool_call>\n<tool_call>\n{}\n</tool_call>".format(*CALLS),
    "llama3": "<|python_tag|>{}; {}".format(*CALLS).replace("arguments", "parameters"),
    "mistral": "[TOOL_CALLS] [{}, {}]".format(*CALLS).replace("}},", '}, "id": "abcdefghi"},'),
    "mistral-args": "[TOOL_CALLS]weather[ARGS]{}[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{}".format(*NAMELESS),
    "deepseek-fenced": (
        "<｜tool▁calls▁begin｜>"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{}\n```<｜tool▁call▁end｜>\n"
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ).format(*NAMELESS),
    "deepseek": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
        "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ).format(*NAMELESS),
    "kimi": (
        "<|tool_calls_section_begin|>"
        "<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_call_begin|>functions.add:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>"
    ).format(*NAMELESS),
    "granite": "<|tool_call|>[{}, {}]".format(*CALLS),
    "command-r": "<|START_ACTION|>[\n    {},\n    {}\n]<|END_ACTION|>".format(*CALLS)
    .replace('"name"', '"tool_call_id": "0", "tool_name"')
    .replace("arguments", "parameters"),
    "qwen-coder": (
        "<tool_call>\n<function=weather>\n<parameter=city>\na\n</parameter>\n</function>\n</tool_call>\n"
        "<function=add>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>"
    ),
    "glm": (
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>a</arg_value>\n</tool_call>\n"
        "<tool_call>add\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
    ),
    "functionary": "<function=weather>{}</function>\n<function=add>{}</function>".format(*NAMELESS),
    "generic": "{}\n{}".format(*CALLS),
}


@pytest.mark.parametrize("name", FORMATS)
def test_calls_are_read_in_every_format(name: str) -> None:
    assert calls(name, WRITTEN[name]) == ("", [W, A])
    assert calls(name, f"Let me see.\n\n{WRITTEN[name]}\n") == ("Let me see.", [W, A])
    assert calls(name, f"{WRITTEN[name]}\nDone. ") == ("\nDone. ", [W, A])
    stream = AnswerParser(FORMATS[name], TOOLS, numbers())
    deltas = [delta for letter in WRITTEN[name] for delta in stream.feed(letter)]
    assert AssistantMessage.of([*deltas, *stream.finish()]) == read(FORMATS[name], WRITTEN[name])


@pytest.mark.parametrize("name", FORMATS)
def test_a_tool_that_nobody_declared_stays_content(name: str) -> None:
    text = WRITTEN[name].replace("weather", "wether").replace("add", "ad")
    assert calls(name, text) == (text, [])


BROKEN = [
    'Say {"name": "add", "arguments": {"n": 1}}',
    '{"name": "add"}',
    '{"name": "add", "arguments": []}',
    "<tool_call>{'name': 'add'}</tool_call>",
    "<tool_call>add(1)</tool_call>",
    "<tool_call>[]</tool_call>",
    '<tool_call>{"name": "add", "argum',
    '<think>\n{"name": "add", "arguments": {}}',
    '<tool_call>{"name": "weather", "arguments": {"city": "a',
    '<tool_call>{"name": "weather", "arguments": {"city": b}} c',
    *(f'{{"name": "add", "arguments": {{"n": {value}}}}}' for value in ("01", "NaN", "1,")),
]
EMPTY_CALL = '<tool_call>{"name": "add"}</tool_call>'
OTHER = EMPTY_CALL.replace("add", "ad")
THOUGHT = f"<think>a {EMPTY_CALL}</think>"


@pytest.mark.parametrize(
    ("text", "content", "made"),
    [
        # SmolLM2 writes lists
        ("<tool_call>[{}, {}]</tool_call>".format(*CALLS), "", [W, A]),
        # other orders, forms and spellings
        ('<tool_call>{"arguments": {"n": 1}, "name": "add"}</tool_call>', "", [A]),
        ('<tool_call>{"name": "add", "parameters": {"n": 1}}', "", [A]),
        (EMPTY_CALL, "", [("add", "{}")]),
        ('<tool_call>{"name": "add", "arguments": "{\\"n\\": 1}"}</tool_call>', "", [A]),
        ('{"type": "function", "function": {"name": "add", "arguments": {"n": 1}}}', "", [A]),
        ('{"function": "add", "parameters": {"n": 1}}', "", [A]),
        ('```json\n{"name": "add", "arguments": {"n": 1}}\n```', "", [A]),
        ('Here:\n```json\n[{"name": "add", "arguments": {"n": 1}}]\n```\nOk', "Here:\nOk", [A]),
        ('Here:\n  {"name": "add", "arguments": {"n": 1}}', "Here:", [A]),
        ("a" + " " * 150 + EMPTY_CALL + " " * 90, "a", [("add", "{}")]),
        # a call beside what is none
        (OTHER + EMPTY_CALL, OTHER, [("add", "{}")]),
        ("<tool_call>" + EMPTY_CALL, "<tool_call>", [("add", "{}")]),
        ('[{"name": "add", "arguments": {"n": 1}}, {"name": "ad"}]',) * 2 + ([],),
        # a thought
        (f"{THOUGHT}\n\n{EMPTY_CALL}", THOUGHT, [("add", "{}")]),
        # strings as models write them
        (
            '<tool_call>{"name": "weather", "arguments": {"city": "a\nb\\d\\"\\u00fc\\u1"}}',
            "",
            [("weather", '{"city": "a\\nb\\\\d\\"ü\\\\u1"}')],
        ),
        # what is no call, breaks off, or is no JSON
        *((text, text, []) for text in BROKEN),
        ('{"name": "add", "arguments": {"n": 1}} and', " and", [A]),
    ],
)
def test_what_is_a_call_and_what_is_not(text: str, content: str, made: list[tuple[str, str]]) -> None:
    assert calls("hermes", text) == (content, made)


def test_arguments_that_are_no_json_have_the_types_of_the_schema() -> None:
    pairs = {"city": "1\n2", "days": "3", "note": "null", "other": "4"}
    text = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in pairs.items())
    whole = f"<tool_call>\n<function=weather>\n{text}</function>\n</tool_call>"
    ((_, arguments),) = calls("qwen-coder", whole)[1]
    assert json.loads(arguments) == {"city": "1\n2", "days": 3, "note": None, "other": "4"}
    for rest in ("<parameter=city>\na\n", "nothing"):
        broken = f"<tool_call>\n<function=weather>\n{rest}"
        assert calls("qwen-coder", broken) == (broken, [])
    text = "<parameter=days>\nmany\n</parameter>\n<parameter=note>\n5\n</parameter>\n"
    text = f"<function=weather>\n{text}</function>"
    ((_, arguments),) = calls("qwen-coder", text)[1]
    assert json.loads(arguments) == {"days": "many", "note": "5"}


def test_values_too_deep_and_heads_too_long_are_content() -> None:
    deep = '{"name": "add", "x": ' + "[" * 200 + "]" * 200 + ', "arguments": {}}'
    assert calls("hermes", deep) == (deep, [])
    far = f"[TOOL_CALLS]{'add' * 200}[ARGS]" + "{}"
    assert calls("mistral-args", far) == (far, [])
    assert calls("hermes", "<tool_call>" * 3000)[0] == "<tool_call>" * 3000


def test_a_call_is_passed_on_when_it_is_complete() -> None:
    stream = AnswerParser(HERMES, TOOLS, numbers())
    pieces = ["Hm.\n", "<tool", '_call>{"name": "weather", "arg', 'uments": {"city": "a', 'b"}', "}</tool_"]
    pieces += ["call>\n"]
    deltas = [*map(stream.feed, pieces), stream.finish()]
    call = MessageDelta(index=0, id="id0", name="weather", arguments='{"city": "ab"}')
    assert deltas == [[MessageDelta(content="Hm.")], [], [], [], [], [], [call], []]
    function = {"name": "weather", "arguments": '{"city": "ab"}'}
    said = {"id": "id0", "type": "function", "function": function}
    assert call.openai() == {"tool_calls": [{"index": 0, **said}]}
    whole = {"role": "assistant", "content": None, "tool_calls": [said]}
    assert AssistantMessage.of([call]).openai() == whole


@pytest.mark.parametrize("form", [HERMES, GENERIC], ids=lambda one: one.name)
@given(n=st.integers(0, 60), at=st.lists(st.integers(0, 100), max_size=9))
def test_of_a_truncated_call_nothing_is_content(form: ToolFormat, n: int, at: list[int]) -> None:
    call = f"<tool_call>\n{CALLS[1]}" if form is HERMES else CALLS[1]
    text = f"I shall add.\n{call[:n]}"
    whole = AnswerParser(form, TOOLS).parse(text, cut=True)
    assert whole.content.strip() in ("I shall add.", "I shall add.\n<")  # one letter is no call
    assert {call.name for call in whole.calls} <= {"add"}
    stream = AnswerParser(form, TOOLS)
    deltas = [delta for piece in cut(text, at) for delta in stream.feed(piece)]
    assert AssistantMessage.of([*deltas, *stream.finish(cut=True)]).content == whole.content


def test_the_prefix_of_a_forced_call_is_parsed_and_is_no_content() -> None:
    stream = AnswerParser(HERMES, TOOLS, prefix="<tool_call>\n")
    said = stream.parse('{"name": "add", "arguments": {}}\n</tool_call>')
    assert (said.content, [call.arguments for call in said.calls]) == ("", ["{}"])


@pytest.mark.parametrize("text", ["[1] says", '{"a": 1,', '{"name": "Bob", "age": 5', "{ x = [", "<div>"])
def test_text_that_can_be_no_call_is_content_at_once(text: str) -> None:
    assert AssistantMessage.of(AnswerParser(HERMES, TOOLS).feed(text)).content == text


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=3)
MARKS = sorted(
    {mark for one in TABLE for mark in (*one.markers, *one.start_markers)}
    | {"<think>", "</think>", "```", "function<｜tool▁sep｜>"}
)
WORDS = ["weather", "add", "name", "arguments", '{"name": "add", "arguments": {', "functions.add:0", "ü"]
BITS = st.sampled_from([*MARKS, *WORDS, *'{}[]":,;\\ \n']) | st.text(max_size=3)
TEXTS = st.lists(BITS, max_size=14).map("".join) | st.builds(
    lambda texts, before, after: "".join([before, *texts, after]),
    st.lists(st.sampled_from([*WRITTEN.values()]), max_size=2),
    st.text(max_size=4),
    st.text(max_size=4),
)


def cut(text: str, at: list[int]) -> list[str]:
    ends = sorted(one % (len(text) + 1) for one in at)
    return [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]


@given(TEXTS, st.lists(st.integers(0, 1 << 20), max_size=12), st.sampled_from(TABLE))
def test_where_the_text_is_cut_does_not_matter(text: str, at: list[int], format_: ToolFormat) -> None:
    whole = read(format_, text)
    for pieces in (cut(text, at), list(text)):
        stream = AnswerParser(format_, TOOLS, numbers())
        deltas = [delta for piece in pieces for delta in stream.feed(piece)]
        assert AssistantMessage.of([*deltas, *stream.finish()]) == whole


@given(TEXTS, st.sampled_from(TABLE))
def test_nothing_is_lost_where_there_are_no_calls(text: str, format_: ToolFormat) -> None:
    answer = read(format_, text)
    if not answer.calls:
        assert answer.content == text
    else:  # all content stood in the text, in this order
        stream, at = AnswerParser(format_, TOOLS), 0
        for content in [one.content for one in [*stream.feed(text), *stream.finish()] if one.index is None]:
            at = text.index(content, at) + len(content)


@given(st.text(max_size=5), OBJECTS, st.booleans())
def test_any_arguments_come_through(before: str, arguments: dict[str, Any], ascii_: bool) -> None:
    spelled = json.dumps(arguments, ensure_ascii=ascii_)
    said = read(HERMES, f'{before}<tool_call>{{"name": "add", "arguments": {spelled}}}</tool_call>')
    assert [(call.name, json.loads(call.arguments)) for call in said.calls] == [("add", arguments)]
    assert said.content == before.rstrip()
    assert read(GENERIC, f'{{"name": "add", "arguments": {spelled}}}').calls == said.calls
