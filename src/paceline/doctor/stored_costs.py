"""What `paceline doctor` finds out about the passes of a loaded model, and of its draft model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from paceline.api import LLM
from paceline.backends.interface import Backend
from paceline.backends.registry import BackendSpec
from paceline.bench.provenance import provenance
from paceline.models.names import model_path
from paceline.profiling.pass_costs import (
    as_costs,
    cost_key,
    jitter_warning,
    measure_costs,
    roles,
    shared_machine,
)
from paceline.speculative.errors import PacelineError
from paceline.speculative.policy.cost_model import DecodingCosts
from paceline.storage.costs import CachedCosts, MeasurementEffort, load, store
from paceline.system.home import Warn

FORMAT = 1
# A draft model's passes are cheap, and hardly any has more rows than a target's step emits tokens.
DRAFT_SHARE, DRAFT_ROWS = 0.25, 16

Tick = Callable[[str, float], None]


@dataclass(frozen=True)
class Findings:
    """kept: the models whose costs were known from before. made: see provenance.
    doubts: by model, why nothing is concluded from its costs."""

    costs: DecodingCosts
    reused: tuple[str, ...]
    made: dict[str, Any]
    doubts: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """What `doctor --json` prints; `Costs.read` reads it."""
        models = {"target": self.costs.target, "draft": self.costs.draft}
        return {
            "format": FORMAT,
            **self.costs.as_dict(),
            "kept": list(self.reused),
            "noise": {
                role: cost.timing_jitter for role, cost in models.items() if cost and role not in self.reused
            },
            "doubts": dict(self.doubts),
            "made": self.made,
        }


def report_costs(
    llm: LLM, effort: MeasurementEffort, warn: Warn, tick: Tick, *, again: bool = False
) -> Findings:
    """Measure what was not measured before with as much effort, and keep it for whatever loads these models
    next. tick: told which model it is, and what share of its time is over."""
    found, doubts = dict[str, CachedCosts](), dict[str, str | None]()
    for role, model in roles(llm.target, llm.draft).items():
        requested = effort if role == "target" else for_a_draft(effort)
        found[role], doubts[role] = _examine(model, role, requested, warn, partial(tick, role), again)
    selected = tuple(role for role, value in doubts.items() if value is None)
    made = provenance(llm, asdict(effort) | {"again": again})
    return Findings(as_costs(found), selected, made, {role: value for role, value in doubts.items() if value})


def known_costs(model: BackendSpec, role: str) -> CachedCosts | None:
    """Return what was measured of a model that is run like this; None where nothing was."""
    from paceline.profiling.flash_attention import is_decided

    if not model_path(model.path).exists():
        return None
    try:
        if role == "draft":
            model = replace(model, settings=shared_machine(model.settings, model.path))
        return load(cost_key(model.replace(flash_attention=is_decided(model)), role), lambda _: None)
    except (PacelineError, ImportError, OSError):  # without the engine nothing was measured either
        return None


def _examine(
    model: Backend,
    role: str,
    request: MeasurementEffort,
    warn: Warn,
    tick: Callable[[float], None],
    again: bool,
) -> tuple[CachedCosts, str | None]:
    """A model's costs, and what makes them doubtful; None where they were known from before."""
    key = cost_key(model, role)
    request = replace(request, depths=tuple(min(depth, model.caps.n_ctx) for depth in request.depths))
    before = load(key, warn)
    if before is not None and before.effort.covers(request) and not again:
        return before, None
    found = measure_costs(model, request, tick)
    if before is not None:
        found.step = before.step
    value = jitter_warning(found.cost)
    if not value:
        store(key, found, warn)
    return found, value


def for_a_draft(effort: MeasurementEffort) -> MeasurementEffort:
    rows = tuple(n for n in effort.rows if n <= DRAFT_ROWS)
    return replace(effort, seconds=DRAFT_SHARE * effort.seconds, rows=rows)
