"""Which draft, and how fast will it be: every draft that fits, by the speed it is expected to reach here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from paceline.core.cost import Costs
from paceline.lab.advice import memory, speed
from paceline.lab.advice.estimate import ESTIMATED, MEASURED, Estimate
from paceline.lab.advice.past import Past
from paceline.lab.advice.prior import Range, expected, task_of
from paceline.lab.advice.row import (
    COPIER,
    DOWNLOAD,
    MODEL,
    PREDICTED,
    PRIOR,
    Advice,
    Candidate,
    Known,
    Question,
    Row,
)
from paceline.machine.fit.compatibility import COMPATIBLE, MAPPABLE, SAME
from paceline.machine.fit.known_pairs import KnownPair
from paceline.machine.models.facts import ATTENTION, Facts
from paceline.machine.models.family import family_of

USABLE = (SAME, COMPATIBLE, MAPPABLE)
BITS = {"Q8_0": 8.5, "Q4_K_M": 4.9}  # of a weight, in files not here yet
CERTAIN = 1.0 - 1e-3  # an acceptance: from there on a draft that only breaks even is no gain
BETTER = 1.05  # times the best draft here: from there on a download is worth a line


def advise(
    target: Facts,
    candidates: Sequence[Candidate],
    question: Question,
    known: Known,
    pairs: Sequence[KnownPair] = (),
) -> Advice:
    """Raises UsageError for a task that is not known. pairs: what could be downloaded."""
    task_of(question.task)
    ranking = _Ranking(target, question, known)
    refused = ""
    rows: list[Row] = []
    downloads: list[Row] = []
    if target.memory != ATTENTION:
        refused = (
            f"nothing can be drafted for it yet: it is {target.memory}, and its state cannot be rolled back"
        )
    else:
        # Of drafts, too, the state has to be rolled back.
        able = [one for one in candidates if one.verdict in USABLE and one.facts.memory == ATTENTION]
        rows = sorted([*map(ranking.model, able), ranking.copier()], key=_order)
        downloads = ranking.downloads(rows, pairs)
    costs = ranking.costs
    passes, _ = speed.seconds(Costs(costs.likely), question.depth)
    two_rows = float(passes[2] / passes[1])
    return Advice(
        target, question, tuple(rows), tuple(downloads), costs.source, two_rows, known.available, refused
    )


def _order(row: Row) -> tuple[Any, ...]:
    return (
        not row.fits,
        row.verdict == MAPPABLE,
        -row.speedup.likely,
        -row.speedup.high,
        row.token,
        row.memory,
        row.reference,
    )


class _Ranking:
    """What is asked about one target. costs: of its passes."""

    def __init__(self, target: Facts, question: Question, known: Known) -> None:
        self._target, self._question, self._known = target, question, known
        self.costs = known.costs(target, "target")

    def model(self, one: Candidate, drafter: str = MODEL) -> Row:
        draft, tree = one.facts, one.verdict != MAPPABLE
        past = self._known.past(draft, MODEL) if drafter == MODEL else None
        acceptance, from_ = expected(self._question.task, self._target, draft, mappable=not tree), PRIOR
        if past is not None and past.acceptance is not None:
            acceptance, from_ = past.acceptance, f"bench {past.run}"
        small = self._known.costs(draft, "draft")
        costs = _together(self.costs, small)
        return self._row(
            partial(speed.of_a_model, tree=tree),
            [acceptance],
            costs,
            (draft,),
            past,
            drafter=drafter,
            reference=one.reference,
            verdict=one.verdict,
            size=draft.size,
            parameters=draft.parameters,
            quantisation=draft.quantisation,
            acceptance=acceptance,
            acceptance_from=from_,
            share=None,
            costs_from=MEASURED if self.costs.source == small.source == MEASURED else ESTIMATED,
            needed=speed.needed(costs[0], self._question.depth, tree=tree),
        )

    def copier(self) -> Row:
        task = task_of(self._question.task)
        costs = _together(self.costs)
        least = [a for a in speed.break_evens(costs[0], self._question.depth).values() if a is not None]
        needed = min(least, default=1.0)
        return self._row(
            speed.of_a_copier,
            [task.copied, task.copier],
            costs,
            (),
            self._known.past(None, "suffix") or self._known.past(None, "lookup"),
            drafter=COPIER,
            reference="suffix, lookup",
            verdict="no model",
            size=0,
            parameters=None,
            quantisation="",
            acceptance=task.copier,
            acceptance_from=PRIOR,
            share=task.copied,
            costs_from=self.costs.source,
            needed=needed if needed < CERTAIN else None,
        )

    def downloads(self, rows: Sequence[Row], pairs: Sequence[KnownPair]) -> list[Row]:
        models = [row for row in rows if row.drafter == MODEL]
        here = max((row.speedup.likely for row in models if row.fits), default=1.0)
        local = any(row.verdict != MAPPABLE for row in models)
        out = []
        for pair in pairs:
            row = self.model(Candidate(_absent(pair), pair.draft, DOWNLOAD), DOWNLOAD)
            if not local or row.speedup.likely >= BETTER * here:
                out.append(replace(row, why=pair.why, caveat=pair.caveat, source=pair.source))
        return out

    def _row(
        self,
        kinds: Callable[..., list[speed.Kind]],
        ranges: Sequence[Range],
        costs: tuple[Costs, Costs, Costs],
        drafts: tuple[Facts, ...],
        past: Past | None,
        **more: Any,
    ) -> Row:
        """For kinds and ranges see _predicted."""
        question, depth = self._question, self._question.depth
        guessed = more["acceptance_from"] == PRIOR and more["costs_from"] != MEASURED
        found, speedup = _predicted(kinds, ranges, costs, depth, guessed=guessed)
        n_draft, from_ = found.n_draft, PREDICTED
        if past is not None and past.speedup is not None:  # of this very pair, here: no prediction is needed
            speedup, from_ = past.speedup, f"bench {past.run}"
            n_draft = past.n_draft if speedup.likely > 1.0 else 0
        size, known = memory.needed((self._target, *drafts), question.n_ctx, question.cache_type)
        return Row(
            n_draft=n_draft,
            width=found.width,
            speedup=speedup,
            speedup_from=from_,
            token=speed.seconds(costs[0], depth)[1],
            break_even=speed.break_evens(costs[0], depth),
            memory=size,
            memory_known=known,
            fits=size <= self._known.available,
            **more,
        )


def _together(target: Estimate, draft: Estimate | None = None) -> tuple[Costs, Costs, Costs]:
    """Likely, at worst and at best."""
    drafts = (None, None, None) if draft is None else (draft.likely, draft.worst, draft.best)
    likely, worst, best = map(Costs, (target.likely, target.worst, target.best), drafts, [target.step] * 3)
    return likely, worst, best


def _predicted(
    kinds: Callable[..., list[speed.Kind]],
    ranges: Sequence[Range],
    costs: tuple[Costs, Costs, Costs],
    depth: int,
    *,
    guessed: bool,
) -> tuple[speed.Best, Range]:
    """What is best at what is likely, and its speed-up with a range. kinds: of steps, by a value of each
    of the ranges. guessed: nothing of all this was measured. Costs and the ranges are independent causes:
    they do not all err one way, so that their logarithms add up in squares. Not below plain decoding, to
    which the policy falls back."""
    likely, worst, best = costs
    values = [one.likely for one in ranges]

    def logarithm(values: Sequence[float], costs: Costs) -> float:
        return math.log(speed.best(kinds(*values), costs, depth).speedup)

    found = speed.best(kinds(*values), likely, depth)
    lows, highs = [logarithm(values, worst)], [logarithm(values, best)]
    for i, one in enumerate(ranges):
        lows.append(logarithm([*values[:i], one.low, *values[i + 1 :]], likely))
        highs.append(logarithm([*values[:i], one.high, *values[i + 1 :]], likely))
    log, speedup = math.log(found.speedup), found.speedup
    down, up = (math.hypot(*(end - log for end in ends)) for ends in (lows, highs))
    # What nobody has measured may as well gain nothing.
    low = 1.0 if guessed else max(1.0, speedup * math.exp(-down))
    return found, Range(low, speedup, speedup * math.exp(up))


def _absent(pair: KnownPair) -> Facts:
    """What is known of a file that is not here."""
    repository, _, kind = pair.draft.rpartition(":")
    name = repository.rpartition("/")[2]
    size = round(pair.largest * BITS.get(kind, 8.5) / 8)
    return Facts(
        files=(Path(pair.draft),),
        format="gguf",
        name=name,
        arch="",
        family=family_of([name]),
        parameters=pair.largest,
        quantisation=kind,
        size=size,
    )
