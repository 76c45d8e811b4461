"""What a replay found. `as_dict` is what `paceline replay --json` prints; FORMAT goes up when a name in it
changes its meaning or goes away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from paceline.core.record import SourceStats
from paceline.lab.bench.record import Interval
from paceline.lab.replay.clock import Spent

FORMAT = 1
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Played:
    """One request with one method. tokens: as recorded. drafted_steps: those that had a draft."""

    tokens: int
    steps: int
    drafted_steps: int
    drafted: int
    accepted: int


@dataclass(frozen=True)
class Result:
    """One method over all requests. tokens_per_step: with a 95% interval (see `per_step`).
    partial: it reads the target's likeliest tokens at every node, and has had them along the record only.
    each: by request, in their order."""

    method: str
    drafting: dict[str, Any]
    requests: int
    n_prompt: int
    n_tokens: int
    steps: int
    drafted_steps: int
    drafted: int
    accepted: int
    tokens_per_step: Interval
    by_source: dict[str, SourceStats]
    spent: Spent
    partial: bool = False
    each: tuple[Played, ...] = field(default=(), repr=False)

    @property
    def acceptance_rate(self) -> float | None:
        """None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "drafting": self.drafting,
            "requests": self.requests,
            "n_prompt": self.n_prompt,
            "n_tokens": self.n_tokens,
            "steps": self.steps,
            "drafted_steps": self.drafted_steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_step": asdict(self.tokens_per_step),
            "by_source": {name: asdict(source) for name, source in self.by_source.items()},
            "seconds": asdict(self.spent),
            "partial": self.partial,
            "each": [asdict(played) for played in self.each],
        }


def result(
    method: str,
    drafting: dict[str, Any],
    prompts: Sequence[int],
    played: Sequence[Played],
    groups: Sequence[int],
    by_source: dict[str, SourceStats],
    spent: Spent,
    partial: bool,
) -> Result:
    """prompts, played, groups: one each a request; groups tells which requests belong together."""
    return Result(
        method=method,
        drafting=drafting,
        requests=len(played),
        n_prompt=sum(prompts),
        n_tokens=sum(one.tokens for one in played),
        steps=sum(one.steps for one in played),
        drafted_steps=sum(one.drafted_steps for one in played),
        drafted=sum(one.drafted for one in played),
        accepted=sum(one.accepted for one in played),
        tokens_per_step=per_step(played, groups),
        by_source=by_source,
        spent=spent,
        partial=partial,
        each=tuple(played),
    )


def per_step(played: Sequence[Played], groups: Sequence[int], seed: int = 0) -> Interval:
    """All tokens over all steps. The interval is a percentile bootstrap that draws requests anew, those of a
    conversation together: they are about one text. With one conversation it is that one value."""
    sums: dict[int, list[int]] = {}
    for one, group in zip(played, groups, strict=True):
        total = sums.setdefault(group, [0, 0])
        total[0] += one.tokens
        total[1] += one.steps
    table = np.array(list(sums.values()), dtype=np.float64)
    tokens, steps = table.sum(axis=0)
    rng = np.random.default_rng(seed)
    # One resample at a time: all at once would take gigabytes for a day's traffic.
    drawn = [table[rng.integers(len(table), size=len(table))].sum(axis=0) for _ in range(RESAMPLES)]
    low, high = np.quantile([some / over for some, over in drawn], [0.025, 0.975])
    return Interval(float(tokens / steps), float(low), float(high))
