"""The costs of passes on this machine: stored, or measured once and updated by use."""

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
# The effort when a model is first loaded. Use adds what it leaves out (speculative/policy/cost_model.py);
# `paceline doctor` measures for longer.
QUICK_EFFORT = {
    "target": MeasurementEffort(4.0, (256, 1024), BATCH_SIZES),
    "draft": MeasurementEffort(0.7, (256,), (1, 2, 4, 8)),
}
MAX_TIMING_JITTER = 2.0  # costs measured on a busier machine are not stored
NOTICE = "measuring what a pass costs here, this once"


def to_stderr(line: str) -> None:
    print(f"paceline: {line}", file=sys.stderr)


def cost_key(model: ModelSetup, role: str) -> dict[str, Any]:
    """Return all that a model's costs depend on. role: a draft model is measured with less effort.

    Raises MissingExtraError without the backend, and OSError without the model.
    """
    from paceline.hardware.threads import logical_cores
    from paceline.system.identity import cpu_name

    return {"role": role, "processor": cpu_name(), "cores": logical_cores(), **model.identity()}


def costs_of(
    target: Backend, draft: Backend | None = None, *, warn: Warn = to_stderr, quiet: bool = False
) -> DecodingCosts:
    """Return the costs of both models; unknown ones are measured in a few seconds.

    Costs by which no draft pays are measured once more, for twice as long. Call this before the models are
    used: it takes one session of each, and drops the cached prefixes of closed sessions.
    quiet: show no progress on a terminal.
    """
    found: dict[str, CachedCosts] = {}
    with progress(quiet) as show:
        for role, model in roles(target, draft).items():
            key, effort = cost_key(model, role), QUICK_EFFORT[role]
            cached = load(key, warn)
            if cached is not None:
                if role == "draft" or not never_pays(cached.cost) or cached.effort.seconds > effort.seconds:
                    found[role] = cached
                    continue
                effort = replace(effort, seconds=2 * effort.seconds)
            new = measure_costs(model, effort, partial(show, role))
            sound = not jitter_warning(new.cost)
            if cached is not None:
                new.step = cached.step
            found[role] = new if cached is None or sound else cached
            if sound and not store(key, new, warn):
                warn = _silent  # one warning is enough
    return as_costs(found)


def jitter_warning(cost: PassCosts) -> str:
    """Return why measured costs are unusable; "" if they are sound."""
    if cost.timing_jitter >= MAX_TIMING_JITTER:
        few, apart = "are too few to compare", f"lie {cost.timing_jitter:.1f}x apart"
        return f"times of one and the same pass {apart if isfinite(cost.timing_jitter) else few}"
    return implausibility(cost.table)


def never_pays(cost: PassCosts) -> bool:
    """Return True if no acceptance rate makes a draft pay. False for a curve of one row."""
    return cost.max_batch_tokens > 1 and all(
        break_even_reason(cost.curve(MAX_BATCH_TOKENS, depth), None).never for depth in cost.depths
    )


def refresh(costs: DecodingCosts, draft: Backend | None) -> None:
    """Let the draft model's passes update its costs, as the policy updates the target's.

    Between passes of a large target they take longer than one after the other. Not for a replay, which has no
    passes of a target.
    """
    if draft is not None and costs.draft is not None:
        draft.on_forward = costs.draft.update


def measure_costs(model: Backend, effort: MeasurementEffort, tick: Callable[[float], None]) -> CachedCosts:
    cost = measure(model, seconds=effort.seconds, depths=effort.depths, rows=effort.rows, progress=tick)
    return CachedCosts(cost, effort=effort)


def as_costs(found: Mapping[str, CachedCosts]) -> DecodingCosts:
    small = found.get("draft")
    return DecodingCosts(found["target"].cost, None if small is None else small.cost, found["target"].step)


def save(target: Backend, draft: Backend | None, costs: DecodingCosts, *, warn: Warn = to_stderr) -> None:
    """Store the costs as updated by use. The last process wins."""
    for role, model in roles(target, draft).items():
        cost = costs.target if role == "target" else costs.draft
        if cost is None or jitter_warning(cost):
            continue
        key = cost_key(model, role)
        before = load(key, _silent)
        effort = NO_EFFORT if before is None else before.effort
        if not store(key, CachedCosts(cost, costs.step if role == "target" else 0.0, effort), warn):
            return  # one warning is enough


def roles(target: Backend, draft: Backend | None) -> dict[str, Backend]:
    return {"target": target} | ({} if draft is None else {"draft": draft})


def _silent(_line: str) -> None:
    """Ignore a repeated warning."""


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Show one line on a terminal, and remove it afterwards. quiet: show nothing."""
    shown = not quiet and sys.stderr is not None and sys.stderr.isatty()
    width = 0

    def show(role: str, share: float) -> None:
        nonlocal width
        if shown:
            line = f"{NOTICE}: {role} {share:.0%}"
            width = max(width, len(line))
            print(f"\r{line:{width}}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if width:
            print(f"\r{'':{width}}\r", end="", file=sys.stderr, flush=True)
