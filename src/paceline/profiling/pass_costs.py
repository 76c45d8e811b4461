"""What passes cost here: from the disk, or measured this once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any

from paceline.backends.interface import Backend, ModelSetup
from paceline.speculative.policy.cost_cells import implausibility
from paceline.speculative.policy.cost_measurement import BATCH_SIZES, measure
from paceline.speculative.policy.cost_model import DecodingCosts, PassCosts
from paceline.speculative.policy.drafting_summary import MAX_BATCH_TOKENS, break_even_reason
from paceline.storage.costs import NO_EFFORT, CachedCosts, MeasurementEffort, load, store

Warn = Callable[[str], None]
# How long, where, and over how many rows, when a model is loaded for the first time. What this leaves out is
# filled in by use (speculative/policy/cost_model.py); `paceline doctor` measures for longer.
QUICK_EFFORT = {
    "target": MeasurementEffort(4.0, (256, 1024), BATCH_SIZES),
    "draft": MeasurementEffort(0.7, (256,), (1, 2, 4, 8)),
}
MAX_TIMING_JITTER = 2.0  # costs that were measured on a machine so busy are not kept
NOTICE = "measuring what a pass costs here, this once"


def to_stderr(line: str) -> None:
    print(f"paceline: {line}", file=sys.stderr)


def cost_key(model: ModelSetup, role: str) -> dict[str, Any]:
    """What a model's costs depend on. role: a draft's are measured over fewer rows. Raises MissingExtraError
    without the engine, and OSError where the model is not there."""
    from paceline.hardware.threads import logical_cores
    from paceline.system.identity import cpu_name

    return {"role": role, "processor": cpu_name(), "cores": logical_cores(), **model.identity()}


def costs_of(
    target: Backend, draft: Backend | None = None, *, warn: Warn = to_stderr, quiet: bool = False
) -> DecodingCosts:
    """The costs of both, measured in a few seconds where they are not known yet; and once more, for twice as
    long, where by what is known no draft pays. Call it before the models are used: it takes one session of
    each, and what closed sessions left in their caches is dropped.

    quiet: say nothing on a terminal while measuring."""
    found: dict[str, CachedCosts] = {}
    with progress(NOTICE, quiet) as tell:
        for role, model in roles(target, draft).items():
            key, effort = cost_key(model, role), QUICK_EFFORT[role]
            cached = load(key, warn)
            if cached is not None:
                if role == "draft" or not never_pays(cached.cost) or cached.effort.seconds > effort.seconds:
                    found[role] = cached
                    continue
                effort = replace(effort, seconds=2 * effort.seconds)
            new = measure_costs(model, effort, partial(tell, role))
            sound = not jitter_warning(new.cost)
            if cached is not None:
                new.step = cached.step
            found[role] = new if cached is None or sound else cached
            if sound and not store(key, new, warn):
                warn = _silent  # once is enough
    return as_costs(found)


def jitter_warning(cost: PassCosts) -> str:
    """Return why measured costs are neither to be kept nor concluded from; "" where they are sound."""
    if cost.timing_jitter >= MAX_TIMING_JITTER:
        apart = (
            f"lie {cost.timing_jitter:.1f}x apart"
            if isfinite(cost.timing_jitter)
            else "are too few to compare"
        )
        return f"times of one and the same pass {apart}"
    return implausibility(cost.table)


def never_pays(cost: PassCosts) -> bool:
    """Whether the rule would never draft, however often guesses are right. False for a curve of one row."""
    return cost.max_batch_tokens > 1 and all(
        break_even_reason(cost.curve(MAX_BATCH_TOKENS, depth), None).never for depth in cost.depths
    )


def refresh(costs: DecodingCosts, draft: Backend | None) -> None:
    """From now on the draft's passes keep its costs up to date, as the policy does with the target's: between
    passes of a large target they take longer than one after the other. Not for a replay, which has no target
    in between."""
    if draft is not None and costs.draft is not None:
        draft.on_forward = costs.draft.update


def measure_costs(model: Backend, effort: MeasurementEffort, tick: Callable[[float], None]) -> CachedCosts:
    cost = measure(model, seconds=effort.seconds, depths=effort.depths, rows=effort.rows, progress=tick)
    return CachedCosts(cost, effort=effort)


def as_costs(found: Mapping[str, CachedCosts]) -> DecodingCosts:
    small = found.get("draft")
    return DecodingCosts(found["target"].cost, None if small is None else small.cost, found["target"].step)


def save(target: Backend, draft: Backend | None, costs: DecodingCosts, *, warn: Warn = to_stderr) -> None:
    """Keep what use has taught, but nothing of a run whose passes took far longer than usual. A target of
    another process that did the same: the last one stays."""
    for role, model in roles(target, draft).items():
        cost = costs.target if role == "target" else costs.draft
        if cost is None or not costs.is_default or jitter_warning(cost):
            continue
        key = cost_key(model, role)
        before = load(key, _silent)
        effort = NO_EFFORT if before is None else before.effort
        if not store(key, CachedCosts(cost, costs.step if role == "target" else 0.0, effort), warn):
            return  # once is enough


def roles(target: Backend, draft: Backend | None) -> dict[str, Backend]:
    return {"target": target} | ({} if draft is None else {"draft": draft})


def _silent(_line: str) -> None:
    """It was said before."""


@contextmanager
def progress(doing: str, quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """One line in a terminal, which is gone afterwards. quiet: not even that."""
    shown = not quiet and sys.stderr is not None and sys.stderr.isatty()
    width = 0

    def tell(role: str, share: float) -> None:
        nonlocal width
        if shown:
            line = f"{doing}: {role} {share:.0%}"
            width = max(width, len(line))
            print(f"\r{line:{width}}", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if width:
            print(f"\r{'':{width}}\r", end="", file=sys.stderr, flush=True)
