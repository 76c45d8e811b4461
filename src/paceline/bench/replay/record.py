"""What a replay found. `as_dict` is what `paceline replay --json` prints; FORMAT goes up when a name in it
changes its meaning or goes away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paceline.bench.record import Interval
from paceline.bench.replay.intervals import ratios
from paceline.speculative.policy.drafting_summary import DraftingSummary
from paceline.speculative.stats import SourceStats

FORMAT = 2


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """A recorded one, whoever decodes it again. group: those with the same number are of one conversation.
    measured: seconds that decoding took when it was recorded; drafting: the settings it took them with, None
    where they are not known."""

    n_prompt: int
    group: int
    category: str = ""
    measured: float | None = None
    drafting: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """One request with one method. tokens: as recorded. seconds: as predicted."""

    tokens: int
    steps: int
    drafted: int
    accepted: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SpeedPrediction:
    """By what passes are known to cost; prompts are not in it. speedup: over plain decoding of the same
    requests."""

    seconds: float
    tokens_per_second: Interval
    speedup: Interval


@dataclass(frozen=True, slots=True)
class PredictionCheck:
    """Of the requests that were recorded with this method, with the time it took: tokens/s as measured and as
    predicted, and by what share of the measured speed the prediction is too high."""

    requests: int
    measured: float
    predicted: float
    off: float


@dataclass(frozen=True, kw_only=True)
class ReplaySums:
    """Sums over some requests. tokens_per_step: with a 95% interval (intervals.py)."""

    requests: int
    n_prompt: int
    n_tokens: int
    steps: int
    drafted: int
    accepted: int
    tokens_per_step: Interval
    predicted: SpeedPrediction | None

    @property
    def acceptance_rate(self) -> float | None:
        """None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "n_prompt": self.n_prompt,
            "n_tokens": self.n_tokens,
            "steps": self.steps,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_step": asdict(self.tokens_per_step),
            "predicted": None if self.predicted is None else asdict(self.predicted),
        }


@dataclass(frozen=True, kw_only=True)
class MethodResult(ReplaySums):
    """One method over all requests. partial: it reads the target's likeliest tokens at every node, and has
    had them along the record only. account: what the policy says of its choices since it last forgot. each:
    by request, in their order."""

    method: str
    drafting: dict[str, Any]
    by_source: dict[str, SourceStats]
    by_category: Mapping[str, ReplaySums]
    partial: bool
    checked: PredictionCheck | None
    account: DraftingSummary | None
    each: tuple[ReplayResult, ...] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "drafting": self.drafting,
            **super().as_dict(),
            "policy": None if self.account is None else self.account.as_dict(),
            "measured": None if self.checked is None else asdict(self.checked),
            "by_source": {name: asdict(source) for name, source in self.by_source.items()},
            "by_category": {name: figures.as_dict() for name, figures in self.by_category.items()},
            "partial": self.partial,
            "each": [asdict(played) for played in self.each],
        }


def figures(
    answers: Sequence[RecordedAnswer], played: Sequence[ReplayResult], plain: Sequence[ReplayResult] | None
) -> ReplaySums:
    """answers, played: one each a request. plain: the same without a draft, where speeds are predicted."""
    groups, tokens = [one.group for one in answers], [one.tokens for one in played]
    steps = [one.steps for one in played]
    columns: list[Sequence[float]] = [tokens, steps]
    if plain is not None:
        columns += [timed(played), timed(plain)]
    per_step, *speeds = ratios(columns, groups, [(0, 1), (0, 2), (3, 2)][: len(columns) - 1])
    return ReplaySums(
        requests=len(played),
        n_prompt=sum(one.n_prompt for one in answers),
        n_tokens=sum(tokens),
        steps=sum(steps),
        drafted=sum(one.drafted for one in played),
        accepted=sum(one.accepted for one in played),
        tokens_per_step=per_step,
        predicted=predicted(played, *speeds) if speeds else None,
    )


def predicted(played: Sequence[ReplayResult], speed: Interval, speedup: Interval) -> SpeedPrediction:
    return SpeedPrediction(sum(timed(played)), speed, speedup)


def timed(played: Sequence[ReplayResult]) -> list[float]:
    return [one.seconds for one in played if one.seconds is not None]


def by_category(
    answers: Sequence[RecordedAnswer], played: Sequence[ReplayResult], plain: Sequence[ReplayResult] | None
) -> dict[str, ReplaySums]:
    """By name, in the order they first came; nothing where no request has one."""
    out = {}
    names = list(dict.fromkeys(one.category for one in answers))
    for name in names if names != [""] else ():
        some = [i for i, one in enumerate(answers) if one.category == name]
        without = None if plain is None else [plain[i] for i in some]
        out[name] = figures([answers[i] for i in some], [played[i] for i in some], without)
    return out


def check(
    answers: Sequence[RecordedAnswer], played: Sequence[ReplayResult], drafting: Mapping[str, Any]
) -> PredictionCheck | None:
    """drafting: the method's, as it is recorded. None where nothing was measured with it."""
    known = [
        (one.measured, its.seconds, its.tokens)
        for one, its in zip(answers, played, strict=True)
        if one.measured and its.seconds is not None and one.drafting == drafting
    ]
    if not known:
        return None
    took, predicted, tokens = (sum(column) for column in zip(*known, strict=True))
    return PredictionCheck(len(known), tokens / took, tokens / predicted, took / predicted - 1.0)
