"""The costs of passes on this machine: stored, or measured once and updated by use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from typing import Any, TypeVar

from paceline.backends.interface import Backend, ModelSetup
from paceline.models.names import model_path
from paceline.speculative.errors import PacelineError
from paceline.speculative.policy.costs import TOKEN_COUNTS, DecodingCosts, PassCosts, implausibility, measure
from paceline.speculative.policy.ledger import MAX_SHOWN_ROWS, break_even_reason
from paceline.storage.costs import NO_EFFORT, CachedCosts, MeasurementEffort, load, store
from paceline.system.home import Warn, to_stderr

M = TypeVar("M", bound=ModelSetup)
# The effort when a model is first loaded. Use adds what it leaves out (speculative/policy/costs.py);
# `paceline doctor` measures for longer.
QUICK_EFFORT = {
    "target": MeasurementEffort(4.0, (256, 1024), TOKEN_COUNTS),
    "draft": MeasurementEffort(0.7, (256,), (1, 2, 4, 8)),
}
# Costs measured on a busier machine are not stored.
MAX_TIMING_JITTER = 2.0
MAX_LOST_SHARE = 0.25  # of the threads' processors, to other programs


def cost_key(model: ModelSetup, role: str) -> dict[str, Any]:
    """Return all that a model's costs depend on. role: a draft model is measured with less effort.
    Raises MissingExtraError without the backend, and OSError without the model."""
    from paceline.hardware.threads import logical_cores
    from paceline.system.home import cpu_name

    return {"role": role, "processor": cpu_name(), "cores": logical_cores(), **model.identity()}


def stored_costs(target: ModelSetup, draft: ModelSetup | None = None) -> DecodingCosts | None:
    """Return the stored costs of the models with these settings; None if one was never measured."""
    found = dict[str, CachedCosts]()
    for role, model in roles(target, draft).items():
        with suppress(PacelineError, ImportError, OSError):  # without the engine nothing was measured
            if model_path(model.path).exists() and (cached := load(cost_key(model, role), _silent)):
                found[role] = cached
                continue
        return None
    return as_costs(found)


def costs_of(target: Backend, draft: Backend | None = None, *, warn: Warn = to_stderr) -> DecodingCosts:
    """Return the costs of both models; unknown ones are measured in a few seconds.
    Costs by which no draft pays are measured once more, for twice as long. Call this before the models are
    used: it takes one session of each, and drops the cached prefixes of closed sessions."""
    found: dict[str, CachedCosts] = {}
    for role, model in roles(target, draft).items():
        key, effort = cost_key(model, role), QUICK_EFFORT[role]
        cached = load(key, warn)
        if cached is not None:
            if role == "draft" or not never_pays(cached.cost) or cached.effort.seconds > effort.seconds:
                found[role] = cached
                continue
            effort = replace(effort, seconds=2 * effort.seconds)
        what = f"pass costs of the {role}"
        _show_on_terminal(f"measuring {what}, about {effort.seconds:.0f} s, only the first time")
        new = measure_costs(model, effort)
        if cached is not None:
            new.step = cached.step
        found[role] = new if cached is None or not new.doubt else cached
        if new.doubt:
            used = "used for this run only" if cached is None else "the stored ones stay in use"
            busy = f"{what} were measured on a busy machine ({new.doubt})"
            warn(f"{busy}: {used}, and the next run measures again")
            continue
        _show_on_terminal(f"{what} measured on a calm machine, and stored: {summary(new.cost)}")
        if not store(key, new, warn):
            warn = _silent  # one warning is enough
    return as_costs(found)


def summary(cost: PassCosts) -> str:
    """Return the costs of some passes relative to one row, as a phrase."""
    depth = cost.depths[0]
    single = cost.seconds(1, depth)
    measured = [n for n in (2, 4, 8) if n in cost.rows]
    several = ", ".join(f"{n} rows {cost.seconds(n, depth) / single:.2f}x" for n in measured)
    return f"one row {single * 1e3:.3g} ms{several and ', ' + several}"


def doubt_about(cost: PassCosts) -> str:
    """Return why costs tell too little to be stored; "" if they are sound."""
    if cost.timing_jitter >= MAX_TIMING_JITTER:
        factor = f"{cost.timing_jitter:.1f}" if cost.timing_jitter < 100 else "over 100"
        apart = f"lie {factor}x apart" if isfinite(cost.timing_jitter) else "are too few to compare"
        return f"times of one and the same pass {apart}"
    return implausibility(cost.table)


def never_pays(cost: PassCosts) -> bool:
    """Return True if no acceptance rate makes a draft pay. False for a curve of one row."""
    curves = (cost.curve(MAX_SHOWN_ROWS, depth) for depth in cost.depths)
    return cost.max_batch_tokens > 1 and all(break_even_reason(curve, None).never for curve in curves)


def refresh(costs: DecodingCosts, draft: Backend | None) -> None:
    """Let the draft model's passes update its costs, as the policy updates the target's.
    Between passes of a large target they take longer than one after the other. Not for a replay, which has no
    passes of a target."""
    if draft is not None and costs.draft is not None:
        draft.on_forward = costs.draft.update


def measure_costs(
    model: Backend, effort: MeasurementEffort, tick: Callable[[float], None] = lambda _share: None
) -> CachedCosts:
    """Measure, and judge the measurement: `doubt` says why it must not be stored."""
    from paceline.hardware.cores import OtherLoad, cores_taken
    from paceline.hardware.threads import logical_cores

    with OtherLoad() as load:
        cost = measure(model, seconds=effort.seconds, depths=effort.depths, rows=effort.rows, progress=tick)
    doubt, logical = doubt_about(cost), logical_cores()
    threads = model.settings.get("threads", 1)
    if not doubt and cores_taken(load.processors, threads, logical, MAX_LOST_SHARE * threads):
        doubt = f"other programs kept {load.processors:.1f} of {logical} processors busy"
    return CachedCosts(cost, effort=effort, doubt=doubt)


def as_costs(found: Mapping[str, CachedCosts]) -> DecodingCosts:
    small = found.get("draft")
    sound = not any(it.doubt for it in found.values())
    target = found["target"]
    return DecodingCosts(target.cost, None if small is None else small.cost, target.step, sound)


def save(target: Backend, draft: Backend | None, costs: DecodingCosts) -> None:
    """Store the costs as updated by use, unless passes took far longer than usual. The last process wins."""
    for role, model in roles(target, draft).items():
        cost = costs.target if role == "target" else costs.draft
        if cost is None or not costs.is_reliable or doubt_about(cost):
            continue
        key = cost_key(model, role)
        before = load(key, _silent)
        effort = NO_EFFORT if before is None else before.effort
        if not store(key, CachedCosts(cost, costs.step if role == "target" else 0.0, effort), to_stderr):
            return  # one warning is enough


def roles(target: M, draft: M | None) -> dict[str, M]:
    return {"target": target} | ({} if draft is None else {"draft": draft})


def _show_on_terminal(line: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        to_stderr(line)


def _silent(_line: str) -> None:
    """Ignore a repeated warning."""
