"""Past answers are drafts for all clients, or for their own client alone with `isolate_clients`."""

from __future__ import annotations

import queue

import pytest

import paceline
from paceline.request_handle import StepOutput
from paceline.server.convert import from_completion
from paceline.server.schemas import CompletionRequest
from paceline.server.service import ServingEngine
from paceline.server.settings import ServerLimits

REQUEST = {"prompt": [1, 2, 3], "max_tokens": 24, "temperature": 1.0, "seed": 3, "ignore_eos": True}


def accepted(service: ServingEngine, client: str) -> int:
    """Return the accepted tokens of `suffix` in an answer that is the same every time."""
    outputs: queue.Queue[StepOutput] = queue.Queue()
    body = CompletionRequest.model_validate(REQUEST)
    parsed = from_completion(service.llm, service.limits, body, client, [])
    service.submit(parsed.requests, lambda _, output: outputs.put(output))
    while (finish := outputs.get(timeout=60).finish) is None:
        pass
    assert finish.error is None
    return finish.stats.by_source["suffix"].accepted


@pytest.mark.parametrize("isolated", [False, True])
def test_answers_to_one_client_are_drafts_for_another_unless_clients_are_isolated(isolated: bool) -> None:
    with (
        paceline.load("toy:seed=3", drafters="suffix", policy="fixed") as llm,
        ServingEngine(llm, ServerLimits(isolate_clients=isolated)) as service,
    ):
        first = accepted(service, "a")
        other, again = accepted(service, "b"), accepted(service, "a")
    assert again > first
    assert (other == first) is isolated
    assert other >= first
