"""Sweeps: the points of one setting, and what they show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.backends.registry import quantised
from paceline.drafter_table import DRAFT
from paceline.drafts import kind_of
from paceline.fits import drafters_of
from paceline.speculative.errors import UsageError
from paceline.tune.candidates import PLAIN_DECODING, Candidate, method_of
from paceline.tune.plan import ADAPTIVE, ENGINE_SETTINGS, QUANTISATION, Sweep
from paceline.tune.trials import Point, Trials, speedup

K_UP, K_DOWN = (8, 12, 16, 24), (4, 2)
GOOD_ACCEPTANCE = 0.6  # from which longer drafts are tried
MIN_RISE = 1.02  # of the speed with a longer draft; below it the curve is flat


class SweepRunner:
    """base: fields of Drafting for all points, which draft with the first draft, or copy from the text.
    Raises UsageError for fields that do not fit."""

    def __init__(self, trials: Trials) -> None:
        self._trials, plan = trials, trials.plan
        self._draft: Path | None = trials.drafts[0] if trials.drafts else None
        usual = drafters_of(kind_of(self._draft))[:1] if self._draft else ["lookup"]
        self._base = {"drafters": plan.drafters or tuple(usual), **plan.drafting}
        method_of(self._base)

    def run(self, sweep: Sweep) -> Candidate:
        """Measure the points, note the conclusion, and return the best."""
        name, why = f"sweep {sweep.name}", ""
        if sweep.name == ADAPTIVE:
            points, why = self._adaptive(name)
        elif sweep.name in ENGINE_SETTINGS:
            method, points = method_of(self._base, self._draft), []
            for value in sweep.values:  # one more model at a time
                points += self._points(f"{name}={value}", [Candidate(method, {sweep.name: value})])
        elif sweep.name == QUANTISATION:
            points, why = self._quantised(name, sweep.values)
        else:
            points = self._points(name, [self._point({sweep.name: value}) for value in sweep.values])
        best, result = max(points, key=lambda point: speedup(point[1]))
        by_category = self._best_by_category([candidate for candidate, _ in points])
        note = f"best: {best.name}, {speedup(result):.2f}x plain decoding{why and '; ' + why}{by_category}"
        if speedup(result) <= 1:
            note, best = f"nothing was faster than plain decoding; {note}", PLAIN_DECODING
        self._trials.record.end(next(reversed(self._trials.record.stages)), note=note)
        return best

    def _best_by_category(self, points: Sequence[Candidate]) -> str:
        """Return the best point of each kind of content, as a phrase; "" for a single kind."""
        groups = [group for stage in self._trials.record.stages.values() for group in stage.groups]
        kinds, value = dict.fromkeys(group.category for group in groups), self._trials.value
        best = {kind: max(points, key=lambda one: value(one.name, kind)).name for kind in kinds}
        texts = [f"{kind} {name} {value(name, kind):.2f}x" for kind, name in best.items()]
        return f"; by content: {', '.join(texts)}" if len(kinds) > 1 else ""

    def _adaptive(self, name: str) -> tuple[list[Point], str]:
        """Try drafts of 8 tokens, then longer ones while acceptance is good and speed rises, or shorter."""
        points, lengths, why = list[Point](), list(K_UP), ""
        while lengths:
            k = lengths.pop(0)
            points += self._points(f"{name}={k}", [self._point({"n_draft": k})])
            rate = points[-1][1]["acceptance_rate"] or 0.0
            best = max((speedup(result) for _, result in points[:-1]), default=0.0)
            if speedup(points[-1][1]) < MIN_RISE * best:
                return points, f"K={k} is no faster"
            if k >= K_UP[0] and rate < GOOD_ACCEPTANCE:
                lengths = list(K_DOWN) if k == K_UP[0] else []
                why = f"acceptance with K={k} is {rate:.0%}, below {GOOD_ACCEPTANCE:.0%}"
        return points, why

    def _quantised(self, name: str, kinds: Sequence[str]) -> tuple[list[Point], str]:
        """Measure a draft model with these types of weights, the first of which is compared with."""
        draft = self._draft
        if draft is None or kind_of(draft) != DRAFT:
            raise UsageError(f"--sweep {QUANTISATION}: is of a draft model: give one (-md)")
        files = {kind: quantised(draft, kind, self._trials.threads) for kind in kinds}
        points = self._points(name, [
            Candidate(method_of(self._base, file), label=kind) for kind, file in files.items()
        ])  # fmt: skip
        reference, rate = points[0][1], points[0][1]["acceptance_rate"] or math.nan
        shares = [
            f"{one.label} has {(result['acceptance_rate'] or 0) / rate:.0%} of its acceptance and "
            f"{speedup(result) / max(speedup(reference), 1e-9):.2f} of its speed"
            for one, result in points[1:]
        ]
        return points, f"beside {kinds[0]}, {', '.join(shares)}" if shares else ""

    def _point(self, change: Mapping[str, Any]) -> Candidate:
        base = dict(self._base)
        if "n_draft" in change and not {"policy", "p_min"} & base.keys():
            base["policy"] = "fixed"  # others end drafts before the length that is measured
        if "p_min" in change:
            base["policy"] = "p_min"
        return Candidate(method_of({**base, **change}, self._draft))

    def _points(self, stage: str, candidates: Sequence[Candidate]) -> list[Point]:
        trials, n = self._trials, max(1, len(self._trials.plan.sweeps))
        seconds = trials.seconds / n / (len(K_UP) if ADAPTIVE in stage.split() else 1)
        items = [*trials.tuning, *trials.held_out]
        return trials.points(stage, candidates, items, perf_counter() + seconds)
