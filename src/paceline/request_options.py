"""The types of a request's options, for editors and type checkers; see `Sampling` and `LLM.request`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from paceline.text.grammar_source import Schema


class RequestOptions(TypedDict, total=False):
    """The options of `LLM.request`: the fields of Sampling, and others."""

    temperature: float
    top_k: int
    typical_p: float
    top_p: float
    min_p: float
    xtc_probability: float
    xtc_threshold: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int
    logit_bias: Mapping[int, float]
    max_tokens: int
    seed: int
    stop: str | Sequence[str]
    ignore_eos: bool
    plain: bool
    json_schema: Schema | None
    regex: str | None
    logprobs: int | None
    remember: bool
    spelled: Mapping[int, bytes] | None
