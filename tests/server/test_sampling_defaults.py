"""Default sampling settings of requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paceline
from gguf_files import write_llama
from paceline.server.convert import from_completion
from paceline.server.schemas import CompletionRequest
from paceline.server.service import ServerLimits
from paceline.speculative.errors import UsageError
from paceline.speculative.sampling import Sampling
from paceline.speculative.sampling_settings import DEFAULT_CHAT_SAMPLING
from paceline.text.chat_template import chat_sampling


@pytest.mark.parametrize(
    ("given", "request_", "expected"),
    [
        ({}, {}, Sampling(temperature=1.0)),
        ({"temperature": 0.5, "top_k": 7}, {}, Sampling(temperature=0.5, top_k=7)),
        ({"temperature": 0.5, "top_k": 7}, {"top_k": 0}, Sampling(temperature=0.5)),
        ({"temperature": 0.5}, {"temperature": None}, Sampling(temperature=0.5)),
        ({"temperature": 0.5}, {"temperature": 1.0, "min_p": 0.1}, Sampling(temperature=1.0, min_p=0.1)),
    ],
)
def test_a_request_that_does_not_say_gets_openai_s_defaults_or_the_operator_s(
    given: dict[str, float], request_: dict[str, Any], expected: Sampling
) -> None:
    with paceline.load("toy:", drafters="lookup") as llm:
        request = CompletionRequest.model_validate({"prompt": [1], **request_})
        (ask,) = from_completion(llm, ServerLimits(sampling=given), request, "").requests
    assert ask.sampling == expected


def test_defaults_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="temperature"):
        ServerLimits(sampling={"temperature": -1.0})


NAN = {"temp": "nan"}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"temp": 0.5, "top_k": 20}, {"temperature": 0.5, "top_k": 20}),
        ({"top_p": 0.75, "min_p": 0.25}, {"top_p": 0.75, "min_p": 0.25}),
        # one that is nonsense speaks against all
        *((wrong, {}) for wrong in ({}, {"temp": "warm", "top_k": "1.5"}, {"temp": -3.0, "top_k": 20}, NAN)),
    ],
)
def test_a_chat_begins_with_what_the_file_suggests(
    metadata: dict[str, Any], expected: dict[str, float], tmp_path: Path
) -> None:
    keys = {f"general.sampling.{key}": value for key, value in metadata.items()}
    file = write_llama(tmp_path / "model.gguf", metadata=keys)
    with paceline.load(file, drafters="none", n_ctx=64, threads=1) as llm:
        assert chat_sampling(llm.target, {}) == {**DEFAULT_CHAT_SAMPLING, **expected}
        changed = {**DEFAULT_CHAT_SAMPLING, **expected, "temperature": 0.1}
        assert chat_sampling(llm.target, {"temperature": 0.1}) == changed
