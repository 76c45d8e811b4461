"""What a bench is about to do: which items, and about how long that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.lab.bench.forecast import Choice, Forecast, Pace, Size, fitted
from paceline.lab.bench.models import Models
from paceline.lab.bench.plan import FULL_ROUNDS, Plan
from paceline.lab.bench.prompts import Prompts
from paceline.lab.workload import Item


@dataclass(frozen=True)
class Outlook:
    """of: how many items there are, of which it takes `items`. tokens: most of an answer; 0 where each
    item has its own number. seconds: expected, for all points of a sweep. full: of all items in five
    rounds, with every prompt read each time; None where nothing was left out."""

    suite: str
    items: int
    of: int
    tokens: int
    systems: int
    rounds: int
    points: int
    seconds: float
    full: float | None = None


@dataclass(frozen=True)
class Prospect:
    """Tells the times of one point of a bench. systems: how many answer each item. points: of the sweep.
    streamed: see Turns.streamed."""

    plan: Plan
    models: Models
    systems: int
    points: int
    streamed: bool

    @property
    def forecast(self) -> Forecast:
        plan = self.plan
        return Forecast(
            Pace(self.models.cost), self.systems, plan.rounds, plan.keep_prompts, streamed=self.streamed
        )

    def choose(self, every: Sequence[Item], prompts: Prompts) -> Choice:
        """Those that fit into the plan's time. What does not fit the context takes none: it is noted."""
        forecast = self.forecast

        def seconds(size: Size) -> float:
            return forecast.total(size) if self._fits(size) else 0.0

        return fitted(every, self.plan.n, prompts.size, seconds, 60 * self.plan.minutes / self.points)

    def tell(self, every: Sequence[Item], items: Sequence[Item], prompts: Prompts) -> Outlook:
        """every: those there are; items: those that were chosen."""
        plan = self.plan
        full = Forecast(self.forecast.pace, self.systems, FULL_ROUNDS)
        sizes = [size for item in items if self._fits(size := prompts.size(item, plan.n))]
        others = [size for item in every if self._fits(size := prompts.size(item, 0))]
        return Outlook(
            suite=plan.suite,
            items=len(sizes),
            of=len(others),
            tokens=plan.n,
            systems=self.systems,
            rounds=plan.rounds,
            points=self.points,
            seconds=self.points * sum(map(self.forecast.total, sizes)),
            full=self.points * sum(map(full.total, others)) if plan.only else None,
        )

    def _fits(self, size: Size) -> bool:
        return size.prompt + size.answer <= self.models.plain.target.caps.n_ctx
