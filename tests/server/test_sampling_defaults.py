"""Sampling settings and grammars of requests, and their defaults."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import paceline
from gguf_files import write_llama
from paceline.server.convert import from_completion, request_grammar, to_sampling
from paceline.server.schemas import CompletionRequest
from paceline.server.settings import ServerLimits
from paceline.speculative.errors import UsageError
from paceline.speculative.sampling import Sampling
from paceline.speculative.sampling_settings import DEFAULT_CHAT_SAMPLING
from paceline.text.chat_template import chat_sampling
from paceline.text.grammar_source import GrammarSource, from_choices, from_gbnf, from_pattern, from_schema


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
        (ask,) = from_completion(llm, ServerLimits(sampling=given), request, "", []).requests
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


SCHEMA = {"enum": [12, 13]}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"json_schema": SCHEMA}, from_schema(SCHEMA)),
        ({"guided_json": json.dumps(SCHEMA)}, from_schema(SCHEMA)),
        ({"structured_outputs": {"json": SCHEMA}}, from_schema(SCHEMA)),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, from_schema(SCHEMA)),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": True}}},
            from_schema(SCHEMA, strict=True),
        ),
        ({"regex": "1[23]", "grammar": ""}, from_pattern("1[23]")),
        ({"guided_regex": "1[23]"}, from_pattern("1[23]")),
        ({"structured_outputs": {"regex": "1[23]"}}, from_pattern("1[23]")),
        ({"choice": ["12", "13"]}, from_choices(["12", "13"])),
        ({"guided_choice": ["12", "13"]}, from_choices(["12", "13"])),
        ({"guided_grammar": "root ::= [1] [23]"}, from_gbnf("root ::= [1] [23]")),
        ({"grammar": None, "guided_json": None, "structured_outputs": None}, None),
    ],
)
def test_every_name_of_a_grammar_is_read(fields: dict[str, Any], expected: GrammarSource | None) -> None:
    request = CompletionRequest.model_validate({"prompt": [1], **fields})
    assert request_grammar(request) == expected


def test_samplers_texts_and_predictions_become_tokens() -> None:
    fields: dict[str, Any] = {
        "dry_multiplier": 0.8, "dry_sequence_breakers": ["2", "34"], "top_n_sigma": 1.5,
        "xtc_probability": 0.5, "dynatemp_range": 0.2, "mirostat": 0, "mirostat_tau": 5.0, "min_tokens": 2,
        "logit_bias": [["12", -1.5], [3, False], ["2", 1]], "max_tokens": 3,
        "prediction": {"content": [{"type": "text", "text": part} for part in ("12", "3")]},
    }  # fmt: skip
    with paceline.load("toy:", drafters="prediction") as llm:
        request = CompletionRequest.model_validate({"prompt": [1], **fields})
        (ask,) = from_completion(llm, ServerLimits(), request, "", []).requests
        one, two, three, four = (llm.tokens(digit)[-1] for digit in "1234")
        same = llm.request([1], logit_bias=[("12", -1.5), (three, False), ("2", 1)]).sampling.logit_bias
        assert llm.sampling(logit_bias={"12": 1, 3: 2.0}).logit_bias == {12: 1.0, 3: 2.0}
        done = llm.generate([1], prediction="12", min_tokens=2, max_tokens=3)
        with pytest.raises(UsageError, match="mirostat is not available"):
            llm.sampling(mirostat=1)
        with pytest.raises(UsageError, match="dry_sequence_breakers: 33 texts: give at most 32"):
            llm.sampling(dry_multiplier=1.0, dry_sequence_breakers=["1"] * 33)
        assert len(llm.prediction_tokens("1" * 9999)) == len(llm.prediction_tokens([1] * 9999)) == 4096
        for wrong in ({"1": True}, [["1"]], [[1.5, 2]], "12", {"1" * 1001: 1}):
            with pytest.raises(UsageError, match="logit_bias"):
                llm.sampling(logit_bias=wrong)
        warm = CompletionRequest.model_validate({"prompt": [1], **fields, "temperature": 0.0})
        assert to_sampling(llm, warm, {}).xtc_probability == 0.5
        assert to_sampling(llm, warm.model_copy(update={"dynatemp_range": 0.0}), {}).xtc_probability == 0.0
    assert (ask.min_tokens, ask.prediction) == (2, (one, two, three))
    assert ask.sampling.logit_bias == same == {one: -1.5, two: -0.5, three: -math.inf}
    assert ask.sampling.dry_breakers == {two: ((),), three: ((four,),)}
    assert (ask.sampling.top_n_sigma, ask.sampling.xtc_probability, ask.sampling.dynatemp_range) == (
        1.5,
        0.5,
        0.2,
    )
    assert done.stats.by_source["prediction"].drafted > 0
