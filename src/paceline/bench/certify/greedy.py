"""The greedy check: drafted output against plain output, token for token and in its log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from paceline.api import LLM
from paceline.bench.text_comparison import explain, first_difference
from paceline.request_handle import Generation
from paceline.speculative.sampling import Sampling

# Default prompts: typical texts, and repetitive ones whose drafts are long.
PROMPTS = (
    '''class Stack:
    """A last-in, first-out collection."""

    def __init__(self):
        self.items = []

    def push(self, item):
        """Put an item on top."""
        self.items.append(item)

    def pop(self):
        """Take the item on top."""
''',
    '[{"id": 1, "name": "bolt", "price": 0.25}, {"id": 2, "name": "nut", "price": 0.1}, {"id": 3, "name":',
    "CREATE TABLE orders (\n    id INTEGER PRIMARY KEY,\n    customer TEXT NOT NULL,\n    total REAL\n);\n\n"
    "INSERT INTO orders (id, customer, total) VALUES\n    (1, 'Ada', 12.5),\n    (2,",
    "The function returns a new list. If the argument is not a sequence, it raises",
    "Quelques mots d'été à Zürich: naïve, façade, Ærø, ½ · „Straße“ · 日本語のテスト。\n",
    'def test_parse_empty():\n    assert parse("") == []\n\n\ndef test_parse_one():\n    '
    'assert parse("1") == [1]\n\n\ndef test_parse_two():\n',
    "one two three four five six seven eight nine ten one two three four five six seven eight nine ten one",
    "2024-03-01T10:00:00Z INFO [api] request done ms=12\n2024-03-01T10:00:01Z INFO [api] request done ms=9\n",
)


class GreedyCheck(NamedTuple):
    """The comparison of plain and drafted decoding of a prompt.

    text: prompt and plain output. record: as `paceline certify --json` prints it; its logprobs are the number
    of equal tokens before the first difference, and the largest difference of their log-probabilities."""

    text: tuple[int, ...]
    plain: Generation
    record: dict[str, Any]


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
    verdict, described = "identical", None
    if difference is not None:
        verdict = "near-tie" if difference.near_tie else "defect"
        piece = llm.target.text.piece
        texts = tuple("" if t is None else piece(t).decode(errors="replace") for t in difference.tokens)
        described = vars(difference) | {"text": texts}
    equal = first_difference(plain.tokens, drafted.tokens)
    both = list(zip(plain.logprobs, drafted.logprobs, strict=False))[:equal]
    worst = float(np.max([abs(a.logprob - b.logprob) for a, b in both], initial=0.0))  # NaN too
    record = {
        "verdict": verdict,
        "n_tokens": plain.n_tokens,
        "stats": drafted.stats.as_dict(),
        "difference": described,
        "logprobs": {"tokens": len(both), "worst": worst},
    }
    return GreedyCheck((*prompt, *plain.tokens), plain, record)
