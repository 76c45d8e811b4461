"""Calls read from an answer: in every format, however the text arrives, and nothing of it lost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline.text.messages import Tool
from paceline.text.tools.formats import GENERIC, HERMES, TABLE, THINK, Thought, ToolFormat, thought_of
from paceline.text.tools.parser import AnswerParser, AssistantMessage

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
    "harmony": (
        "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{}<|call|>"
        "<|channel|>analysis to=functions.add code<|message|>{}"
    ).format(*NAMELESS),
    "gemma": '<|tool_call>call:weather{city:<|"|>a<|"|>}<tool_call|><|tool_call>call:add{n:1}<tool_call|>',
    "functiongemma": (
        "<start_function_call>call:weather{city:<escape>a<escape>}<end_function_call>"
        "<start_function_call>call:add{n:1}<end_function_call>"
    ),
    "minimax": (
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">a</parameter>\n</invoke>\n'
        '<invoke name="add">\n<parameter name="n">1</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    "gigachat": "<|function_call|>{}\n<|function_call|>{}".format(*CALLS),
    "toolcall": "<TOOLCALL>[{}, {}]</TOOLCALL>".format(*CALLS),
    "tool-calls": "<tool_calls>\n{}\n{}\n</tool_calls>".format(*CALLS),
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
    '{"name": "add", "argum',
    "<tool_call>{'name': 'add'}</tool_call>",
    "<tool_call>add(1)</tool_call>",
    "<tool_call>[]</tool_call>",
    '<tool_call>{"name": "ad',
    '<tool_call>{"type": "function", "name": "ad"}',
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
        ('<tool_call>{"name": "add", "arguments": "{\\"n\\":\n1}"}</tool_call>', "", [A]),
        ('<tool_call>{"name": "add", "arguments": "n\\n"}</tool_call>', "", [("add", "n\n")]),
        ('{"type": "function", "function": {"name": "add", "arguments": {"n": 1}}}', "", [A]),
        ('{"function": "add", "parameters": {"n": 1}}', "", [A]),
        ('```json\n{"name": "add", "arguments": {"n": 1}}\n```', "", [A]),
        ('Here:\n```json\n[{"name": "add", "arguments": {"n": 1}}]\n```\nOk', "Here:\nOk", [A]),
        ('Here:\n  {"name": "add", "arguments": {"n": 1}}', "Here:", [A]),
        ("a" + " " * 150 + EMPTY_CALL + " " * 90, "a", [("add", "{}")]),
        # a call beside what is none
        (OTHER + EMPTY_CALL, OTHER, [("add", "{}")]),
        ("<tool_call>" + EMPTY_CALL, "<tool_call>", [("add", "{}")]),
        ('[{"name": "add", "arguments": {"n": 1}}, {"name": "ad"}]', ', {"name": "ad"}]', [A]),
        # what breaks off after a name is closed
        ('<tool_call>{"name": "add", "argum', ' "argum', [("add", "{}")]),
        ('<tool_call>{"name": "weather", "arguments": {"city": "a', "", [W]),
        ('<tool_call>{"name": "weather", "arguments": {"city": b}} c', " b}} c", [("weather", "{}")]),
        ('{"name": "add", "arguments": {"n": 1,}}', "", [A]),
        *(
            (f'{{"name": "add", "arguments": {{"n": {x}}}}}', f" {x}}}}}", [("add", "{}")])
            for x in ("01", "NaN")
        ),
        ('{"name": "add", "arguments": {n: [True, None]}}', "", [("add", '{"n": [true, null]}')]),
        # strings as models write them
        (
            '<tool_call>{"name": "weather", "arguments": {"city": "a\nb\\d\\"\\u00fc\\u1"}}',
            "",
            [("weather", '{"city": "a\\nb\\\\d\\"\\u00fc\\\\u1"}')],
        ),
        # what is no call, breaks off, or is no JSON
        *((text, text, []) for text in BROKEN),
        ('{"name": "add", "arguments": {"n": 1}} and', " and", [A]),
    ],
)
def test_what_is_a_call_and_what_is_not(text: str, content: str, made: list[tuple[str, str]]) -> None:
    assert calls("hermes", text) == (content, made)


THOUGHTS = [
    (HERMES, THINK, f"<think>\na {EMPTY_CALL}\n</think>\n\n{EMPTY_CALL}", "", ["add"]),
    (HERMES, THINK, f"a {EMPTY_CALL}</think>b", "b", []),
    (HERMES, THINK, f"a {EMPTY_CALL}\n", "", []),
    (FORMATS["generic"], THINK, 'a {"name": "add", "arguments": {}}</think>[THINK]', "[THINK]", []),
    (
        FORMATS["harmony"],
        thought_of("<|channel|>analysis"),
        f"<|channel|>analysis<|message|>a {EMPTY_CALL}<|end|><|start|>assistant"
        "<|channel|>commentary<|message|>b<|end|><|start|>assistant"
        " to=functions.add<|channel|>commentary json<|message|>{}",
        "b",
        ["add"],
    ),
    (
        FORMATS["gemma"],
        thought_of("<|channel>thought"),
        f"<|channel>thought\na {EMPTY_CALL}\n<channel|>b",
        "b",
        [],
    ),
]


@pytest.mark.parametrize(("form", "thought", "text", "content", "names"), THOUGHTS)
def test_a_thought_is_reasoning_and_has_no_calls(
    form: ToolFormat, thought: Thought | None, text: str, content: str, names: list[str]
) -> None:
    assert thought
    thinking = not text.startswith(thought.open)
    for pieces in ([text], list(text)):
        stream = AnswerParser(form, TOOLS, thought=thought, thinking=thinking)
        deltas = [delta for piece in pieces for delta in stream.feed(piece)]
        answer = AssistantMessage.of([*deltas, *stream.finish()])
        assert answer.content == content
        assert answer.reasoning in (f"a {EMPTY_CALL}", 'a {"name": "add", "arguments": {}}')
        assert [call.name for call in answer.calls] == names
    assert answer.openai()["reasoning_content"] == answer.reasoning
    assert {"reasoning_content": "a"} in [delta.openai() for delta in deltas]
    assert (
        AnswerParser(form, [], thought=None).parse(EMPTY_CALL + "<think>").content == EMPTY_CALL + "<think>"
    )


def test_a_thought_that_the_prompt_opens_is_open() -> None:
    assert THINK.is_open("<user><think><assistant><think>\n")
    assert not THINK.is_open("<think><assistant>")
    assert not THINK.is_open("<think>\n\n</think>\n\n")
    assert THINK.is_open("<assistant>", "<think>a")
    assert not THINK.is_open("<think>\n", "a</think>b")
    assert THINK.is_closed("<think>\n\n</think>\n\n")


SCHEMAS: list[tuple[Any, str, Any]] = [
    ({"type": "integer"}, "many", "many"),
    ({"type": "boolean"}, "True", True),
    ({"type": "string"}, "4", "4"),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": ["string", "null"]}, "5", "5"),
    ({"type": ["string", "number"]}, "NaN", "NaN"),
    ({"type": ["string", "number"]}, "5", 5),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
    ({"oneOf": [{"type": "object"}, {"type": "string"}]}, '{"x": 1}', {"x": 1}),
    ({"allOf": [{"type": ["array", "string"]}, {"type": "array"}]}, '["a"]', ["a"]),
    ({"$ref": "#/$defs/n"}, "[1]", [1]),
    ({"$ref": "#/$defs/loop"}, "5", 5),
    ({"$ref": "#/$defs/none"}, "[", "["),
    ({"enum": [1, 2]}, "2", 2),
    ({"enum": ["1", "2"]}, "2", "2"),
    ({"const": 1.5}, "1.5", 1.5),
    ({}, "{", "{"),
    ({}, "[1]", [1]),
]


@pytest.mark.parametrize(("schema", "text", "value"), SCHEMAS)
def test_arguments_that_are_no_json_have_the_types_of_the_schema(schema: Any, text: str, value: Any) -> None:
    made = tool("add", n=schema)
    loop = {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/loop"}]}
    made["function"]["parameters"]["$defs"] = {"n": {"type": ["array", "null"]}, "loop": loop}
    written = WRITTEN["qwen-coder"].replace("\n1\n", f"\n{text}\n</parameter>\n<parameter=m>\n4\n")
    _, call = AnswerParser(FORMATS["qwen-coder"], [TOOLS[0], made]).parse(written).calls
    assert json.loads(call.arguments) == {"n": value, "m": "4"}


@pytest.mark.parametrize("name", FORMATS)
def test_marks_in_an_argument_are_text(name: str) -> None:
    form, written = FORMATS[name], WRITTEN[name]
    close, end = (form.pairs.close[-1], form.pairs.end) if form.pairs else (form.quote, "")
    others = "".join(mark for mark in MARKS if form.pairs is None or mark not in form.start_markers)
    sample = written[: written.index(end) + len(end)]
    for value in (f"{close} a{close}\n", f"a{close}{end}\n{others}b", f"```\n{sample}\n```"):
        if '"a"' in written:
            text = written.replace('"a"', json.dumps(value))
        else:
            text = value.join(re.split(r"(?<=[>\n])a(?=[\n<])", written))
        content, made = calls(name, text)
        assert (content, [json.loads(arguments) for _, arguments in made]) == (
            "",
            [{"city": value}, {"n": 1}],
        )
        stream = AnswerParser(form, TOOLS, numbers())
        deltas = [delta for letter in text for delta in stream.feed(letter)]
        assert AssistantMessage.of([*deltas, *stream.finish()]) == read(form, text)


def test_values_too_deep_and_heads_too_long_are_content() -> None:
    deep = '{"name": "add", "x": ' + "[" * 200 + "]" * 200 + ', "arguments": {}}'
    assert calls("hermes", deep) == (deep, [])
    far = f"[TOOL_CALLS]{'add' * 200}[ARGS]" + "{}"
    assert calls("mistral-args", far) == (far, [])
    for hostile in ("<tool_call>" * 3000, '{"function":\n' * 3000):
        assert calls("hermes", hostile) == (hostile, [])
    for form in TABLE:
        for mark in form.start_markers:
            hostile = f"{mark}{' ' * 140}add{' ' * 140}"
            assert calls(form.name, hostile) == (hostile, [])


def test_a_call_is_passed_on_as_it_arrives() -> None:
    stream = AnswerParser(HERMES, TOOLS, numbers())
    pieces = [
        "Hm.\n",
        "<tool",
        '_call>{"name": "weather"',
        ', "arguments": {"city',
        '": "a',
        'b"}',
        "}</tool_",
        "call>",
    ]
    deltas = [[delta.openai() for delta in stream.feed(piece)] for piece in pieces]
    first = {"id": "id0", "type": "function", "function": {"name": "weather", "arguments": ""}}
    parts = [[{"index": 0, "function": {"arguments": text}}] for text in ("{", '"city": "a', 'b"}')]
    calls_ = [[], [{"index": 0, **first}], *parts, []]
    assert deltas == [[{"content": "Hm."}], *([{"tool_calls": one}] if one else [] for one in calls_), []]
    assert stream.finish() == []
    whole = read(HERMES, "".join(pieces)).openai()
    first["function"] = {"name": "weather", "arguments": '{"city": "ab"}'}
    assert whole == {"role": "assistant", "content": "Hm.", "tool_calls": [first]}
    stream = AnswerParser(FORMATS["qwen-coder"], TOOLS, numbers())
    arguments = [
        [delta.arguments for delta in stream.feed(piece)]
        for piece in ("<function=weather>\n<parameter=", "city>\na", "b</param", "eter>\n</function", ">")
    ]
    assert arguments == [[""], ['{"city": "a'], ["b"], [], []]
    assert [delta.arguments for delta in stream.finish()] == ['"}']


def test_an_end_may_be_missing() -> None:
    for end in ("</function>\n", "</tool_call>"):
        assert calls("qwen-coder", WRITTEN["qwen-coder"].replace(end, "")) == ("", [W, A])


@pytest.mark.parametrize("name", FORMATS)
def test_arguments_of_a_truncated_call_are_no_json(name: str) -> None:
    form, written = FORMATS[name], WRITTEN[name]
    for size in range(len(written)):
        answer = AnswerParser(form, TOOLS).parse(written[:size], cut=True)
        assert len(answer.content.strip()) < 2 or (name == "generic" and not answer.calls)
        for call, arguments in zip(answer.calls, ('{"city": "a"}', '{"n": 1}'), strict=False):
            assert arguments.startswith(call.arguments)
            assert call.arguments == arguments or call == answer.calls[-1]


@pytest.mark.parametrize("form", [HERMES, GENERIC], ids=lambda one: one.name)
@given(n=st.integers(0, 60), at=st.lists(st.integers(0, 100), max_size=9))
def test_of_a_truncated_call_nothing_is_content(form: ToolFormat, n: int, at: list[int]) -> None:
    call = f"<tool_call>\n{CALLS[1]}" if form is HERMES else CALLS[1]
    text = f"I shall add.\n{call[:n]}"
    whole = AnswerParser(form, TOOLS).parse(text, cut=True)
    # One letter is no call, and an object without a name may be an answer in JSON.
    assert whole.content.strip() in (
        "I shall add.",
        "I shall add.\n<",
        text.strip() if form is GENERIC else "",
    )
    assert {call.name for call in whole.calls} <= {"add"}
    stream = AnswerParser(form, TOOLS)
    deltas = [delta for piece in cut(text, at) for delta in stream.feed(piece)]
    assert AssistantMessage.of([*deltas, *stream.finish(cut=True)]).content == whole.content


@pytest.mark.parametrize(
    "text",
    ['{"type": "a", "x": "b', "Use the <tool_call> tag to", "a\n```py\nb\n```", '```json\n{"name": "b"'],
)
def test_truncated_content_is_whole(text: str) -> None:
    assert AnswerParser(HERMES, TOOLS).parse(text, cut=True).content == text


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


@given(TEXTS, st.lists(st.integers(0, 1 << 20), max_size=12), st.sampled_from(TABLE), st.booleans())
def test_where_the_text_is_cut_does_not_matter(
    text: str, at: list[int], format_: ToolFormat, truncated: bool
) -> None:
    whole = AnswerParser(format_, TOOLS, numbers()).parse(text, cut=truncated)
    assert truncated or all(isinstance(json.loads(call.arguments), dict) for call in whole.calls)
    for pieces in (cut(text, at), list(text)):
        stream = AnswerParser(format_, TOOLS, numbers())
        deltas = [delta for piece in pieces for delta in stream.feed(piece)]
        assert AssistantMessage.of([*deltas, *stream.finish(cut=truncated)]) == whole


@given(TEXTS, st.sampled_from(TABLE))
@example('"<|channel|>commentary<|message|>"', FORMATS["harmony"])
def test_nothing_is_lost_where_there_are_no_calls(text: str, format_: ToolFormat) -> None:
    answer = AnswerParser(format_, TOOLS, thought=None).parse(text)
    if not answer.calls and not any(mark in text for mark in format_.skipped):
        assert answer.content == text
    else:  # all content stood in the text, in this order
        letters = iter(text)
        assert all(letter in letters for letter in answer.content)


@given(st.text(max_size=5), OBJECTS, st.booleans())
def test_any_arguments_come_through(before: str, arguments: dict[str, Any], ascii_: bool) -> None:
    spelled = json.dumps(arguments, ensure_ascii=ascii_)
    said = read(HERMES, f'{before}<tool_call>{{"name": "add", "arguments": {spelled}}}</tool_call>')
    assert [(call.name, json.loads(call.arguments)) for call in said.calls] == [("add", arguments)]
    assert said.content == before.rstrip()
    assert read(GENERIC, f'{{"name": "add", "arguments": {spelled}}}').calls == said.calls
