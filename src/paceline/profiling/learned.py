"""What the policy has learned about drafters, from one process to the next.

A small file per target, draft and machine holds what a call of each drafter gains and takes by kind of step,
and the weights of its calibrator. A process begins with it and unlearns it as fast as its first guesses."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from paceline.backends.interface import Backend
from paceline.profiling.pass_costs import cost_key
from paceline.speculative.errors import PacelineError
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.system import home
from paceline.system.home import Warn

FOLDER = "learned"


def restore(policy: GoodputPolicy, target: Backend, draft: Backend | None, warn: Warn) -> None:
    """Let a policy begin with what earlier processes have learned. `warn` is called about a damaged file."""
    with suppress(PacelineError, OSError):  # a model without an identity
        home.load_record(FOLDER, _key(target, draft), policy.begin_with, warn, "drafters are tried anew")


def keep(policy: GoodputPolicy, target: Backend, draft: Backend | None, warn: Warn) -> None:
    """Store what a policy has learned. The last process wins."""
    if (found := policy.learned) and policy.costs.is_reliable:
        home.write_record(FOLDER, _key(target, draft), found, warn, "the next process tries drafters anew")


def _key(target: Backend, draft: Backend | None) -> dict[str, Any]:
    return {"target": cost_key(target, "target"), "draft": draft and cost_key(draft, "draft")}
