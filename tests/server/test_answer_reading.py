"""Content, calls and drafters of an answer, for any division into outputs."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.request_handle import Finish, StepOutput
from paceline.server.convert import ToolCallParsing
from paceline.server.tool_stream import ToolDeltaReader
from paceline.speculative.stats import Stats
from paceline.text.messages import parse_tools
from paceline.text.tools.formats import GENERIC, HERMES, ToolFormat
from paceline.text.tools.parser import parse_tool_calls

TOOLS = parse_tools(
    [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2]}}\n</tool_call>'
END = Finish("eos", None, 1, 0, 1, 0.0, 0.0, 0.0, Stats())


def updates(text: str, cuts: list[int], end: Finish = END) -> list[StepOutput]:
    """Cut the text into outputs, each of another drafter."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    outputs = [StepOutput(((piece, f"drafter {at}"),)) for at, piece in enumerate(pieces)]
    return [*outputs, StepOutput(finish=end)]


def read(
    calls: ToolCallParsing | None, outputs: list[StepOutput]
) -> tuple[str, list[tuple[str, str]], dict[int, Any], int]:
    """Return the content, its parts, the calls by number, and their count."""
    reader, content, parts = ToolDeltaReader(calls), "", list[tuple[str, str]]()
    found: dict[int, Any] = {}
    for update in outputs:
        for one in reader.read(update):
            content += one.delta.get("content", "")
            assert "".join(text for text, _ in one.parts) == one.delta.get("content", "")
            parts += one.parts
            for call in one.delta.get("tool_calls", ()):
                known = found.setdefault(call["index"], {"name": "", "arguments": ""})
                known["name"] += call["function"].get("name", "")
                known["arguments"] += call["function"]["arguments"]
    return content, parts, found, reader.calls


CUTS = st.lists(st.integers(0, 400), max_size=12)


@given(CUTS)
def test_a_call_is_read_however_it_is_cut(cuts: list[int]) -> None:
    calls = ToolCallParsing(HERMES, TOOLS, "", {})
    content, _, found, n = read(calls, updates(f"I shall add.\n{CALL}", cuts))
    assert content.strip() == "I shall add."
    assert n == 1
    assert found[0]["name"] == "add"
    assert json.loads(found[0]["arguments"]) == {"a": 1, "b": [2]}


@pytest.mark.parametrize("form", [HERMES, GENERIC], ids=lambda one: one.name)
@pytest.mark.parametrize("marked", [True, False])
@given(n=st.integers(0, len(CALL)), cuts=CUTS)
def test_of_an_answer_that_is_cut_in_a_call_no_half_call_is_content(
    form: ToolFormat, marked: bool, n: int, cuts: list[int]
) -> None:
    call = CALL if marked and form is HERMES else CALL.split("\n")[1]
    text = f"I shall add.\n{call[:n]}"
    calls = ToolCallParsing(form, TOOLS, "", {})
    content, parts, found, _ = read(calls, updates(text, cuts, replace(END, reason="length")))
    assert content.strip() in ("I shall add.", "I shall add.\n<")  # one letter is no call
    assert "".join(part for part, _ in parts) == content
    assert {one["name"] for one in found.values()} <= {"add"}
    whole = parse_tool_calls(form, TOOLS, text, cut=True)
    assert (whole.content, len(whole.calls)) == (content, len(found))


@given(st.text(alphabet='ab <>{}"tool_cal\n', max_size=80), CUTS)
def test_content_keeps_its_drafters(text: str, cuts: list[int]) -> None:
    said = updates(text, cuts)
    content, parts, found, n = read(ToolCallParsing(HERMES, TOOLS, "", {}), said)
    assert (content, found, n) == (text, {}, 0)
    letters = [(letter, source) for part, source in parts for letter in part]
    given_ = [(letter, source) for update in said for part, source in update.parts for letter in part]
    assert letters == given_


def test_what_the_answer_was_begun_with_counts_and_is_not_told() -> None:
    calls = ToolCallParsing(HERMES, TOOLS, "<tool_call>\n", {})
    rest = '{"name": "add", "arguments": {}}\n</tool_call>'
    content, parts, found, n = read(calls, updates(rest, [3, 9]))
    assert (content, parts, n) == ("", [], 1)
    assert found[0]["arguments"] == "{}"
