"""What the policy has learned about drafters, from one process to the next.

A small file per target, draft and machine holds what a call of each drafter gains and takes by kind of step,
and the weights of its calibrator. A process begins with it and unlearns it as fast as its first guesses."""

from __future__ import annotations

from collections.abc import Callable

from paceline.backends.interface import Backend
from paceline.profiling.pass_costs import cost_key
from paceline.speculative.errors import PacelineError
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.system import home
from paceline.system.home import Warn

FOLDER = "learned"


def restore(policy: GoodputPolicy, target: Backend, draft: Backend | None, warn: Warn) -> Callable[[], None]:
    """Let a policy begin with what earlier processes have learned, and return the function that stores what
    it has learned: the last process wins. `warn` is called about a file that cannot be used."""
    try:
        key = {"target": cost_key(target, "target"), "draft": draft and cost_key(draft, "draft")}
    except (PacelineError, OSError):  # a model without an identity
        return lambda: None
    home.load_record(FOLDER, key, policy.begin_with, warn, "drafters are tried anew")

    def keep() -> None:
        if (found := policy.learned) and policy.costs.is_reliable:
            home.write_record(FOLDER, key, found, warn, "the next process tries drafters anew")

    return keep
