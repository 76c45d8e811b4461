"""What happened: one Step a request and forward pass, and the sums over them.

acceptance rate = accepted / drafted; acceptance length = 1 + accepted / steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from paceline.speculative.tree import EMPTY, DraftTree

StopReason = Literal["eos", "stop", "length", "context"]
TARGET = "target"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step; a batch's time is shared out evenly among its requests. keep: committing and
    rolling back. other: deciding what to draft, and learning from the step before."""

    draft: float = 0.0
    forward: float = 0.0
    verify: float = 0.0
    keep: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.forward + self.verify + self.keep + self.other


TIME_PARTS = tuple(part.name for part in fields(StepTimes))


@dataclass(frozen=True, slots=True)
class Logprob:
    """What the target gave an emitted token: nats, before any sampler. top: the likeliest tokens with theirs,
    best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """tokens: emitted by this step, cut where the request stopped; none where only the prompt was read.
    sources: a drafter's name or "target" for each token.
    path: the accepted nodes to commit: all tokens but the last, which is the new root.
    drafted, accepted: tokens by drafter; accepted before any cut.
    tree: the draft that was verified; proposal: all that it was chosen from.
    logprobs: one a token where the request asked for them.
    rows: what the target computed: of the prompt, of text computed again, the root and the tree."""

    tokens: tuple[int, ...]
    sources: tuple[str, ...]
    path: tuple[int, ...]
    drafted: Mapping[str, int]
    accepted: Mapping[str, int]
    stop_reason: StopReason | None
    times: StepTimes
    tree: DraftTree = EMPTY
    proposal: DraftTree = EMPTY
    logprobs: tuple[Logprob, ...] = ()
    batch_tokens: int = 1


@dataclass
class SourceStats:
    """One drafter's part. tried: the steps it was called at; proposed: those with a draft that was verified;
    right: those of which a token was accepted. drafted, accepted: tokens."""

    tried: int = 0
    proposed: int = 0
    right: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass
class Stats:
    """Sums over one request's steps. rejected: the steps that accepted less than was drafted.
    reading_seconds: of the steps that only read the prompt, which count nowhere else."""

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    by_source: dict[str, SourceStats] = field(default_factory=dict)
    draft_seconds: float = 0.0
    forward_seconds: float = 0.0
    verify_seconds: float = 0.0
    keep_seconds: float = 0.0
    other_seconds: float = 0.0
    reading_seconds: float = 0.0

    def add(self, step: Step) -> None:
        if not step.tokens:
            self.reading_seconds += step.times.total
            return
        self.steps += 1
        self.tokens += len(step.tokens)
        drafted, accepted = sum(step.drafted.values()), sum(step.accepted.values())
        self.drafted += drafted
        self.accepted += accepted
        self.rejected += accepted < drafted
        for name in step.tree.called:
            self.by_source.setdefault(name, SourceStats()).tried += 1
        for name, n in step.drafted.items():
            source, selected = self.by_source.setdefault(name, SourceStats()), step.accepted.get(name, 0)
            source.proposed += 1
            source.right += selected > 0
            source.drafted += n
            source.accepted += selected
        self.draft_seconds += step.times.draft
        self.forward_seconds += step.times.forward
        self.verify_seconds += step.times.verify
        self.keep_seconds += step.times.keep
        self.other_seconds += step.times.other

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_length(self) -> float | None:
        return 1 + self.accepted / self.steps if self.steps else None

    @property
    def seconds(self) -> float:
        known = self.draft_seconds + self.forward_seconds + self.verify_seconds + self.keep_seconds
        return known + self.other_seconds

    def as_dict(self) -> dict[str, Any]:
        """The names `--json` prints; seconds by phase under "time"."""
        return {
            "steps": self.steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_length": self.acceptance_length,
            "by_source": {name: asdict(source) for name, source in self.by_source.items()},
            "time": {
                "draft": self.draft_seconds,
                "forward": self.forward_seconds,
                "verify": self.verify_seconds,
                "keep": self.keep_seconds,
                "other": self.other_seconds,
            },
        }
