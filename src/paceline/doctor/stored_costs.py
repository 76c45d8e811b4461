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
from paceline.models.names import place_of
from paceline.profiling.pass_costs import as_costs, beside, doubt, key_of, measured, roles
from paceline.speculative.errors import PacelineError
from paceline.speculative.policy.cost_model import DecodingCosts
from paceline.storage.costs import CachedCosts, MeasurementEffort, keep, recall
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
    kept: tuple[str, ...]
    made: dict[str, Any]
    doubts: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """What `doctor --json` prints; `Costs.read` reads it."""
        models = {"target": self.costs.target, "draft": self.costs.draft}
        return {
            "format": FORMAT,
            **self.costs.as_dict(),
            "kept": list(self.kept),
            "noise": {role: cost.noise for role, cost in models.items() if cost and role not in self.kept},
            "doubts": dict(self.doubts),
            "made": self.made,
        }


def examine(llm: LLM, effort: MeasurementEffort, warn: Warn, tick: Tick, *, again: bool = False) -> Findings:
    """Measure what was not measured before with as much effort, and keep it for whatever loads these models
    next. tick: told which model it is, and what share of its time is over."""
    found, doubts = dict[str, CachedCosts](), dict[str, str | None]()
    for role, model in roles(llm.target, llm.draft).items():
        asked = effort if role == "target" else for_a_draft(effort)
        found[role], doubts[role] = _examine(model, role, asked, warn, partial(tick, role), again)
    kept = tuple(role for role, said in doubts.items() if said is None)
    made = provenance(llm, asdict(effort) | {"again": again})
    return Findings(as_costs(found), kept, made, {role: said for role, said in doubts.items() if said})


def known_costs(model: BackendSpec, role: str) -> CachedCosts | None:
    """Return what was measured of a model that is run like this; None where nothing was."""
    from paceline.profiling.flash_attention import settled

    if not place_of(model.path).exists():
        return None
    try:
        if role == "draft":
            model = replace(model, settings=beside(model.settings, model.path))
        return recall(key_of(model.but(flash_attention=settled(model)), role), lambda _: None)
    except (PacelineError, ImportError, OSError):  # without the engine nothing was measured either
        return None


def _examine(
    model: Backend,
    role: str,
    asked: MeasurementEffort,
    warn: Warn,
    tick: Callable[[float], None],
    again: bool,
) -> tuple[CachedCosts, str | None]:
    """A model's costs, and what makes them doubtful; None where they were known from before."""
    key = key_of(model, role)
    asked = replace(asked, depths=tuple(min(depth, model.caps.n_ctx) for depth in asked.depths))
    before = recall(key, warn)
    if before is not None and before.effort.covers(asked) and not again:
        return before, None
    found = measured(model, asked, tick)
    if before is not None:
        found.step = before.step
    said = doubt(found.cost)
    if not said:
        keep(key, found, warn)
    return found, said


def for_a_draft(effort: MeasurementEffort) -> MeasurementEffort:
    rows = tuple(n for n in effort.rows if n <= DRAFT_ROWS)
    return replace(effort, seconds=DRAFT_SHARE * effort.seconds, rows=rows)
