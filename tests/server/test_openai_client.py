"""The server through OpenAI's client."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any

import openai
import pytest
from openai import OpenAI

import paceline
from paceline.api import LLM
from paceline.server.security import SecurityRules
from paceline.server.settings import ServerLimits
from paceline.speculative.errors import ModelError
from real_model import smollm2
from serving import LONG, Gate, Served, serving, until

ASKED: Any = [{"role": "user", "content": "Name a colour."}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """An instruct model."""
    with paceline.load(smollm2(), None, "lookup", sessions=3, n_ctx=512, threads=1, ngram_min=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def served(llm: LLM) -> Iterator[Served]:
    with serving(llm) as up:
        yield up


@pytest.fixture(scope="module")
def toy() -> Iterator[Served]:
    with (
        paceline.load("toy:seed=3,eos=7", "toy:seed=3,eos=7,noise=0.2", "lookup,model", sessions=2) as loaded,
        serving(loaded, names=("toy",)) as up,
    ):
        yield up


def openai_client(server: Served, key: str = "none", retries: int = 0) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=retries, timeout=LONG)


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with openai_client(served) as made:
        yield made


@pytest.fixture
def digits(toy: Served) -> Iterator[OpenAI]:
    with openai_client(toy) as made:
        yield made


def test_a_chat_is_what_the_library_says(client: OpenAI, llm: LLM) -> None:
    answer = client.chat.completions.create(model="small", messages=ASKED, max_tokens=12, temperature=0)
    alone = llm.generate(llm.chat_tokens("Name a colour."), max_tokens=12)
    (choice,) = answer.choices
    assert (choice.message.content, choice.message.role) == (alone.text, "assistant")
    assert choice.finish_reason == ("length" if alone.stop_reason == "length" else "stop")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == alone.n_prompt
    assert answer.usage.completion_tokens == alone.n_tokens
    assert answer.usage.total_tokens == alone.n_prompt + alone.n_tokens
    assert (answer.model, answer.object) == ("small", "chat.completion")


def test_a_stream_adds_up_to_the_whole(client: OpenAI) -> None:
    how: dict[str, Any] = {"model": "small", "messages": ASKED, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**how)
    with client.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}) as stream:
        chunks = list(stream)
    said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert said == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason
    assert (chunks[-1].choices, chunks[-1].usage) == ([], whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    ))  # fmt: skip
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_stream_may_count_in_every_chunk(client: OpenAI) -> None:
    """vLLM's server counts in every chunk for guidellm."""
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    how: dict[str, Any] = {"model": "small", "messages": ASKED, "max_tokens": 12, "temperature": 0, "n": 2}
    with client.chat.completions.create(**how, stream=True, stream_options=options) as stream:
        usage = [chunk.usage for chunk in stream]
    last = usage[-1]
    assert all(one is not None for one in usage)
    assert {one.prompt_tokens for one in usage} == {last.prompt_tokens}
    written = [one.completion_tokens for one in usage]
    assert written == sorted(written)
    assert (written[0], written[-1]) == (0, last.completion_tokens)
    assert all(one.total_tokens == one.prompt_tokens + one.completion_tokens for one in usage)


def test_the_parts_of_an_answer_and_who_drafted_them(digits: OpenAI) -> None:
    how: dict[str, Any] = {"model": "toy", "prompt": "12" * 9, "max_tokens": 30, "temperature": 0}
    wish = {"ignore_eos": True, "speculative": {"report": True}}
    answer = digits.completions.create(**how, extra_body=wish)
    report: Any = answer.model_extra["speculative"]
    assert "".join(text for text, _ in report["parts"][0]) == answer.choices[0].text
    assert {source for _, source in report["parts"][0]} <= {"target", "lookup", "model"}
    assert 0 < sum(report["accepted"].values()) <= sum(report["drafted"].values())
    parts: list[Any] = []
    for chunk in digits.completions.create(**how, stream=True, extra_body=wish):
        parts += (chunk.model_extra or {}).get("speculative", {}).get("parts", [])
    assert "".join(text for text, _ in parts) == answer.choices[0].text
    ways: list[dict[str, Any]] = [{"enabled": False}, {"drafters": []}]
    for off in ways:
        body = {"ignore_eos": True, "speculative": {**off, "report": True}}
        plain = digits.completions.create(**how, extra_body=body)
        assert plain.choices[0].text == answer.choices[0].text
        assert sum(plain.model_extra["speculative"]["drafted"].values()) == 0
    timings: Any = answer.model_extra["timings"]
    assert timings["predicted_n"] == 30
    assert math.isfinite(timings["predicted_per_second"])


def test_predicted_tokens_are_counted_and_change_no_answer() -> None:
    how: dict[str, Any] = {"model": "toy", "prompt": "12", "max_tokens": 12, "temperature": 0}
    with (
        paceline.load("toy:seed=3,eos=7", drafters="prediction") as llm,
        serving(llm, names=("toy",)) as up,
        openai_client(up) as client,
    ):
        plain = client.completions.create(**how, extra_body={"ignore_eos": True})
        body = {"ignore_eos": True, "prediction": {"type": "content", "content": plain.choices[0].text}}
        predicted = client.completions.create(**how, extra_body=body)
    assert predicted.choices[0].text == plain.choices[0].text
    details: Any = predicted.usage and predicted.usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (10, 0)
    assert plain.usage is not None
    assert plain.usage.completion_tokens_details is None


def test_keys_are_asked_for(toy: Served) -> None:
    with serving(toy.service.llm, rules=SecurityRules(keys=("sesame", "open"))) as up:
        for key in ("wrong", "sesam", "sesame "):
            with (
                openai_client(up, key.strip() + "!") as stranger,
                pytest.raises(openai.AuthenticationError, match="a key is needed"),
            ):
                stranger.models.list()
        for key in ("sesame", "open"):
            with openai_client(up, key) as friend:
                assert [model.id for model in friend.models.list()] == ["small"]
        assert up.get("/health").status_code == 200
        assert up.get("/metrics").status_code == up.get("/live").status_code == 401


@pytest.fixture
def gate(toy: Served, monkeypatch: pytest.MonkeyPatch) -> Gate:
    target = toy.service.llm.target
    monkeypatch.setattr(target, "forward", target.forward)  # put back at the end
    return Gate(target)


def test_too_many_requests_come_back_by_themselves(toy: Served, gate: Gate) -> None:
    """The client waits for Retry-After, and then gets its answer."""
    how: dict[str, Any] = {"model": "small", "prompt": "12", "max_tokens": 4}
    with (
        serving(toy.service.llm, ServerLimits(queue=0)) as up,
        openai_client(up) as client,
        ThreadPoolExecutor() as pool,
    ):
        gate.shut()
        held = pool.submit(lambda: client.completions.create(**how, n=2))
        until(lambda: up.service.running == 2)
        with pytest.raises(openai.RateLimitError, match="the queue is full") as full:
            client.completions.create(**how)
        assert full.value.response.headers["retry-after"] == "1"
        patient = pool.submit(lambda: client.with_options(max_retries=4).completions.create(**how))
        until(lambda: b'refused_total{status="429"} 2.0' in up.service.metrics.text(0, 0))
        gate.go()
        assert len(held.result().choices) == 2
        assert len(patient.result().choices) == 1
        up.rest()


def test_an_answer_that_takes_too_long_is_not_asked_for_again(toy: Served, gate: Gate) -> None:
    with (
        serving(toy.service.llm, ServerLimits(timeout=0.2)) as up,
        openai_client(up, retries=2) as client,
        ThreadPoolExecutor() as pool,
    ):
        gate.shut()
        asked = pool.submit(lambda: client.completions.create(model="small", prompt="12", max_tokens=400))
        gate.held()
        sleep(0.3)
        gate.go()
        with pytest.raises(openai.APIStatusError, match=r"timeout of 0\.2 seconds") as late:
            asked.result()
        assert late.value.status_code == 408
        assert b'requests_refused_total{status="408"} 1.0' in up.service.metrics.text(0, 0)
        up.rest()


def test_failing_model_is_a_server_error_without_its_message(
    toy: Served, digits: OpenAI, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    for stream in (False, True):
        gate.error = ModelError("/home/somebody/model.gguf: no luck")
        with pytest.raises(openai.APIError, match="the server's log says why") as failed:
            list(digits.completions.create(model="toy", prompt="1", max_tokens=5, stream=stream))
        assert "somebody" not in str(failed.value)
        assert isinstance(failed.value, openai.InternalServerError) or stream
    assert caplog.text.count("somebody") >= 2
    assert digits.completions.create(model="toy", prompt="1", max_tokens=5).choices
    toy.rest()


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.mark.slow
def test_forced_call_streams_as_it_is_returned_and_its_result_is_accepted(client: OpenAI) -> None:
    how: Any = {"model": "small", "tools": [WEATHER], "temperature": 0, "max_tokens": 64}
    function: Any = {"type": "function", "function": {"name": "get_weather"}}
    (choice,) = client.chat.completions.create(messages=QUESTION, tool_choice="required", **how).choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    calls: Any = choice.message.tool_calls
    (call,) = calls
    assert (call.function.name, list(json.loads(call.function.arguments))) == ("get_weather", ["city"])
    arguments, names, reason = "", list[str](), None
    for chunk in client.chat.completions.create(messages=QUESTION, tool_choice=function, stream=True, **how):
        for part in chunk.choices:
            reason = part.finish_reason or reason
            deltas: Any = part.delta.tool_calls or ()
            for delta in deltas:
                arguments += delta.function.arguments or ""
                names += [delta.function.name] if delta.function.name else []
    assert (arguments, names, reason) == (call.function.arguments, ["get_weather"], "tool_calls")
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "19 degrees"}
    after = client.chat.completions.create(messages=[*QUESTION, choice.message, result], **how)
    assert after.choices[0].message.content
