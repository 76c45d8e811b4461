"""Servers with OpenAI's API: requests and parsed answers."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fake_llama_server import XLLAMACPP
from hostile_server import hostile, whole
from paceline.bench.baselines.llama_server import LlamaServer, find_program
from paceline.bench.baselines.openai import OpenAIServer
from paceline.bench.system import BenchRequest
from paceline.models import zoo
from paceline.speculative.errors import BaselineError, UsageError
from paceline.speculative.sampling import Sampling

ASK = BenchRequest("def fibonacci(n):\n", (), 24)
has_server = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="needs the package xllamacpp, which has the server"
)
# What a vLLM of August 2026 reported of one request (mostlygeek/llama-swap, issue 1032).
OF_ONE_REQUEST = {
    "mean_acceptance_length": 1.2325581395348837,
    "draft_acceptance_rate": 0.07751937984496124,
    "acceptance_histogram": [39, 1, 0, 3],
    "num_spec_steps": 43,
    "num_accepted_draft_tokens": 10,
    "num_draft_tokens": 129,
    "num_spec_tokens": 3,
}


class Server:
    """A scripted server. posted: bodies of all requests. strict: reject settings beyond OpenAI's."""

    def __init__(self, chunks: list[dict[str, Any]], models: tuple[str, ...], strict: bool) -> None:
        self.chunks, self.models, self.strict = chunks, models, strict
        self.posted: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.url = ""

    def answer(self, request: bytes) -> list[bytes]:
        head, _, sent = request.partition(b"\r\n\r\n")
        self.keys |= {line.decode() for line in head.splitlines() if line.startswith(b"Authorization")}
        path = head.split(b" ", 2)[1]
        if path == b"/v1/models":
            return whole(json.dumps({"data": [{"id": model} for model in self.models]}).encode())
        body = json.loads(sent)
        self.posted.append(body)
        if self.strict and "ignore_eos" in body:
            return whole(b'{"error": {"message": "Unrecognized"}}', status="400 Bad Request")
        if not body.get("stream"):
            return whole(b"{}")
        lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in self.chunks]
        return whole("".join([*lines, "data: [DONE]\n\n"]).encode())


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, **more}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}}
CHUNKS = [said("a b c", token_ids=[1, 2, 3]), said("d e f", token_ids=[4, 5, 6]), said(""), USAGE]


@contextmanager
def serving(
    chunks: list[dict[str, Any]] = CHUNKS, models: tuple[str, ...] = ("m",), strict: bool = False
) -> Iterator[Server]:
    server = Server(chunks, models, strict)
    with hostile(server.answer) as server.url:
        yield server


@has_server
def test_llama_server_is_measured_by_its_openai_api_too() -> None:
    program = LlamaServer(
        find_program(XLLAMACPP), zoo.target_path(), zoo.draft_path(), name="program", method="model",
        n_draft=4, p_min=0.0, n_ctx=512, threads=1,
    )  # fmt: skip
    try:
        server = OpenAIServer(f"{program.url}/v1/", name="openai")
        answer = server.answer(ASK)
        with pytest.raises(BaselineError, match=r"^openai refused: .*context size"):
            server.answer(BenchRequest("word " * 600, (), 4))
    finally:
        program.close()
    assert (answer.n_tokens, answer.decoded, server.memory()) == (24, 23, None)
    assert 0 < (answer.accepted or 0) <= (answer.drafted or 0)
    assert answer.steps == 23 - (answer.accepted or 0)
    assert len(answer.text) > 24
    with pytest.raises(BaselineError, match=rf"openai at {program.url} broke off"):
        server.answer(ASK)


def test_answer_is_put_together_from_its_chunks() -> None:
    with serving(strict=True) as served:
        answer = OpenAIServer(served.url, name="openai").answer(ASK)
    assert (answer.text, answer.tokens) == ("a b cd e f", (1, 2, 3, 4, 5, 6))
    assert (answer.n_tokens, answer.n_prompt) == (6, 5)
    assert answer.n_tokens - answer.decoded in (3, 6)  # as many as came in the first piece
    assert (answer.steps, answer.drafted, answer.accepted, answer.own_speed) == (None, None, None, None)
    # A server that knows only OpenAI's own settings gets only those.
    assert ["ignore_eos" in body for body in served.posted] == [True, False, False]


def test_request_has_every_setting_and_an_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    sampling = Sampling(presence_penalty=0.5, repeat_penalty=1.1, logit_bias={3: -float("inf")})
    with serving() as served:
        server = OpenAIServer(f"{served.url}#other", name="openai")
        server.answer(BenchRequest("ab", (), 6, 9, sampling))
        server.answer(BenchRequest("ab", (), 6))
    _, first, second = served.posted
    expected = {
        "model": "other", "prompt": "ab", "max_tokens": 6, "seed": 9, "temperature": 0.0,
        "presence_penalty": 0.5, "repetition_penalty": 1.1, "ignore_eos": True, "logit_bias": {"3": -100.0},
        "stream": True, "stream_options": {"include_usage": True}, "cache_prompt": False,
    }  # fmt: skip
    assert {key: first[key] for key in expected} == expected
    assert first["cache_salt"] != second["cache_salt"]
    assert served.keys == {"Authorization: Bearer secret"}


def test_draft_counts_of_vllm_are_read() -> None:
    chunks = [*CHUNKS[:-1], {**USAGE, "metrics": {"speculative_decoding": OF_ONE_REQUEST}}]
    with serving(chunks) as served:
        answer = OpenAIServer(served.url, name="openai").answer(ASK)
    assert (answer.drafted, answer.accepted, answer.steps) == (129, 10, 0)


def test_model_has_to_be_chosen_among_several() -> None:
    with serving(models=("\x1b[2J", "b")) as served:
        with pytest.raises(UsageError, match=r"openai serves \\x1b\[2J, b: choose one"):
            OpenAIServer(served.url, name="openai")
        assert OpenAIServer(f"{served.url}#b", name="openai").model == "b"


HUGE = 10**250


@pytest.mark.parametrize(
    "broken",
    [
        {**USAGE, "choices": [{"text": ["a"]}]},
        {**USAGE, "choices": [{"text": "a", "token_ids": [-1]}]},
        {"usage": {"prompt_tokens": 5, "completion_tokens": HUGE}},
        {**USAGE, "timings": {"predicted_ms": -1.0, "predicted_n": 6}},
        {**USAGE, "timings": {"draft_n": 3, "draft_n_accepted": 4}},
        {**USAGE, "metrics": {"speculative_decoding": {**OF_ONE_REQUEST, "num_accepted_draft_tokens": 130}}},
    ],
)
def test_answer_of_another_shape_is_refused(broken: dict[str, Any]) -> None:
    with serving([*CHUNKS[:-1], broken]) as served:
        server = OpenAIServer(served.url, name="openai")
        with pytest.raises(BaselineError, match="openai: its answer does not follow its API: "):
            server.answer(ASK)


@pytest.mark.parametrize(
    "said", [b'{"data": []}', b'{"data": {"id": "m"}}', b'{"data": [{"id": 7}]}', b"[" * 200_000]
)
def test_unusable_list_of_models_is_refused(said: bytes) -> None:
    with hostile(lambda *_: whole(said)) as url, pytest.raises(BaselineError) as caught:
        OpenAIServer(url, name="openai")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_fewer_tokens_than_pieces_are_no_less_than_none() -> None:
    with serving(CHUNKS[:-1]) as served, pytest.raises(BaselineError, match="without saying how many tokens"):
        OpenAIServer(served.url, name="openai").answer(ASK)
    few = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    with serving([said("a"), said("b"), said("c"), few]) as served:
        answer = OpenAIServer(served.url, name="openai").answer(ASK)
    assert (answer.n_tokens, answer.decoded) == (1, 0)
