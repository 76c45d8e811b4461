"""What deciding costs: the policy's own time per step, with a draft and without.

    python benchmarks/decision.py [--steps 2000]

One drafter proposes a draft of that shape at every step, whose tokens are right seven times of ten; "with
another" has a second one that proposes a chain of 7. "no guess": two drafters have none. "too fast": a pass
takes a millisecond on the clock that the policy sees, and no draft pays. No model runs. Everything that the
policy does is timed: budgets, calls of drafters, choice and learning. Medians over the steps, in one thread;
the loop of plain Python adds a thousand numbers, so that machines can be compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from time import perf_counter
from timeit import repeat
from typing import Any

import numpy as np

from paceline.backends.recorded import Recording, ReplayTarget, numeric_vocab
from paceline.bench.replay.simulated import SimulatedTarget, VirtualClock
from paceline.drafters.compose import PortfolioDrafter
from paceline.speculative.interfaces import Budget, Features, RequiredOutputs, Session
from paceline.speculative.loop import advance_requests, start_request
from paceline.speculative.policy.costs import MIN_CONTEXT_BUCKET, TOKEN_COUNTS, DecodingCosts, PassCosts
from paceline.speculative.policy.goodput import GoodputBudget, GoodputPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.stats import Step
from paceline.speculative.tree import DraftTree

SHAPES = (
    "no guess",
    "too fast",
    "chain of 7",
    "chain of 7 with another",
    "chain of 15",
    "tree of 64",
    "tree of 64 with another",
)

SHOULD_CALL = GoodputBudget.should_call


class NoMemory:
    def update(self, step: Step, features: Features) -> None:
        """The draft does not depend on the text."""

    def close(self) -> None:
        """Nothing is held."""


class Same:
    """Proposes a tree whose first child of every node is right as often as `right` says."""

    required_outputs = RequiredOutputs()

    def __init__(self, name: str, parents: Sequence[int], text: Sequence[int], right: float) -> None:
        self.name = name
        self._parents, self._text = tuple(parents), text
        self._rng, self._right = np.random.default_rng(0), right
        self.at = 0

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> NoMemory:
        return NoMemory()

    def propose(self, batch: Sequence[tuple[NoMemory, Budget]]) -> list[DraftTree]:
        tokens: list[int] = []
        depth = {-1: 0}
        first: set[int] = set()
        for node, parent in enumerate(self._parents):
            depth[node] = depth[parent] + 1
            right = parent not in first and self._rng.random() < self._right
            first.add(parent)
            tokens.append(self._text[self.at + depth[parent]] if right else 90 + node)
        score = tuple(0.9 - 0.4 * (parent != node - 1) for node, parent in enumerate(self._parents))
        return [DraftTree(tuple(tokens), self._parents, score, (self.name,) * len(tokens))] * len(batch)

    def close(self) -> None:
        """Nothing is held."""


class Clocked:
    """A policy, and the seconds it takes."""

    def __init__(self, policy: GoodputPolicy) -> None:
        self.policy, self.spent = policy, 0.0
        GoodputBudget.should_call = self._timed(SHOULD_CALL)  # type: ignore[method-assign]
        self.budget = self._timed(policy.budget)
        self.select = self._timed(policy.select)
        self.update = self._timed(policy.update)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = perf_counter()
            try:
                return call(*args)
            finally:
                self.spent += perf_counter() - began

        return timed


def shape(name: str) -> list[int]:
    """Parents: a chain; or a trunk of 16, each of whose nodes has three siblings."""
    if name.startswith("chain"):
        return list(range(-1, int(name.split()[2]) - 1))
    parents: list[int] = []
    trunk = -1
    for _ in range(16 if name.startswith("tree") else 0):
        parents += [trunk] * 4
        trunk = len(parents) - 4
    return parents


def measure(name: str, steps: int) -> float:
    """Return the microseconds of a step, the median of all, and of the least of five tries."""
    tries = []
    text = np.random.default_rng(1).integers(80, size=40 * steps).tolist()
    per_row = 0.001 if name == "too fast" else 0.0005
    for _ in range(5):
        # On a clock where passes take what they cost, so that drafters are worth calling at every step.
        clock = VirtualClock()
        cost = PassCosts({MIN_CONTEXT_BUCKET: {n: 0.02 + per_row * n for n in TOKEN_COUNTS}})
        if name == "too fast":
            cost = PassCosts({MIN_CONTEXT_BUCKET: {n: per_row * n for n in TOKEN_COUNTS}})
        recorded = ReplayTarget(numeric_vocab(200), [Recording((1,), tuple(text))])
        target = SimulatedTarget(recorded, cost, clock)
        parents = shape(name)
        two = [Same("suffix", parents, text, 0.7), Same("lookup", parents[:7], text, 0.7)]
        rule = GoodputPolicy(DecodingCosts(cost), depth=31, nodes=64, width=64, clock=clock)
        policy = Clocked(rule)
        drafter = PortfolioDrafter(two if "of" not in name or "another" in name else two[:1])
        request = start_request(
            target, drafter, GenerationRequest(prompt=[1], max_tokens=len(text), ignore_eos=True)
        )
        each = []
        for _ in range(steps):
            before = policy.spent
            if name == "too fast":
                request.carried_over_seconds += 0.0001
            step = advance_requests(target, drafter, policy, [request], clock)[0][1]  # type: ignore[arg-type]
            each.append(policy.spent - before)
            for one in two:
                one.at += len(step.tokens)
        tries.append(1e6 * float(np.median(each)))
    return min(tries)


def plain_python() -> float:
    """Return the microseconds of a loop that adds a thousand numbers, to compare machines."""
    return 1e3 * min(repeat("for i in range(1000): x = x + i", "x = 0", number=1000, repeat=5))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=500)
    arguments = parser.parse_args()
    print(f"us per step (a loop of plain Python: {plain_python():.1f} us)")
    for name in SHAPES:
        print(f"{name:23} {measure(name, arguments.steps):6.1f}", flush=True)


if __name__ == "__main__":
    main()
