"""The greedy check: drafted output against plain output, token for token and in its log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.api import LLM
from paceline.bench.text_comparison import Difference, explain, first_difference
from paceline.request_handle import Generation
from paceline.speculative.sampling import Sampling


@dataclass(frozen=True)
class GreedyCheck:
    """The comparison of plain and drafted decoding of a prompt.

    text: prompt and plain output.
    pieces: texts of the two tokens at the first difference.
    n_equal: number of equal tokens before it. worst: the largest difference of their log-probabilities."""

    text: tuple[int, ...]
    plain: Generation
    drafted: Generation
    difference: Difference | None
    pieces: tuple[str, str]
    n_equal: int
    worst: float

    @property
    def verdict(self) -> str:
        if self.difference is None:
            return "identical"
        return "near-tie" if self.difference.near_tie else "defect"

    def as_dict(self) -> dict[str, Any]:
        difference = None if self.difference is None else vars(self.difference) | {"text": self.pieces}
        return {
            "verdict": self.verdict,
            "n_tokens": self.plain.n_tokens,
            "stats": self.drafted.stats.as_dict(),
            "difference": difference,
            "logprobs": {"tokens": self.n_equal, "worst": self.worst},
        }


def check_greedy(
    llm: LLM, prompt: Sequence[int], n: int, sampling: Sampling, plain: Generation | None = None
) -> GreedyCheck:
    """Compare `n` tokens.

    sampling: at temperature 0, with any penalties and biases. plain: the plain output, if known."""
    request: dict[str, Any] = vars(sampling) | {"max_tokens": n, "logprobs": 0, "remember": False}
    prompt = tuple(prompt)  # an empty list would mean a batch without prompts
    plain = plain or llm.generate(prompt, plain=True, **request)
    drafted = llm.generate(prompt, **request)
    difference = explain(llm.target, prompt, plain.tokens, drafted.tokens, llm.drafting.budget, sampling)
    equal = first_difference(plain.tokens, drafted.tokens)
    first, second = (
        "" if token is None else llm.target.text.piece(token).decode(errors="replace")
        for token in (difference.tokens if difference else (None, None))
    )
    both = list(zip(plain.logprobs, drafted.logprobs, strict=False))[:equal]
    return GreedyCheck(
        text=(*prompt, *plain.tokens),
        plain=plain,
        drafted=drafted,
        difference=difference,
        pieces=(first, second),
        n_equal=len(both),
        worst=float(np.max([abs(a.logprob - b.logprob) for a, b in both], initial=0.0)),  # NaN too
    )
