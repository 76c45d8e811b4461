"""Step, the record of one request in one pass, and the sums over a request's steps.

acceptance rate = accepted / drafted; acceptance length = 1 + accepted / steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from paceline.speculative.tree import EMPTY, ROOT, DraftTree

StopReason = Literal["eos", "stop", "length", "context"]
TARGET = "target"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step; the time of a batch is split evenly among its requests."""

    draft: float = 0.0
    forward: float = 0.0
    verify: float = 0.0
    commit: float = 0.0  # commit and rollback
    other: float = 0.0  # deciding what to draft, and learning from the previous step

    @property
    def total(self) -> float:
        return self.draft + self.forward + self.verify + self.commit + self.other


TIME_PARTS = tuple(part.name for part in fields(StepTimes))


@dataclass(frozen=True, slots=True)
class Logprob:
    """The target's log-probability of an emitted token in nats, before any sampler."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens with theirs, best first


@dataclass(frozen=True, slots=True)
class Step:
    """The record of one step.
    drafted, accepted: tokens by drafter; accepted counts those before the cut."""

    tokens: tuple[int, ...]  # the emitted tokens, cut at a stop; empty for prefill
    sources: tuple[str, ...]  # a drafter's name or "target" for each token
    path: tuple[int, ...]  # the accepted nodes to commit: all tokens but the last, which is the new root
    drafted: Mapping[str, int]
    accepted: Mapping[str, int]
    stop_reason: StopReason | None
    times: StepTimes
    tree: DraftTree = EMPTY  # the verified draft
    proposal: DraftTree = EMPTY  # the draft the policy chose from
    logprobs: tuple[Logprob, ...] = ()  # one per token, if requested
    batch_tokens: int = 1  # rows the target computed: prompt, recomputed tokens, root and tree


@dataclass
class SourceStats:
    """Counts of one drafter.
    tried, proposed, right: steps it was called in, with a verified draft, with an accepted token.
    drafted, accepted: tokens."""

    tried: int = 0
    proposed: int = 0
    right: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass
class Stats:
    """Sums over one request's steps."""

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0  # steps that accepted fewer tokens than were drafted
    by_source: dict[str, SourceStats] = field(default_factory=dict)
    # By position in the draft: steps whose tokens before it were accepted, and those that accepted it, too.
    by_position: list[list[int]] = field(default_factory=list)
    draft_seconds: float = 0.0
    forward_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0
    other_seconds: float = 0.0
    prefill_seconds: float = 0.0  # time of the prefill steps, which count nowhere else

    def add(self, step: Step) -> None:
        """Add one step."""
        if not step.tokens:
            self.prefill_seconds += step.times.total
            return
        self.steps += 1
        self.tokens += len(step.tokens)
        drafted, accepted = sum(step.drafted.values()), sum(step.accepted.values())
        self.drafted += drafted
        self.accepted += accepted
        self.rejected += accepted < drafted
        last = step.path[-1] if step.path else ROOT
        # A text that ends within a draft leaves open what is after the end.
        judged = accepted + (accepted == len(step.path) and bool(step.tree.children(last)))
        self.by_position += [[0, 0] for _ in range(judged - len(self.by_position))]
        for position in range(judged):
            self.by_position[position][0] += 1
            self.by_position[position][1] += position < accepted
        for name in step.tree.called:
            self.by_source.setdefault(name, SourceStats()).tried += 1
        for name, n in step.drafted.items():
            source, n_accepted = self.by_source.setdefault(name, SourceStats()), step.accepted.get(name, 0)
            source.proposed += 1
            source.right += n_accepted > 0
            source.drafted += n
            source.accepted += n_accepted
        self.draft_seconds += step.times.draft
        self.forward_seconds += step.times.forward
        self.verify_seconds += step.times.verify
        self.commit_seconds += step.times.commit
        self.other_seconds += step.times.other

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_length(self) -> float | None:
        return 1 + self.accepted / self.steps if self.steps else None

    @property
    def seconds(self) -> float:
        return float(sum(getattr(self, f"{part}_seconds") for part in TIME_PARTS))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that `--json` prints, with seconds by phase under "time"."""
        return {
            "steps": self.steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_length": self.acceptance_length,
            "by_source": {name: asdict(source) for name, source in self.by_source.items()},
            "by_position": self.by_position,
            "time": {part: getattr(self, f"{part}_seconds") for part in TIME_PARTS},
        }
