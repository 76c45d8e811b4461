"""The lossless gate: what every method must pass in this very run before its speed is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.api import LLM
from paceline.backends.logit_drift import Rows, batch_noise, singly
from paceline.bench.certify.certificate import CertifyPlan, lengthened, sampled_check
from paceline.bench.system import BenchRequest
from paceline.bench.text_comparison import Difference, explain, first_difference, first_stray, rows_of
from paceline.speculative.interfaces import Budget
from paceline.speculative.sampling import Sampling

# Enough to see a bias of about a tenth of all draws in a second or two; `paceline certify` looks closer.
# Where nothing is drafted there, more contexts are tried, each fewer times.
SIZES = ((4, 400), (16, 200), (40, 100))  # contexts, runs


class DifferenceClassifier:
    """Tells near-ties from defects by the target's own logits. It remembers what it has found: many systems
    part from plain output at the same token, and every answer to that takes a decoding of the text."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._noise: dict[tuple[str, int], float] = {}
        self._singly: tuple[tuple[str, list[int]], Rows] | None = None
        self._found: dict[tuple[Any, ...], tuple[Difference | None, int | None]] = {}

    def compare(
        self, item: str, ask: BenchRequest, plain: Sequence[int], said: Sequence[int], budget: Budget
    ) -> tuple[Difference | None, int | None]:
        """How two greedy outputs differ, and the first token after a near-tie that plain decoding would not
        say there."""
        target, rows = self.llm.target, rows_of(self.llm.target, budget)
        key = (item, rows, tuple(plain), tuple(said))
        if key in self._found or first_difference(plain, said) is None:
            return self._found.get(key, (None, None))
        if (item, rows) not in self._noise:
            self._noise[item, rows] = 0.0 if target.caps.exact else self._measured(item, ask, plain, rows)
        noise = self._noise[item, rows]
        difference = explain(target, ask.tokens, plain, said, budget, ask.sampling, noise)
        stray = None
        if difference is not None and difference.near_tie:  # what comes after it is another text
            stray = first_stray(target, ask.tokens, said, difference.index + 1, noise, ask.sampling)
        self._found[key] = difference, stray
        return difference, stray

    def _measured(self, item: str, ask: BenchRequest, plain: Sequence[int], rows: int) -> float:
        """The noise of an item's text. Passes of every size are compared with the same single ones, which
        are kept while it is this item that is asked."""
        target, text = self.llm.target, [*ask.tokens, *plain]
        if self._singly is None or self._singly[0] != (item, text):
            self._singly = (item, text), singly(target, text)
        return batch_noise(target, text, rows, self._singly[1])


@dataclass(frozen=True)
class GateVerdict:
    lossless: bool
    said: str


IDENTICAL, NEAR_TIE = "identical", "near-tie"


def outcome(difference: Difference | None, stray: int | None = None) -> str:
    """What a greedy output came to. difference: from plain output; None without one. stray: the first token
    after a near-tie that plain decoding would not say there."""
    if difference is None:
        return IDENTICAL
    if difference.near_tie and stray is None:
        return NEAR_TIE
    return f"from token {difference.index if stray is None else stray} on"


@dataclass
class GreedyOutcomes:
    """Outcomes of greedy outputs, item by item: of several to one item, the worst."""

    outcomes: dict[str, str] = field(default_factory=dict)

    def add(self, item: str, found: str) -> None:
        mild = (IDENTICAL, NEAR_TIE)
        before = self.outcomes.get(item, IDENTICAL)
        if before in mild and (found not in mild or found == NEAR_TIE):
            self.outcomes[item] = found
        else:
            self.outcomes.setdefault(item, found)

    @property
    def worst(self) -> str:
        """The first item that differs, and where; "" where none does."""
        differing = ((i, found) for i, found in self.outcomes.items() if found not in (IDENTICAL, NEAR_TIE))
        return next((f"{item} {found}" for item, found in differing), "")

    @property
    def verdict(self) -> GateVerdict:
        if self.worst:
            return GateVerdict(False, f"NOT LOSSLESS: {self.worst}")
        ties = sum(found == NEAR_TIE for found in self.outcomes.values())
        return GateVerdict(True, f"{ties} near-tie{'s' * (ties > 1)}" if ties else IDENTICAL)


def sampled_verdict(llm: LLM, sampling: Sampling, texts: Sequence[Sequence[int]], seed: int) -> GateVerdict:
    """Whether sampled output has the target's distribution: the certificate's check, at a small size.
    texts: prompts with what greedy decoding made of them."""
    for contexts, runs in SIZES:
        plan = CertifyPlan(contexts=contexts, runs=runs, sampling=sampling, seed=seed)
        some = lengthened(texts[:contexts], llm.target.caps.n_ctx)
        sampled = sampled_check(llm, plan, some, lambda: None)
        if sampled.drafted > 0:
            if sampled.passed:
                return GateVerdict(True, "unbiased")
            return GateVerdict(False, "NOT LOSSLESS: sampled output is biased")
    return GateVerdict(False, "not checked: nothing was drafted where sampled output was looked at")


def both(greedy: GateVerdict, sampled: GateVerdict) -> GateVerdict:
    if not greedy.lossless:
        return greedy
    return sampled if not sampled.lossless else replace(greedy, said=f"{greedy.said}, {sampled.said}")
