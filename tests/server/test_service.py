"""The server's engine: clients get the answers of requests alone, and every request ends."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import product
from random import Random
from typing import Any

import pytest

import paceline
from paceline.api import LLM
from paceline.request_handle import StepOutput
from paceline.server.live_stats import IDLE_SECONDS, LiveStats
from paceline.server.service import QueueFullError, ServingEngine
from paceline.server.settings import ServerLimits
from paceline.speculative.errors import ClosingError, ModelError, TooSlowError, UsageError
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.text.grammar import TextGrammar
from paceline.text.grammar_source import from_pattern
from serving import LONG, Answer, Gate, idle, submit_all, until


@pytest.fixture
def gate(toy: LLM) -> Gate:
    return Gate(toy.target)


def ask(prompt: Sequence[int] = (1, 2, 3), max_tokens: int = 8, **more: Any) -> GenerationRequest:
    more = {"ignore_eos": True, **more}
    return GenerationRequest(prompt=list(prompt), max_tokens=max_tokens, **more)


def submit(service: ServingEngine, *requests: GenerationRequest, client: str = "a") -> list[Answer]:
    return submit_all(service, requests, client)


def free(llm: LLM) -> bool:
    """Return true if all sessions can be opened; a session that is in use raises."""
    sessions = [llm.target.open() for _ in range(llm.target.caps.max_sessions)]
    for session in sessions:
        session.extend([1])
        session.close()
    return True


@pytest.mark.parametrize("sessions", [1, 3])
def test_each_of_many_clients_gets_what_it_would_get_alone(sessions: int) -> None:
    """More clients than sessions, each with several requests at random times."""
    clients, each = 10, 4

    def wanted(client: int, number: int) -> dict[str, Any]:
        prompt = [(client * 7 + number) % 6, client % 6, number % 6, 5]
        return {"prompt": prompt, "max_tokens": 3 + (5 * client + number) % 17, "seed": client}

    def temperature(client: int, number: int) -> float:
        return 0.8 * ((client + number) % 2)

    target, draft = "toy:seed=3,eos=7", "toy:seed=3,eos=7,noise=0.2"
    with paceline.load(target, draft, "lookup,model", sessions=sessions) as llm:
        alone, got = {}, dict[tuple[int, int], Any]()
        for one in product(range(clients), range(each)):
            done = llm.generate(**wanted(*one), temperature=temperature(*one))
            alone[one] = (done.text, list(done.tokens), done.stop_reason)

        def be(client: int) -> None:
            random = Random(client)
            for number in range(each):
                threading.Event().wait(random.random() * 0.02)
                sampling = Sampling(temperature=temperature(client, number))
                request = GenerationRequest(**wanted(client, number), sampling=sampling)
                (answer,) = submit(service, request, client=str(client))
                if random.random() < 0.3:  # and one that it does not wait for
                    (handle,) = service.submit([ask(max_tokens=30)], lambda at, output: None)
                    service.cancel(handle)
                got[client, number] = (answer.text, answer.tokens, answer.end.reason)

        with ServingEngine(llm) as service:
            threads = [threading.Thread(target=be, args=(client,)) for client in range(clients)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LONG)
            until(lambda: idle(service))
        assert got == alone
        assert free(llm)


@pytest.mark.parametrize("when", ["waiting", "reading", "decoding"])
def test_what_is_cancelled_leaves_nothing_behind(when: str, toy: LLM, gate: Gate) -> None:
    with ServingEngine(toy, chunk=8) as service:
        gate.shut()
        others = submit(service, *[ask(max_tokens=40)] * (2 if when == "waiting" else 1))
        gate.held()
        outputs: list[StepOutput] = []

        def take(_: int, output: StepOutput) -> None:
            outputs.extend([output] if output.tokens or output.finish else [])

        prompt = [1, 2, 3] * 30 if when == "reading" else [4]
        (handle,) = service.submit([ask(prompt, max_tokens=100)], take)
        for _ in range(4):
            gate.one()
        n = len(outputs)
        assert (service.running, service.waiting) == ((2, 1) if when == "waiting" else (2, 0))
        assert (n > 0) == (when == "decoding")
        service.cancel(handle)
        service.cancel(handle)
        gate.go()
        assert all(answer.text for answer in others)
        until(lambda: idle(service))
        assert len(outputs) <= n + 1  # of the pass that was under way
        assert all(update.finish is None for update in outputs)
        service.cancel(handle)
        assert submit(service, ask())[0].text
    assert free(toy)
    assert b'request_failure_total{reason="cancelled"} 1.0' in service.metrics.text(0, 0)


@pytest.mark.parametrize(("limits", "most"), [(ServerLimits(queue=3), 5), (ServerLimits(per_client=2), 2)])
def test_more_answers_than_there_will_ever_be_room_for_are_refused(
    limits: ServerLimits, most: int, toy: LLM
) -> None:
    with ServingEngine(toy, limits) as service:
        with pytest.raises(UsageError, match=f"at most {most}") as refused:
            submit(service, *[ask(max_tokens=1)] * (most + 1))
        assert not isinstance(refused.value, QueueFullError)  # to come back would not help
        assert all(answer.text for answer in submit(service, *[ask(max_tokens=1)] * most))


@pytest.mark.parametrize(
    ("limits", "complaint", "other"),
    [
        (ServerLimits(queue=3), "the queue is full", "a"),
        (ServerLimits(queue=3, per_client=4), "4 of your requests are open", "b"),
    ],
)
def test_a_partly_full_queue_or_client_takes_all_answers_or_none(
    limits: ServerLimits, complaint: str, other: str, toy: LLM, gate: Gate
) -> None:
    with ServingEngine(toy, limits) as service:
        gate.shut()
        answers = submit(service, *[ask()] * 4)
        with pytest.raises(QueueFullError, match=complaint):
            submit(service, ask(), ask())
        answers += submit(service, ask(), client=other)
        gate.go()
        assert all(answer.text for answer in answers)
        until(lambda: idle(service))
        assert all(answer.text for answer in submit(service, *[ask()] * 4))


def test_a_client_with_fifty_requests_does_not_delay_another_client(toy: LLM, gate: Gate) -> None:
    ended = list[str]()
    with ServingEngine(toy) as service:
        gate.shut()
        many, one = [ask(client="many")] * 50, [ask(client="one")]
        service.submit(many, lambda _, output: ended.append("many") if output.finish else None)
        gate.held()
        service.submit(one, lambda _, output: ended.append("one") if output.finish else None)
        gate.go()
        until(lambda: len(ended) == 51)
    assert ended.index("one") < 10


def test_what_takes_too_long_is_ended_whether_it_waits_or_runs(toy: LLM, gate: Gate) -> None:
    now = 0.0
    toy.engine.clock = lambda: now
    with ServingEngine(toy, ServerLimits(timeout=10.0)) as service:
        gate.shut()
        running, waiting = submit(service, *[ask(max_tokens=50)] * 2), submit(service, ask())
        gate.held()
        now = 11.0
        late = submit(service, ask())
        gate.go()
        for answer in (*running, *waiting):
            assert isinstance(answer.end.error, TooSlowError)
            assert "10 seconds" in str(answer.end.error)
        assert late[0].text
        until(lambda: idle(service))
    assert free(toy)


def test_a_pass_that_fails_ends_those_in_it_and_no_other(
    toy: LLM, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    with ServingEngine(toy) as service:
        gate.shut()
        answers = submit(service, ask(), ask(), ask())
        gate.held()
        gate.error = ModelError("llama_decode failed")
        gate.go()
        errors = [answer.end.error for answer in answers]
        assert {str(error) for error in errors if error} == {"llama_decode failed"}
        assert errors[2] is None
        assert service.problem == ""
        assert submit(service, ask())[0].text
        until(lambda: idle(service))
    assert caplog.text.count("the model has failed at a request") == 1
    assert free(toy)


def test_a_grammar_that_fails_ends_its_request_alone(toy: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(TextGrammar):
        def mask(self, path: Any) -> Any:
            if path and "5" in self.syntax.lark:
                raise ZeroDivisionError("in the grammar")
            return super().mask(path)

    monkeypatch.setattr("paceline.server.service.TextGrammar", Odd)
    bad, good = from_pattern("[1-5]{9}"), from_pattern("[1-4]{9}")
    with ServingEngine(toy) as service:
        first, second, third = submit(
            service, ask(grammar=bad, ignore_eos=False, max_tokens=20), ask(max_tokens=30),
            ask(grammar=good, ignore_eos=False, max_tokens=20),
        )  # fmt: skip
        assert isinstance(first.end.error, ZeroDivisionError)
        assert second.end.n_tokens == 30
        assert len(third.text) == 9
        until(lambda: idle(service))
    assert free(toy)


def test_going_down_lets_those_end_that_are_there(toy: LLM, gate: Gate) -> None:
    service = ServingEngine(toy)
    answers = submit(service, *[ask(max_tokens=40)] * 5)
    service.announce_shutdown()
    with pytest.raises(ClosingError, match="shutting down"):
        submit(service, ask())
    until(lambda: idle(service))
    service.close()
    assert [answer.end.n_tokens for answer in answers] == [40] * 5
    assert free(toy)


def test_what_is_broken_off_is_told_before_the_pass_ends(toy: LLM, gate: Gate) -> None:
    service = ServingEngine(toy)
    gate.shut()
    answers = submit(service, *[ask(max_tokens=200)] * 5)
    gate.held()
    service.abort_all()
    assert all(isinstance(answer.end.error, ClosingError) for answer in answers)
    assert not service.close(patience=0.01)
    gate.go()
    assert service.close()
    assert not service._handles
    assert free(toy)


def test_a_service_that_dies_says_so(
    toy: LLM, gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    with ServingEngine(toy) as service:
        gate.shut()
        answers = submit(service, *[ask()] * 4)
        gate.held()
        monkeypatch.setattr(service.metrics, "step", broken)
        gate.go()
        for answer in answers:
            assert isinstance(answer.end.error, ClosingError)
            assert "ZeroDivisionError" in str(answer.end.error)
        assert "start it again" in service.problem
        assert "a bug" not in service.problem  # which is not for everybody's eyes
        with pytest.raises(ClosingError, match="start it again"):
            submit(service, ask())
    assert "the engine has failed" in caplog.text
    assert "a bug" in caplog.text
    assert not service._handles
    assert free(toy)


def test_failing_listener_harms_no_other_request(toy: LLM) -> None:
    def deaf(at: int, update: StepOutput) -> None:
        raise RuntimeError("Event loop is closed")

    with ServingEngine(toy) as service:
        service.submit([ask()], deaf)
        assert submit(service, ask())[0].text
        until(lambda: idle(service))


def test_a_request_that_meets_the_end_is_answered_all_the_same(toy: LLM) -> None:
    """Requests that are accepted just before the thread ends get an end, too."""
    for _ in range(20):
        service = ServingEngine(toy)
        let_in: list[Answer] = []

        def come(service: ServingEngine = service, let_in: list[Answer] = let_in) -> None:
            try:
                while True:
                    let_in.extend(submit(service, ask(max_tokens=1)))
            except (ClosingError, QueueFullError):
                pass

        threads = [threading.Thread(target=come) for _ in range(3)]
        for thread in threads:
            thread.start()
        service.close()
        for thread in threads:
            thread.join(LONG)
        assert all(answer.end for answer in let_in)
        assert not service._handles


def test_the_live_throughput_is_that_of_the_passes_and_zero_when_idle(toy: LLM) -> None:
    now = 100.0
    toy.engine.clock = lambda: now
    live = LiveStats(toy)
    live.on_pass(2.0, 10, 2)
    assert live.state()["tokens_per_second"] == 5.0
    now += IDLE_SECONDS
    assert live.state()["tokens_per_second"] == 0.0
