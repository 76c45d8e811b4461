"""The lossless gate: what every method must pass in this very run before its speed is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from paceline.core.sampling import Sampling
from paceline.lab.certify.certificate import Plan, lengthened, sampled_check
from paceline.lab.compare import Difference
from paceline.llm import LLM

# Enough to see a bias of about a tenth of all draws in a second or two; `paceline certify` looks closer.
CONTEXTS, RUNS = 4, 400


@dataclass(frozen=True)
class Verdict:
    lossless: bool
    said: str


@dataclass
class Greedy:
    """Verdicts on greedy outputs, item by item."""

    counts: Counter[str] = field(default_factory=Counter)
    worst: str = ""

    def add(self, item: str, difference: Difference | None) -> None:
        """difference: from plain output; None where there is none."""
        if difference is None:
            self.counts["identical"] += 1
        elif difference.near_tie:
            self.counts["near-tie"] += 1
        else:
            self.counts["different"] += 1
            self.worst = self.worst or f"{item} from token {difference.index} on"

    @property
    def verdict(self) -> Verdict:
        if self.worst:
            return Verdict(False, f"NOT LOSSLESS: {self.worst}")
        ties = self.counts["near-tie"]
        return Verdict(True, f"{ties} near-tie{'s' * (ties > 1)}" if ties else "identical")


def sampled_verdict(llm: LLM, sampling: Sampling, texts: Sequence[Sequence[int]], seed: int) -> Verdict:
    """Whether sampled output has the target's distribution: the certificate's check, at a small size.
    texts: prompts with what greedy decoding made of them."""
    plan = Plan(contexts=CONTEXTS, runs=RUNS, sampling=sampling, seed=seed)
    some = lengthened(texts[:CONTEXTS], llm.target.caps.n_ctx)
    sampled = sampled_check(llm, plan, some, lambda: None)
    if sampled.drafted == 0:
        return Verdict(True, "nothing drafted where sampling was checked")
    if not sampled.passed:
        return Verdict(False, "NOT LOSSLESS: sampled output is biased")
    return Verdict(True, "unbiased")


def both(greedy: Verdict, sampled: Verdict) -> Verdict:
    if not greedy.lossless:
        return greedy
    return sampled if not sampled.lossless else replace(greedy, said=f"{greedy.said}, {sampled.said}")
