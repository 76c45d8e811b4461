"""What `paceline doctor` finds out about the passes of a loaded model, and of its draft model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from paceline.core.cost import Costs
from paceline.costing import NOISY, as_costs, key_of, measured, roles
from paceline.lab.provenance import provenance
from paceline.llm import LLM
from paceline.machine.costs import Effort, keep, recall
from paceline.machine.home import Warn

FORMAT = 1
# A draft model's passes are cheap, and hardly any has more rows than a target's step emits tokens.
DRAFT_SHARE, DRAFT_ROWS = 0.25, 16

Tick = Callable[[str, float], None]


@dataclass(frozen=True)
class Findings:
    """kept: the models whose costs were known from before. made: see provenance."""

    costs: Costs
    kept: tuple[str, ...]
    made: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """What `doctor --json` prints; `Costs.read` reads it."""
        models = {"target": self.costs.target, "draft": self.costs.draft}
        return {
            "format": FORMAT,
            **self.costs.as_dict(),
            "kept": list(self.kept),
            "noise": {role: cost.noise for role, cost in models.items() if cost and role not in self.kept},
            "made": self.made,
        }


def examine(llm: LLM, effort: Effort, warn: Warn, tick: Tick, *, again: bool = False) -> Findings:
    """Measure what was not measured before with as much effort, and keep it for whatever loads these models
    next. tick: told which model it is, and what share of its time is over."""
    found, kept = {}, []
    for role, model in roles(llm.target, llm.draft).items():
        key = key_of(model, role)
        asked = effort if role == "target" else for_a_draft(effort)
        asked = replace(asked, depths=tuple(min(depth, model.caps.n_ctx) for depth in asked.depths))
        before = recall(key, warn)
        if before is not None and before.effort.covers(asked) and not again:
            found[role] = before
            kept.append(role)
            continue
        found[role] = measured(model, asked, partial(tick, role))
        if before is not None:
            found[role].step = before.step
        if found[role].cost.noise < NOISY:
            keep(key, found[role], warn)
    return Findings(as_costs(found), tuple(kept), provenance(llm, asdict(effort) | {"again": again}))


def for_a_draft(effort: Effort) -> Effort:
    rows = tuple(n for n in effort.rows if n <= DRAFT_ROWS)
    return replace(effort, seconds=DRAFT_SHARE * effort.seconds, rows=rows)
