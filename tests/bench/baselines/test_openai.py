"""Servers with OpenAI's API: what they are asked and what is understood of their answers."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from hostile_server import hostile, whole
from paceline.bench.baselines.llama_server import LlamaServer, find_server
from paceline.bench.baselines.openai import OpenAIServer
from paceline.bench.baselines.replies import SpeculativeMetrics
from paceline.bench.system import BenchRequest
from paceline.models import zoo
from paceline.speculative.errors import PeerError, UsageError
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


class Server(ThreadingHTTPServer):
    """Speaks the API from a script. posted: the bodies of all requests."""

    daemon_threads = True

    def __init__(
        self, chunks: list[dict[str, Any]], models: list[str], metrics: list[str], strict: bool
    ) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.chunks, self.models, self.metrics, self.strict = chunks, models, metrics, strict
        self.posted: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        """Nothing."""

    def reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.server.keys.append(self.headers["Authorization"])
        if self.path == "/v1/models":
            self.reply(200, json.dumps({"data": [{"id": one} for one in self.server.models]}).encode())
        elif self.path == "/metrics" and self.server.metrics:
            metrics = self.server.metrics
            self.reply(200, (metrics.pop(0) if len(metrics) > 1 else metrics[0]).encode())
        else:
            self.reply(404, b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posted.append(body)
        if self.server.strict and "ignore_eos" in body:
            self.reply(400, b'{"error": {"message": "Unrecognized request argument: ignore_eos"}}')
        elif not body.get("stream"):
            self.reply(200, b"{}")
        else:
            lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in self.server.chunks]
            self.reply(200, "".join([*lines, "data: [DONE]\n\n"]).encode())


def said(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, **more}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}}
CHUNKS = [said("a b c", token_ids=[1, 2, 3]), said("d e f", token_ids=[4, 5, 6]), said(""), USAGE]


@contextmanager
def serving(
    chunks: list[dict[str, Any]] = CHUNKS,
    models: tuple[str, ...] = ("m",),
    metrics: tuple[str, ...] = (),
    strict: bool = False,
) -> Iterator[Server]:
    with Server(chunks, list(models), list(metrics), strict) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def counters(drafted: int, accepted: int) -> str:
    return (
        f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafted}\n'
        f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}\n'
    )


@has_server
def test_llama_server_is_measured_by_its_openai_api_too() -> None:
    program = LlamaServer(
        find_server("xllamacpp"),
        zoo.target_path(),
        zoo.draft_path(),
        name="program",
        method="model",
        n_draft=4,
        p_min=0.0,
        n_ctx=512,
        threads=1,
        extra=["--metrics"],
    )
    try:
        url = f"http://127.0.0.1:{program.argv[program.argv.index('--port') + 1]}"
        server = OpenAIServer(f"{url}/v1/", name="openai")
        answer = server.answer(ASK)
        with pytest.raises(PeerError, match=r"^openai refused: .*context size"):
            server.answer(BenchRequest("word " * 600, (), 4))
    finally:
        program.close()
    assert (answer.n_tokens, answer.decoded, server.memory()) == (24, 23, None)
    assert answer.drafted is not None
    assert answer.accepted is not None
    assert 0 < answer.accepted <= answer.drafted
    assert answer.steps == 23 - answer.accepted
    assert answer.own_speed is not None
    assert len(answer.text) > 24
    with pytest.raises(PeerError, match=rf"openai: nobody answers at {url}"):
        server.answer(ASK)


def test_an_answer_is_put_together_from_its_chunks() -> None:
    with serving() as served:
        answer = OpenAIServer(served.url, name="openai").answer(ASK)
    assert (answer.text, answer.tokens) == ("a b cd e f", (1, 2, 3, 4, 5, 6))
    assert (answer.n_tokens, answer.n_prompt) == (6, 5)
    assert answer.n_tokens - answer.decoded in (3, 6)  # as many as came in the first piece
    assert (answer.steps, answer.drafted, answer.accepted, answer.own_speed) == (None, None, None, None)


def test_every_setting_is_asked_for_and_no_prompt_is_remembered() -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, logit_bias={3: -float("inf")})
    with serving() as served:
        server = OpenAIServer(f"{served.url}#other", name="openai", key="secret")
        server.answer(BenchRequest("ab", (), 6, 9, True, sampling))
        server.answer(BenchRequest("ab", (), 6))
    _, first, second = served.posted
    expected = {
        "model": "other",
        "prompt": "ab",
        "max_tokens": 6,
        "seed": 9,
        "temperature": 0.5,
        "top_p": 0.9,
    }
    expected |= {"top_k": 7, "min_p": 0.1, "ignore_eos": True, "logit_bias": {"3": -100.0}, "stream": True}
    assert {key: first[key] for key in expected} == expected
    assert first["stream_options"] == {"include_usage": True}
    assert first["cache_prompt"] is False
    assert first["cache_salt"] != second["cache_salt"]
    assert second["top_k"] == -1
    assert set(served.keys) == {"Bearer secret"}


def test_a_server_that_knows_only_openais_own_settings_gets_only_those() -> None:
    with serving(strict=True) as served:
        OpenAIServer(served.url, name="openai").answer(ASK)
    assert ["ignore_eos" in body for body in served.posted] == [True, False, False]


def test_drafts_are_counted_by_the_servers_metrics() -> None:
    # Counters may be behind when the answer ends.
    metrics = (counters(10, 5), counters(10, 5), counters(20, 9), counters(27, 9))
    with serving(metrics=metrics) as served:
        answer = OpenAIServer(served.url, name="openai").answer(ASK)
    assert (answer.drafted, answer.accepted, answer.steps) == (17, 4, 1)


def test_what_vllm_tells_of_one_request_goes_before_its_counters() -> None:
    chunks = [*CHUNKS[:-1], {**USAGE, "metrics": {"speculative_decoding": OF_ONE_REQUEST}}]
    with serving(chunks, metrics=(counters(1, 1),)) as served:
        answer = OpenAIServer(served.url, name="openai").answer(ASK)
    assert (answer.drafted, answer.accepted, answer.rejected) == (129, 10, 40)
    assert SpeculativeMetrics.model_validate({**OF_ONE_REQUEST, "num_draft_tokens": 128}).rejected is None


def test_a_model_is_chosen_where_there_are_several() -> None:
    with serving(models=("a", "b")) as served:
        with pytest.raises(UsageError, match="openai serves a, b: choose one with URL#MODEL"):
            OpenAIServer(served.url, name="openai")
        assert OpenAIServer(f"{served.url}#b", name="openai").model == "b"
    with serving(models=()) as served, pytest.raises(PeerError, match="/v1/models names no model"):
        OpenAIServer(served.url, name="openai")


HUGE = 10**250


@pytest.mark.parametrize(
    "broken",
    [
        {"usage": {"total": 3}, "choices": []},
        {**USAGE, "choices": ["text"]},
        {**USAGE, "choices": [{"text": ["a"]}]},
        {**USAGE, "choices": [{"text": "a", "token_ids": "12"}]},
        {**USAGE, "choices": [{"text": "a", "token_ids": [-1]}]},
        {"usage": "many", "choices": []},
        {"usage": {"prompt_tokens": 5, "completion_tokens": HUGE}},
        {"usage": {"prompt_tokens": None, "completion_tokens": 6}},
        {**USAGE, "timings": []},
        {**USAGE, "timings": {"predicted_ms": "fast", "predicted_n": 6}},
        {**USAGE, "timings": {"predicted_ms": -1.0, "predicted_n": 6}},
        {**USAGE, "timings": {"draft_n": 3, "draft_n_accepted": 4}},
        {**USAGE, "metrics": ["speculative_decoding"]},
        {**USAGE, "metrics": {"speculative_decoding": {"num_draft_tokens": 1}}},
        {**USAGE, "metrics": {"speculative_decoding": {**OF_ONE_REQUEST, "num_accepted_draft_tokens": 130}}},
        {**USAGE, "metrics": {"speculative_decoding": {**OF_ONE_REQUEST, "acceptance_histogram": 3}}},
    ],
)
def test_an_answer_of_another_shape_cannot_be_used(broken: dict[str, Any]) -> None:
    with serving([*CHUNKS[:-1], broken]) as served:
        server = OpenAIServer(served.url, name="openai")
        with pytest.raises(PeerError, match="openai: its answer is not what OpenAI's API says: "):
            server.answer(ASK)


@pytest.mark.parametrize(
    "said",
    [
        b'{"data": 7}',
        b'{"data": {"id": "m"}}',
        b'{"data": [{"id": 7}]}',
        b'{"data": [{}]}',
        b"[" * 200_000,
        b'{"data": [{"id": 1e999}]}',
    ],
)
def test_a_list_of_models_of_another_shape_cannot_be_used(said: bytes) -> None:
    with hostile(lambda *_: whole(said)) as url, pytest.raises(PeerError) as caught:
        OpenAIServer(url, name="openai")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_names_of_models_are_quoted_within_reason() -> None:
    names = tuple(f"\x1b[2J{i}" for i in range(10_000))
    said = r"openai serves \\x1b\[2J0, .*\.\.\.: choose one"
    with serving(models=names) as served, pytest.raises(UsageError, match=said) as caught:
        OpenAIServer(served.url, name="openai")
    assert len(str(caught.value)) < 1000


def test_fewer_tokens_than_pieces_are_no_less_than_none() -> None:
    few = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    with serving([said("a"), said("b"), said("c"), few]) as served:
        answer = OpenAIServer(served.url, name="openai").answer(ASK)
    assert (answer.n_tokens, answer.decoded) == (1, 0)


@pytest.mark.parametrize(
    "lie",
    [
        counters(20, 99),
        counters(9, 5),
        counters(20, 9).replace(" 20", " +Inf"),
        counters(20, 9).replace(" 20", " NaN"),
    ],
)
def test_counters_that_cannot_be_are_not_believed(lie: str) -> None:
    with serving(metrics=(counters(10, 5), counters(10, 5), lie)) as served:
        answer = OpenAIServer(served.url, name="openai").answer(ASK)
    assert (answer.drafted, answer.accepted, answer.steps) == (None, None, None)


def test_an_answer_without_a_count_of_tokens_cannot_be_used() -> None:
    with serving(CHUNKS[:-1]) as served, pytest.raises(PeerError, match="without saying how many tokens"):
        OpenAIServer(served.url, name="openai").answer(ASK)


def test_what_the_api_cannot_express_is_refused() -> None:
    ask = BenchRequest("ab", (), 6, sampling=Sampling(temperature=1.0, typical_p=0.5))
    with serving() as served, pytest.raises(UsageError, match="neither typical-p nor XTC"):
        OpenAIServer(served.url, name="openai").answer(ask)
