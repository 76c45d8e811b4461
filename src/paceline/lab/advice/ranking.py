"""Which draft, and how fast will it be: every draft that fits, by the speed it is expected to reach here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.lab.advice import memory, speed
from paceline.lab.advice.passes import MEASURED, Passes, token
from paceline.lab.advice.past import Past
from paceline.lab.advice.prior import Range, expected, task_of
from paceline.lab.advice.row import (
    COPIER,
    DOWNLOAD,
    MAPPABLE,
    MODEL,
    PREDICTED,
    PRIOR,
    Advice,
    Candidate,
    Known,
    Question,
    Row,
)
from paceline.lab.advice.speed import Times
from paceline.machine.fit.known_pairs import KnownPair
from paceline.machine.models.facts import ATTENTION, Facts
from paceline.machine.models.family import family_of

USABLE = ("same", "compatible", MAPPABLE)
BITS = {"Q8_0": 8.5, "Q4_K_M": 4.9}  # of a weight, in files not here yet
CERTAIN = 1e-3
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
    passes = known.passes(target, "target")
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
        rows = [_model(target, one, question, known, passes) for one in able]
        rows.append(_copier(target, question, known, passes))
        rows.sort(key=_order)
        downloads = _downloads(target, rows, question, known, passes, pairs)
    return Advice(
        target,
        question,
        tuple(rows),
        tuple(downloads),
        passes.source,
        passes.likely[2] / passes.likely[1],
        known.available,
        refused,
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


def _model(
    target: Facts, one: Candidate, question: Question, known: Known, passes: Passes, drafter: str = MODEL
) -> Row:
    draft, mappable = one.facts, one.verdict == MAPPABLE
    small = known.passes(draft, "draft")
    past = known.past(draft, MODEL) if drafter == MODEL else None
    acceptance, from_ = expected(question.task, target, draft, mappable=mappable), PRIOR
    if past is not None and past.acceptance is not None:
        acceptance, from_ = past.acceptance, f"bench {past.run}"
    times = Times(passes.likely, token(small)[0], passes.step)
    tree = not mappable
    found, speedup = _reached(acceptance, passes, small, tree)
    together = memory.needed((target, draft), question.n_ctx, question.cache_type)
    return _measured(
        Row(
            drafter=drafter,
            reference=one.reference,
            verdict=one.verdict,
            size=draft.size,
            parameters=draft.parameters,
            quantisation=draft.quantisation,
            n_draft=found.n_draft,
            width=found.width,
            acceptance=acceptance,
            acceptance_from=from_,
            share=None,
            speedup=speedup,
            speedup_from=PREDICTED,
            costs_from=_sources(passes, small),
            token=times.token,
            needed=speed.needed(times, tree=tree),
            break_even=speed.break_evens(times),
            memory=together.total,
            memory_known=together.known,
            fits=together.total <= known.available,
        ),
        past,
    )


def _reached(acceptance: Range, passes: Passes, small: Passes, tree: bool) -> tuple[speed.Best, Range]:
    """What a draft model does at the likely acceptance, and its speed-up with its range."""
    likely, cheap, dear = token(small)
    times = Times(passes.likely, likely, passes.step)

    def at(a: float, times: Times) -> speed.Best:
        return speed.best(speed.of_a_model(a, tree=tree), times)

    found = at(acceptance.likely, times)
    by_acceptance = at(acceptance.low, times), at(acceptance.high, times)
    worst, best = Times(passes.worst, dear, passes.step), Times(passes.best, cheap, passes.step)
    by_costs = at(acceptance.likely, worst), at(acceptance.likely, best)
    return found, _spread(found.speedup, by_acceptance, by_costs)


def _copier(target: Facts, question: Question, known: Known, passes: Passes) -> Row:
    task = task_of(question.task)
    times = Times(passes.likely, 0.0, passes.step)
    share, right = task.copied, task.copier

    def at(h: float, a: float, curve: Sequence[float] = passes.likely) -> speed.Best:
        return speed.best(speed.of_a_copier(h, a), Times(curve, 0.0, passes.step))

    found = at(share.likely, right.likely)
    speedup = _spread(
        found.speedup,
        (at(share.low, right.likely), at(share.high, right.likely)),
        (at(share.likely, right.low), at(share.likely, right.high)),
        (at(share.likely, right.likely, passes.worst), at(share.likely, right.likely, passes.best)),
    )
    alone = memory.needed((target,), question.n_ctx, question.cache_type)
    return _measured(
        Row(
            drafter=COPIER,
            reference="suffix, lookup",
            verdict="no model",
            size=0,
            parameters=None,
            quantisation="",
            n_draft=found.n_draft,
            width=1,
            acceptance=task.copier,
            acceptance_from=PRIOR,
            share=task.copied,
            speedup=speedup,
            speedup_from=PREDICTED,
            costs_from=passes.source,
            token=0.0,
            needed=_least(speed.break_evens(times)),
            break_even=speed.break_evens(times),
            memory=alone.total,
            memory_known=alone.known,
            fits=alone.total <= known.available,
        ),
        known.past(None, "suffix") or known.past(None, "lookup"),
    )


def _spread(likely: float, *ends: tuple[speed.Best, speed.Best]) -> Range:
    """Of independent causes, each with what comes of its low and its high end: they do not all err one way,
    so that their logarithms add up in squares. Not below plain decoding, to which the policy falls back."""
    down = math.hypot(*(math.log(likely / low.speedup) for low, _ in ends))
    up = math.hypot(*(math.log(high.speedup / likely) for _, high in ends))
    return Range(max(1.0, likely * math.exp(-down)), likely, likely * math.exp(up))


def _measured(row: Row, past: Past | None) -> Row:
    """What was measured of this very pair, here, needs no prediction."""
    if past is None or past.speedup is None:
        return row
    n_draft = past.n_draft if past.speedup.likely > 1.0 else 0
    return replace(row, speedup=past.speedup, speedup_from=f"bench {past.run}", n_draft=n_draft)


def _downloads(
    target: Facts,
    rows: Sequence[Row],
    question: Question,
    known: Known,
    passes: Passes,
    pairs: Sequence[KnownPair],
) -> list[Row]:
    here = max((row.speedup.likely for row in rows if row.drafter == MODEL and row.fits), default=1.0)
    local = [row for row in rows if row.drafter == MODEL and row.verdict != MAPPABLE]
    out = []
    for pair in pairs:
        one = Candidate(_absent(pair), pair.draft, DOWNLOAD)
        row = _model(target, one, question, known, passes, DOWNLOAD)
        if local and row.speedup.likely < BETTER * here:
            continue
        out.append(replace(row, why=pair.why, caveat=pair.caveat, source=pair.source))
    return out


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


def _sources(*passes: Passes) -> str:
    return MEASURED if all(one.source == MEASURED for one in passes) else "estimated"


def _least(values: dict[int, float | None]) -> float | None:
    """None also where only a draft that is always right would lose nothing."""
    least = min((value for value in values.values() if value is not None), default=1.0)
    return least if least < 1.0 - CERTAIN else None
