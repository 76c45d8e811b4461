"""A process that tries grammars first: what it does not survive ends nothing but the request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from paceline.speculative.errors import PacelineError, UsageError
from paceline.text import worker_process
from paceline.text.grammar_source import GrammarChecker, GrammarSource, from_gbnf, from_pattern, from_schema
from paceline.text.messages import parse_tool_choice
from paceline.text.tools.formats import TABLE, force_call
from schemas import ENDLESS, SLOW, chain

FUNCTIONARY = next(one for one in TABLE if one.name == "functionary")


@pytest.fixture
def checker() -> Iterator[GrammarChecker]:
    made = GrammarChecker()
    yield made
    made.close()


def process(checker: GrammarChecker) -> int:
    assert checker._process is not None
    return checker._process.pid


def test_one_process_checks_one_grammar_after_the_other(checker: GrammarChecker) -> None:
    checker.check(from_schema({"type": "object"}))
    first = process(checker)
    checker.check(from_pattern("é*"))
    with pytest.raises(UsageError, match="the JSON schema cannot be used: Invalid type: text"):
        checker.check(from_schema({"type": "text"}))
    with pytest.raises(UsageError, match="no text can satisfy the JSON schema: schema is false"):
        checker.check(from_schema(False))
    checker.check(from_schema(chain(200)))
    assert process(checker) == first


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        ("required", "the schema of the tools cannot be used: .* \\(at tools\\[1\\]/\\$defs/a\\)"),
        ({"function": {"name": "bad"}}, "tools\\[1\\]: the schema of .* \\(at /\\$defs/a\\)"),
        ("auto", ""),
    ],
)
def test_an_error_in_a_tools_schema_names_the_place(
    choice: Any, complaint: str, checker: GrammarChecker
) -> None:
    bad = {"properties": {"x": {"items": {"$ref": "#/$defs/a"}}}, "$defs": {"a": {"type": "hiccup"}}}
    functions = [{"name": "good"}, {"name": "bad", "parameters": bad}]
    tools = [{"type": "function", "function": function} for function in functions]
    forced = force_call(FUNCTIONARY, parse_tool_choice(tools, choice))
    assert (forced is None) == (choice == "auto")
    if forced is not None:
        with pytest.raises(UsageError, match=complaint):
            checker.check(from_schema(forced.json_schema, forced.name))


def test_a_grammar_begins_after_the_thought(checker: GrammarChecker) -> None:
    grammar = from_schema({"type": "integer"}).after_thought("<think>", "</think>", is_open=True)
    assert grammar.matches("Hm <think> 5 </think>\n\n5")
    assert not grammar.matches("5")
    assert not grammar.matches("Hm </think> 5 </think>5")
    grammar = from_pattern("[0-9]").after_thought("<think>", "</think>", is_open=False)
    assert grammar.matches("<think>5</think>5")
    assert grammar.matches("5")
    assert not grammar.matches("Hm</think>5")
    checker.check(grammar)
    grammar = from_gbnf('root ::= "(" root ")" | "x"').after_thought("<think>", "</think>", is_open=True)
    assert [grammar.matches(text) for text in ("5</think>(x)", "5</think>(5</think>x)")] == [True, False]
    with pytest.raises(UsageError, match=r"Invalid type: text \(at /items\)"):
        checker.check(from_schema({"items": {"type": "text"}}).after_thought("a", "b", is_open=True))


@pytest.mark.parametrize(
    ("syntax", "complaint"),
    [
        (from_schema(chain(950)), "is too complex to compile: simplify it"),
        (from_schema(ENDLESS), "(takes too long|is too complex) to compile: simplify it"),
        (from_schema(SLOW), "takes too long to compile: simplify it"),
    ],
    ids=["stack", "endless", "slow"],
)
def test_what_ends_it_is_refused_and_the_next_grammar_has_another(
    syntax: GrammarSource, complaint: str, checker: GrammarChecker
) -> None:
    checker.check(from_schema({}))
    first = process(checker)
    with pytest.raises(UsageError, match=f"^the JSON schema {complaint}$"):
        checker.check(syntax)
    checker.check(from_schema({}))
    assert process(checker) != first


def test_where_no_process_starts_nothing_is_taken_to_be_checked(
    checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for nothing in ("/nowhere/python", "/bin/false"):
        monkeypatch.setattr("sys.executable", nothing)
        with pytest.raises(PacelineError, match="grammars cannot be checked") as refused:
            checker.check(from_schema({}))
        assert not isinstance(refused.value, UsageError)


def test_a_stalled_process_is_replaced(checker: GrammarChecker, monkeypatch: pytest.MonkeyPatch) -> None:
    checker.check(from_schema({}))
    child = psutil.Process(process(checker))
    child.suspend()  # it gets no time, as between many others
    while child.status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    with monkeypatch.context() as patch:
        patch.setattr(worker_process, "STALL_SECONDS", 0.3)
        with pytest.raises(UsageError, match="takes too long"):
            checker.check(from_schema({"type": "object"}))
    checker.check(from_schema({}))


def test_checks_run_below_the_thread_that_decodes(checker: GrammarChecker) -> None:
    checker.check(from_schema({}))
    assert psutil.Process(process(checker)).nice() > psutil.Process().nice()
