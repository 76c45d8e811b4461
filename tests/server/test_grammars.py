"""Grammars are compiled beside the passes, so that a harmful schema affects its own client alone."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from paceline.api import LLM
from paceline.server.service import ServingEngine
from paceline.server.settings import ServerLimits
from paceline.speculative.errors import TooSlowError, UsageError
from paceline.speculative.request import GenerationRequest
from paceline.text import grammar
from paceline.text.grammar_source import GrammarChecker, GrammarSource, from_pattern, from_schema
from schemas import ENDLESS, SLOW, WIDE, chain
from serving import LONG, Gate, Served, serving, submit, until

COMPLETION = "/v1/completions"


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[GrammarSource]:
    """The grammars whose check has begun."""
    started: list[GrammarSource] = []
    check = GrammarChecker.check

    def recording(self: GrammarChecker, syntax: GrammarSource) -> None:
        started.append(syntax)
        check(self, syntax)

    monkeypatch.setattr(GrammarChecker, "check", recording)
    return started


def body(schema: Any, **more: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"prompt": [1, 2, 3], "max_tokens": 2, "response_format": form, **more}


def ask(syntax: GrammarSource | None = None, max_tokens: int = 8) -> GenerationRequest:
    return GenerationRequest(
        prompt=[1, 2, 3], max_tokens=max_tokens, grammar=syntax, ignore_eos=syntax is None
    )


@contextmanager
def sent(served: Served, content: bytes) -> Iterator[socket.socket]:
    """A completion whose client disconnects at the end of the context."""
    with socket.create_connection(("127.0.0.1", served.port), LONG) as line:
        head = f"POST {COMPLETION} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        line.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        yield line


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (chain(950), "the JSON schema is too complex"),
        (SLOW, "the JSON schema takes too long to compile: simplify it"),
        ({"type": "text"}, "the JSON schema cannot be used: Invalid type: text"),
        ({"type": "string"}, "no text can satisfy the JSON schema"),  # with these few tokens
    ],
    ids=["chain", "slow", "wrong", "unsayable"],
)
def test_a_schema_that_cannot_be_used_is_told_by_the_status(
    schema: Any, complaint: str, stream: bool, toy: LLM
) -> None:
    with serving(toy) as served:
        answer = served.post(COMPLETION, body(schema, stream=stream))
        assert answer.status_code == 400, answer.text
        assert complaint in answer.json()["error"]["message"]
        assert served.post(COMPLETION, body({"type": "integer"}, stream=stream)).status_code == 200
        served.rest()


def test_schemas_whose_clients_have_gone_hold_nobody_up(toy: LLM, checks: list[GrammarSource]) -> None:
    with serving(toy) as served:
        for stream in (False, True):
            for _ in range(6):
                begun = len(checks)
                with sent(served, json.dumps(body(ENDLESS, stream=stream)).encode()):
                    until(lambda begun=begun: len(checks) > begun)
                until(lambda: not served.service.waiting)
        assert served.post(COMPLETION, {"prompt": [1], "max_tokens": 1}).status_code == 200
        served.rest()
        assert served.get("/health").status_code == 200


@pytest.mark.parametrize("schema", [SLOW, WIDE], ids=["slow", "wide"])
def test_others_go_on_while_a_schema_is_compiled(schema: Any, toy: LLM, checks: list[GrammarSource]) -> None:
    with ServingEngine(toy) as service:
        slow = submit(service, ask(from_schema(schema)))
        until(lambda: checks)
        for _ in range(3):
            assert submit(service, ask(), "b").text
        assert not slow.updates
        assert service.waiting == 1
        assert service.pass_seconds < LONG
        assert isinstance(slow.end.error, UsageError)


def test_the_timeout_holds_for_what_is_compiled(toy: LLM, checks: list[GrammarSource]) -> None:
    now = 0.0
    toy.engine.clock = lambda: now
    with ServingEngine(toy, ServerLimits(timeout=10.0)) as service:
        answers = [submit(service, ask(from_schema(ENDLESS)), client) for client in "abcd"]
        until(lambda: checks)
        now = 11.0
        assert all(isinstance(answer.end.error, TooSlowError) for answer in answers)
        now = 12.0
        assert submit(service, ask(from_pattern("[1-4]{3}"))).text
    assert len(checks) <= 3  # those that waited are not compiled any more


def test_a_grammar_is_compiled_once_for_all_who_send_it(
    toy: LLM, checks: list[GrammarSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    thread = threading.current_thread

    class Counted(grammar.CompiledGrammar):
        def __init__(self, *given: Any) -> None:
            compiled.append(thread().name)
            super().__init__(*given)

    monkeypatch.setattr("paceline.text.grammar.CompiledGrammar", Counted)
    syntax = from_pattern("[1-4]{9}")
    with ServingEngine(toy) as service:
        for client in "aab":
            answer = submit(service, ask(syntax, 20), client)
            assert len(answer.text) == 9
        assert checks == [syntax]
        assert len(compiled) == 1
        assert compiled[0].startswith("paceline-grammars")  # not the thread that decodes


def test_a_client_has_one_grammar_compiled_at_a_time(toy: LLM, checks: list[GrammarSource]) -> None:
    many = [from_schema({**ENDLESS, "title": str(n)}) for n in range(4)]
    with ServingEngine(toy) as service:
        for syntax in many:
            submit(service, ask(syntax), "many")
        until(lambda: checks)
        good = from_pattern("[1-4]{3}")
        assert submit(service, ask(good), "other").text
        assert checks[:2] == [many[0], good]


def test_going_down_ends_what_is_compiled(toy: LLM, checks: list[GrammarSource]) -> None:
    service = ServingEngine(toy)
    answer = submit(service, ask(from_schema(ENDLESS)))
    until(lambda: checks)
    service.close()
    assert "shutting down" in str(answer.end.error)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("paceline-grammars")]


def test_health_tells_of_a_pass_that_does_not_end(toy: LLM) -> None:
    now, gate = 0.0, Gate(toy.target)
    toy.engine.clock = lambda: now
    with serving(toy) as served:
        assert served.get("/health").json() == {"status": "ok", "pass_seconds": 0.0}
        gate.shut()
        answer = submit(served.service, ask())
        gate.held()
        now = 100.0
        assert served.get("/health").json() == {"status": "ok", "pass_seconds": 100.0}
        now = 130.0
        stuck = served.get("/health")
        assert stuck.status_code == 503
        assert "one pass for 130 seconds" in stuck.json()["error"]["message"]
        gate.go()
        assert answer.text
        served.rest()
        assert served.get("/health").json()["pass_seconds"] == 0.0
