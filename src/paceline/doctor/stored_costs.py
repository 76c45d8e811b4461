"""The stored costs of passes, as `paceline doctor` measures and reports them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from paceline.api import LLM
from paceline.backends.registry import BackendSpec
from paceline.bench.provenance import provenance
from paceline.models.names import model_path
from paceline.profiling.pass_costs import as_costs, cost_key, measure_costs, roles
from paceline.speculative.errors import PacelineError
from paceline.storage.costs import CachedCosts, MeasurementEffort, load, store
from paceline.system.home import Warn

FORMAT = 1
# A draft model's passes are cheap, and hardly any has more rows than a target's step emits tokens.
DRAFT_SHARE, DRAFT_ROWS = 0.25, 16

Tick = Callable[[str, float], None]


def report_costs(
    llm: LLM, effort: MeasurementEffort, warn: Warn, tick: Tick, *, again: bool = False
) -> dict[str, Any]:
    """Measure and store the costs that were not measured before with as much effort.
    Return the record of `doctor --json`, which DecodingCosts.read reads. stored: the models whose costs were
    known. doubts: by model, why nothing is concluded from its costs. tick: called with
    the model and the completed share."""
    found, doubts, reused = dict[str, CachedCosts](), dict[str, str](), list[str]()
    for role, model in roles(llm.target, llm.draft).items():
        depths = tuple(min(depth, model.caps.n_ctx) for depth in effort.depths)
        request = replace(effort, depths=depths)
        if role == "draft":
            rows = tuple(n for n in effort.rows if n <= DRAFT_ROWS)
            request = replace(request, seconds=DRAFT_SHARE * effort.seconds, rows=rows)
        key = cost_key(model, role)
        cached = load(key, warn)
        if cached is not None and cached.effort.covers(request) and not again:
            found[role] = cached
            reused.append(role)
            continue
        found[role] = measured = measure_costs(model, request, partial(tick, role))
        if cached is not None:
            measured.step = cached.step
        if measured.doubt:
            doubts[role] = measured.doubt
        else:
            store(key, measured, warn)
    return {
        "format": FORMAT,
        **as_costs(found).as_dict(),
        "stored": reused,
        "noise": {role: it.cost.timing_jitter for role, it in found.items() if role not in reused},
        "doubts": doubts,
        "provenance": provenance(llm, asdict(effort) | {"again": again}),
    }


def known_costs(model: BackendSpec, role: str) -> CachedCosts | None:
    """Return the stored costs of a model with these settings, or None."""
    if not model_path(model.path).exists():
        return None
    try:
        return load(cost_key(model, role), lambda _: None)
    except (PacelineError, ImportError, OSError):  # without the engine nothing was measured
        return None
