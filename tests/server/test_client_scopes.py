"""Whose past answers a client's answers are drafted from: everybody's, or with `apart` its own alone."""

from __future__ import annotations

import queue

import pytest

import paceline
from paceline.request_handle import StepOutput
from paceline.server import convert as wishes
from paceline.server.schemas import CompletionRequest
from paceline.server.service import ServerLimits, ServingEngine

REQUEST = {"prompt": [1, 2, 3], "max_tokens": 24, "temperature": 1.0, "seed": 3, "ignore_eos": True}


def accepted(service: ServingEngine, client: str) -> int:
    """Tokens of `suffix` in an answer, which is the same every time."""
    outputs: queue.Queue[StepOutput] = queue.Queue()
    body = CompletionRequest.model_validate(REQUEST)
    asked = wishes.from_completion(service.llm, service.limits, body, client)
    service.submit(asked.requests, lambda _, output: outputs.put(output))
    while (finish := outputs.get(timeout=60).finish) is None:
        pass
    assert finish.error is None
    return finish.stats.by_source["suffix"].accepted


@pytest.mark.parametrize("apart", [False, True])
def test_what_one_client_was_told_drafts_for_another_unless_they_are_apart(apart: bool) -> None:
    with (
        paceline.load("toy:seed=3", drafters="suffix", policy="fixed") as llm,
        ServingEngine(llm, ServerLimits(isolate_clients=apart)) as service,
    ):
        first = accepted(service, "a")
        other, again = accepted(service, "b"), accepted(service, "a")
    assert again > first
    assert (other > first) is not apart
    assert (other == first) is apart
