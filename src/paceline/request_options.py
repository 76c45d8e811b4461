"""The types of a request's options, for editors and type checkers; see `Sampling` and `LLM.request`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from paceline.text.grammar_source import Schema
from paceline.text.token_texts import LogitBias


class RequestOptions(TypedDict, total=False):
    """The options of `LLM.request`: the fields of Sampling, and others."""

    temperature: float
    top_k: int
    top_n_sigma: float
    typical_p: float
    top_p: float
    min_p: float
    xtc_probability: float
    xtc_threshold: float
    dynatemp_range: float
    dynatemp_exponent: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    logit_bias: LogitBias
    max_tokens: int
    min_tokens: int
    seed: int
    stop: str | Sequence[str]
    ignore_eos: bool
    plain: bool
    json_schema: Schema | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None
    logprobs: int | None
    remember: bool
    prediction: str | Sequence[int]
    spelled: Mapping[int, bytes] | None
