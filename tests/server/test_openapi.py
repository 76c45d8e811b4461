"""The server keeps to /openapi.json, for valid and invalid requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import positive_data_acceptance

import paceline
from paceline.api import LLM
from paceline.server import app
from paceline.server.apis import COUNTED
from paceline.server.security import SecurityRules
from paceline.server.service import ServingEngine
from paceline.server.settings import ServerLimits
from real_model import smollm2

load_all_checks()


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with paceline.load(smollm2(), None, "lookup", sessions=3, n_ctx=256, threads=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def api(llm: LLM) -> Iterator[Any]:
    """A server that gives answers of at most two tokens."""
    with ServingEngine(llm, ServerLimits(n_predict=2)) as service:
        made = app.create(service, ["small"], SecurityRules())
        yield schemathesis.openapi.from_asgi("/openapi.json", made).exclude(path="/live")  # which never ends
        assert service.problem == ""


OPERATIONS = [
    *(("POST", "/v1/chat/completions", 100), ("POST", "/v1/completions", 100)),
    *(("POST", path, 40) for path in ("/v1/responses", "/v1/messages", "/api/chat", "/api/generate")),
    *(("POST", path, 20) for path in ("/completion", "/infill", "/v1/fim/completions", "/apply-template")),
    *(("POST", path, 20) for path in ("/v1/embeddings", "/embedding", "/api/embed", "/api/embeddings")),
    *(("POST", path, 10) for path in COUNTED.values() if path.startswith("/v1")),
    *(("GET", f"/api/{name}", 1) for name in ("version", "tags", "ps")),
    *(("GET", "/props", 1), ("GET", "/slots", 1), ("POST", "/api/show", 20)),
    *(("POST", "/tokenize", 50), ("POST", "/detokenize", 50), ("GET", "/v1/models/{name}", 20)),
    *(("GET", "/v1/models", 1), ("GET", "/health", 1), ("GET", "/metrics", 1)),
]
MODES = [
    (*operation, mode)
    for operation in OPERATIONS
    for mode in GenerationMode
    if operation[0] == "POST" or mode.is_positive
]


def test_no_path_is_left_out(api: Any) -> None:
    there = {(found.ok().method.upper(), found.ok().path) for found in api.get_all_operations()}
    assert there == {(method, path) for method, path, _ in OPERATIONS}


@pytest.mark.parametrize(("method", "path", "examples", "mode"), MODES)
def test_every_answer_is_as_promised(
    method: str, path: str, examples: int, mode: GenerationMode, api: Any
) -> None:
    """Except for limits that a schema cannot express: the vocabulary, the context."""

    @given(case=api[path][method].as_strategy(generation_mode=mode))
    @settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def try_one(case: Any) -> None:
        case.call_and_validate(excluded_checks=[positive_data_acceptance])

    try_one()


def test_streams_are_as_promised(api: Any) -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
    for path, body in {"/v1/completions": {"prompt": "a"}, "/v1/chat/completions": chat}.items():
        case = api[path]["POST"].Case(body={**body, "stream": True}, media_type="application/json")
        assert case.call_and_validate().status_code == 200
