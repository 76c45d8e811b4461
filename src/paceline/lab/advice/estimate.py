"""What passes cost here: as it was measured, or estimated from a model's size and the memory's speed.

Decoding one token reads all weights that it needs, once. What more rows cost depends on the kernels and the
machine (docs/doctor.md), so an estimate is a range: what the measured machines had, from the best to the
worst."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.core.cost import SHALLOW, Cost, Costs
from paceline.core.errors import ModelError, PacelineError
from paceline.core.theory import distinct_experts
from paceline.engines.engine import Engine
from paceline.engines.openers import Way
from paceline.lab.advice.prior import bits_of
from paceline.machine.models.facts import Facts

MEASURED, ESTIMATED = "measured", "estimated"
ROWS = 64
# Of the bandwidth that reading alone reaches, what decoding gets, and how far off that may be. Judgement.
EFFICIENCY, DEARER, CHEAPER = 0.75, 1.5, 0.8
PER_PASS = 3e-4  # seconds that a call takes from Python, whatever the model: a draft of 1.5M has nothing else
STEP = 2e-4  # seconds of a step besides its passes, where use has not taught it
# What so many rows cost beside one, by bits of a weight, as measured on two AVX-512 cores (a 1.1B model,
# llama.cpp's kernels: from one row to two they change). Rows cost computing, one row costs reading: with less
# memory bandwidth for a core they cost less beside it.
CURVES: Mapping[int, Mapping[int, float]] = {
    4: {1: 1.0, 2: 1.79, 3: 2.42, 4: 1.83, 5: 2.42, 7: 3.64, 8: 2.82, 12: 4.0, 16: 4.2, 32: 8.0},
    8: {1: 1.0, 2: 2.04, 3: 2.35, 4: 2.56, 5: 3.58, 7: 4.04, 8: 3.24, 12: 4.1, 16: 5.3, 32: 9.2},
    16: {1: 1.0, 2: 1.19, 3: 1.32, 4: 1.43, 5: 1.46, 7: 1.57, 8: 1.58, 12: 1.9, 16: 2.3, 32: 3.6},
}
THEIRS = 15e9  # bytes/s that one of those cores reads
# How far from that other kernels and processors may be, at best and at worst. Judgement.
BETTER, WORSE = 0.35, 1.3
LEAST, MOST = 0.1, 1.5  # of what rows cost there
# Of a mixture's weights, those that are experts'. Judgement, for models of 30B and more.
EXPERTS = 0.93


@dataclass(frozen=True)
class Estimate:
    """What the passes of one model cost: likely, at best and at worst, all one where it was measured. step:
    seconds of a target's step besides its pass."""

    likely: Cost
    best: Cost
    worst: Cost
    source: str
    step: float = STEP

    @classmethod
    def measured(cls, cost: Cost, step: float = 0.0) -> Estimate:
        return cls(cost, cost, cost, MEASURED, step or STEP)


def kept(way: Way, role: str) -> Estimate | None:
    """What `paceline doctor`, or use, has measured of a model run this way; None where it has not, or cannot
    be asked. role: target or draft."""
    from paceline.attention import settled
    from paceline.costing import beside, key_of
    from paceline.machine.costs import recall

    try:
        if role == "draft":
            way = replace(way, settings=beside(way.settings, way.path))
        way = way.but(flash_attention=settled(way))
        found = recall(key_of(way, role), lambda _: None)  # whoever loads the model warns
    except (PacelineError, ImportError, OSError):  # without the engine nothing was measured either
        return None
    return None if found is None else Estimate.measured(found.cost, found.step)


def estimated(facts: Facts, role: str, bandwidth: float, threads: int) -> Estimate:
    """bandwidth: bytes/s that so many threads together read. role: a target's range is in what rows cost
    beside one; of a draft, which decodes one by one, in what one costs."""
    once = _touched(facts, 1) / (bandwidth * EFFICIENCY)
    bits = bits_of(facts.quantisation) or 16
    curve = Cost({SHALLOW: CURVES[4 if bits <= 5 else 8 if bits <= 8 else 16]}).curve(ROWS, SHALLOW)
    scale = min(MOST, max(LEAST, bandwidth / threads / THEIRS))

    def cost(rows: float = 1.0, all_of_it: float = 1.0) -> Cost:
        def seconds(n: int) -> float:
            growth = _touched(facts, n) / _touched(facts, 1)
            return all_of_it * (PER_PASS + once * (growth + scale * rows * (curve[n] - 1.0)))

        return Cost({SHALLOW: {n: seconds(n) for n in range(1, ROWS + 1)}})

    if role == "draft":
        return Estimate(cost(), cost(all_of_it=CHEAPER), cost(all_of_it=DEARER), ESTIMATED)
    return Estimate(cost(), cost(BETTER), cost(WORSE), ESTIMATED)


def measure(
    target: Path,
    drafts: Iterable[Path],
    given: dict[str, Any],
    done: Callable[[Path], object],
    note: Callable[[str], object],
) -> dict[Path, Costs]:
    """Load the target, and beside it one draft after the other, and measure what was not measured yet: it is
    kept for whatever loads these models next. given: what `assemble.load` takes besides. done: told the path
    of each. note: told of drafts that cannot be loaded, which end nothing, and of costs that cannot be relied
    on, which are left out."""
    from paceline.assemble import load
    from paceline.costing import beside, costs_of, doubt

    found = {}

    def add(path: Path, costs: Costs, cost: Cost, model: Engine) -> None:
        if said := doubt(cost, model):
            note(f"{path}: {said}; measure again later")
        else:
            found[path] = costs
        done(path)

    with load(target, drafters="none", **given) as large:
        costs = costs_of(large.target, quiet=True)
        add(target, costs, costs.target, large.target)
        for path in drafts:
            try:
                settings = beside(given | {"n_ctx": large.target.caps.n_ctx}, path)
                with load(path, drafters="none", **settings) as small:
                    costs = costs_of(large.target, small.target, quiet=True)
                    add(path, costs, costs.draft or costs.target, small.target)
            except ModelError as error:
                note(f"not measured: {error}")
                done(path)
    return found


def _touched(facts: Facts, rows: int) -> float:
    """Bytes of weights that a pass reads."""
    if not facts.experts or not facts.experts_used:
        return float(facts.size)
    share = distinct_experts(facts.experts, facts.experts_used, rows) / facts.experts
    return facts.size * (1.0 - EXPERTS + EXPERTS * share)
