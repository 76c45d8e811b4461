"""The one decision rule: draft what raises the rate.

At the best achievable rate (tokens a second) a set of draft nodes N is worth verifying where it maximises

    1 + sum of survivals  -  rate * (T_draft(N) + T_verify(1 + |N|, depth))

Survivals are calibrated (calibrate.py), costs measured (cost.py), and the rate is what has been reached
lately, at least that of plain decoding. A node's survival is at most its parent's, so that the best n nodes
are the n likeliest, and the best n is found by trying each: the curve of costs has steps, and a draft ends at
one of its edges. Requests that share a pass share its cost, and their nodes compete in one list.
(The objective is FIELD's goodput: TurboSpec, arXiv:2406.14066, without a model of the acceptance.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from paceline.core.calibrate import Calibration
from paceline.core.cost import Costs
from paceline.core.policy import fitting
from paceline.core.ports import Budget
from paceline.core.record import Step
from paceline.core.tree import ROOT, DraftTree

if TYPE_CHECKING:
    from paceline.core.decode import Request

LATELY = 0.88  # what is left of a step's weight after the next one: a memory of some eight steps
RECENT = 1 / 8  # how much the last guess says of how a request's guesses fare
FURTHER = 8  # levels that a drafter which computes looks ahead, for the next edge of the curve
SURE = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)  # of the cheap draft's first token: kinds of steps told apart
PROBING = 0.01  # of all time, at most, goes into asking drafters that did not pay
LONGEST_PAUSE = 512  # tokens between two such probes
SLIGHT = 0.002  # of a plain pass: a drafter that takes less is asked without asking what it is worth


@dataclass
class Worth:
    """What one drafter brings a step it is asked at. gain: tokens, after their verification, by how sure the
    draft was before it; seconds: what asking it takes; pause: tokens until it is tried again."""

    gain: list[float] = field(default_factory=lambda: [1.0] * (len(SURE) + 1))
    seconds: float = 0.0
    level: float = 0.0
    asked: int = 0
    pause: int = 8
    waited: int = 0

    def took(self, seconds: float, levels: int) -> None:
        share = max(1 / 8, 1 / (1 + self.asked))
        # One hiccup must not put a drafter off for long.
        if self.asked:
            seconds = min(seconds, 4 * self.seconds)
        self.seconds += share * (seconds - self.seconds)
        self.level += share * (seconds / max(levels, 1) - self.level)
        self.asked += 1


@dataclass
class State:
    """What is known of one request. recent: how the last guesses of each drafter fared, -1 to 1."""

    recent: dict[str, float] = field(default_factory=dict)


class Proposal:
    """One request's draft in the making: what was asked, when, and what the draft was worth before."""

    __slots__ = ("asked", "before", "best", "gained", "paid", "sure")

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []  # drafters and when
        self.before = 0.0  # worth of the draft before the drafter that is being asked
        self.sure = 0
        self.paid = False  # whether that drafter was asked because it pays; otherwise it is a probe
        self.gained, self.best = 0.0, 0.0  # along what a drafter that computes has drafted


@dataclass(frozen=True, slots=True)
class RateBudget(Budget):
    """A budget that asks the policy. It belongs to one proposal."""

    rate: Any = None
    state: Any = None
    proposal: Any = None

    def asks(self, drafter: str, draft: DraftTree) -> bool:
        return bool(self.rate.asks(self, drafter, draft))

    def survival(self, drafter: str, likely: float, depth: int, parent: float) -> float:
        recent = self.state.recent.get(drafter, 0.0)
        return float(parent * self.rate.calibration.of(drafter).probability(likely, depth, recent))

    def goes_on(self, likeliest: float, drafted: int, depth: int, survival: float = 1.0) -> bool:
        return drafted < self.nodes and depth < self.depth and survival >= self.rate.slightest

    def deepens(self, drafted: int, depth: int, survival: float) -> bool:
        return depth < self.depth and bool(self.rate.deepens(self, drafted, depth, survival))


class Rate:
    """costs: what passes take here, kept up to date. nodes, depth, width: the most that a draft may have."""

    def __init__(
        self,
        costs: Costs,
        *,
        depth: int = 24,
        nodes: int = 48,
        width: int = 4,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.costs, self.cost = costs, costs.target
        self._most = (depth, nodes, width)
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Everything learned from requests; what passes cost stays."""
        self.calibration = Calibration()
        self._states: WeakKeyDictionary[Request, State] = WeakKeyDictionary()
        self._worth: dict[str, Worth] = {}
        self._tokens = self._seconds = 0.0  # of late
        self._spent = self._probing = 0.0  # seconds in all
        self.rate = 0.0
        self.slightest = 0.0
        self._curve: list[float] = [0.0, 1.0]
        self._rows = 1

    # What the loop asks.

    def budgets(self, requests: Sequence[Request]) -> list[RateBudget]:
        depth, nodes, width = self._most
        self._rows = len(requests)
        deepest = max(len(request.session.tokens) for request in requests)
        self._curve = self.cost.curve(self._rows + nodes * min(self._rows, 8), deepest)
        plain = self._rows / self._curve[self._rows]
        self.rate = max(plain, self._tokens / self._seconds if self._seconds > 0.0 else 0.0)
        self.slightest = self._dearest_bargain()
        return [
            RateBudget(
                depth,
                nodes,
                width,
                p_split=0.0,
                rate=self,
                state=self._state(request),
                proposal=Proposal(),
            )
            for request in requests
        ]

    def _dearest_bargain(self) -> float:
        """The least survival that could pay for a row, were it the best bargain on the curve."""
        curve, rows = self._curve, self._rows
        least = min((curve[n] - curve[rows]) / (n - rows) for n in range(rows + 1, len(curve)))
        return max(0.01, 0.5 * self.rate * least)

    def _state(self, request: Request) -> State:
        found = self._states.get(request)
        if found is None:
            found = self._states[request] = State()
        return found

    def choose(
        self, requests: Sequence[Request], budgets: Sequence[Budget], drafts: Sequence[DraftTree]
    ) -> list[DraftTree]:
        drafts = list(drafts)
        asked = self._clock()
        known = [self._survivals(b.state, d) for b, d in zip(budgets, drafts, strict=True)]  # type: ignore[attr-defined]
        queue: list[tuple[float, int, int]] = []
        fixed = 0  # nodes that are verified whatever they are worth
        for at, (tree, survival) in enumerate(zip(drafts, known, strict=True)):
            if tree.q is not None:
                fixed += len(tree)
            else:
                queue += [(-s, at, node) for node, s in enumerate(survival)]
        queue.sort()
        kept = fitting(queue, drafts, budgets)
        n, _ = self._best([-s for s, _, _ in kept], self._rows + fixed)
        taken: list[list[bool]] = [[False] * len(tree) for tree in drafts]
        for _, at, node in kept[:n]:
            taken[at][node] = True
        out: list[DraftTree] = []
        for tree, survival, keep, budget in zip(drafts, known, taken, budgets, strict=True):
            self._learn_worth(budget, tree, survival, asked)
            out.append(_only(tree, survival, keep))
        return out

    def observe(self, requests: Sequence[Request], steps: Sequence[Step]) -> None:
        rows = len(steps) + sum(len(step.tree) for step in steps)
        deepest = max(len(r.session.tokens) - len(s.tokens) for r, s in zip(requests, steps, strict=True))
        if all(request.stats.steps > 1 for request in requests):  # a first pass may hold a prompt's end
            self.cost.observe(rows, deepest, sum(step.times.forward for step in steps))
        # A hiccup of the machine says nothing of what drafting is worth: the pass counts what it costs.
        took = self.cost.seconds(rows, deepest)
        took += sum(min(step.times.total - step.times.forward, took) for step in steps)
        self._tokens = LATELY * self._tokens + sum(len(step.tokens) for step in steps)
        self._seconds = LATELY * self._seconds + took
        self._spent += took
        for worth in self._worth.values():
            worth.waited += len(steps[0].tokens)
        for request, step in zip(requests, steps, strict=True):
            self._learn(self._state(request), step)

    # What a budget asks.

    def asks(self, budget: RateBudget, drafter: str, draft: DraftTree) -> bool:
        """By what it brought at steps like this one, or to see whether that has changed."""
        proposal, now = budget.proposal, self._clock()
        worth = self._worth.setdefault(drafter, Worth())
        self._took(proposal, now, draft)
        proposal.gained, proposal.best, proposal.before = 0.0, 0.0, 0.0
        pays = True
        if worth.asked > 3 and worth.seconds > SLIGHT * self._curve[self._rows]:
            survival = sorted(self._survivals(budget.state, draft), reverse=True)
            proposal.before = self._best(survival, self._rows)[1]
            proposal.sure = sum(survival[0] > edge for edge in SURE) if survival else 0
            pays = worth.gain[proposal.sure] > self.rate * worth.seconds
            if not pays:
                if worth.waited < worth.pause or self._probing + worth.seconds > PROBING * self._spent:
                    return False
                self._probing += worth.seconds
        proposal.paid = pays
        worth.waited = 0
        proposal.asked.append((drafter, self._clock()))
        return True

    def deepens(self, budget: RateBudget, drafted: int, depth: int, survival: float) -> bool:
        """Whether a path goes on: the nodes behind this one, guessed to be as likely as it, against what it
        takes to compute and to verify them."""
        proposal = budget.proposal
        name = proposal.asked[-1][0] if proposal.asked else ""
        level = self._worth[name].level if name in self._worth else 0.0
        proposal.gained += survival
        curve, rows = self._curve, self._rows + depth
        proposal.best = max(proposal.best, proposal.gained - self.rate * (curve[rows] - curve[self._rows]))
        each = survival ** (1 / depth)
        gained, reached = proposal.gained, survival
        for m in range(1, min(FURTHER, len(curve) - 1 - rows, budget.depth - depth) + 1):
            reached *= each
            gained += reached
            cost = self.rate * (m * level + curve[rows + m] - curve[self._rows])
            if gained - cost > proposal.best:
                return True
        return False

    # What is known.

    def _survivals(self, state: State, tree: DraftTree) -> list[float]:
        """Calibrated: of each node, the chance that it is reached and accepted."""
        out: list[float] = []
        if not tree.tokens:
            return out
        conditional = self._conditionals(state, tree)
        for parent, p in zip(tree.parents, conditional, strict=True):
            out.append(p if parent == ROOT else out[parent] * p)
        for probe in tree.probe:
            out[probe] = 0.0
        return out

    def _conditionals(self, state: State, tree: DraftTree) -> list[float]:
        """Of each node, the chance that it is accepted where its parent is; siblings' add up to 1 at most."""
        calibration, recent = self.calibration, state.recent
        depths = tree.depths()
        said = tree.said or [((name, score),) for name, score in zip(tree.source, tree.score, strict=True)]
        voices: dict[int, set[str]] = {}
        for parent, who in zip(tree.parents, said, strict=True):
            voices.setdefault(parent, set()).update(name for name, _ in who)
        out: list[float] = []
        sums: dict[int, float] = {}
        for parent, who, depth in zip(tree.parents, said, depths, strict=True):
            best = 0.0
            for name, score in who:
                p = calibration.of(name).probability(score, depth, recent.get(name, 0.0))
                best = max(best, p)
            if len(voices[parent]) > 1:
                best = calibration.of(_pattern(who, voices[parent])).probability(best, depth)
            out.append(best)
            sums[parent] = sums.get(parent, 0.0) + best
        return [
            p / sums[parent] if sums[parent] > 1.0 else p for p, parent in zip(out, tree.parents, strict=True)
        ]

    def _best(self, survival: Sequence[float], rows: int) -> tuple[int, float]:
        """How many of the survivals, which descend, are worth their rows beside `rows` others, and what they
        are worth in tokens."""
        curve, rate = self._curve, self.rate
        best, most, gained, base = 0, 0.0, 0.0, rate * curve[rows]
        for n, s in enumerate(survival[: len(curve) - 1 - rows], 1):
            gained += s
            worth = gained + base - rate * curve[rows + n]
            if worth > most:
                best, most = n, worth
        return best, most

    # What is learned.

    def _took(self, proposal: Proposal, now: float, draft: DraftTree) -> None:
        """Close the clock of the drafter that was asked before."""
        if proposal.asked:
            name, since = proposal.asked[-1]
            depths = draft.depths()
            levels = max(
                (d for d, source in zip(depths, draft.source, strict=True) if source == name), default=1
            )
            self._worth[name].took((now - since) / self._rows, levels)

    def _learn_worth(self, budget: Any, tree: DraftTree, survival: list[float], now: float) -> None:
        """What the last drafter that was asked has added to the draft before it."""
        proposal = budget.proposal
        if not proposal.asked:
            return
        self._took(proposal, now, tree)
        name = proposal.asked[-1][0]
        worth = self._worth[name]
        gain = self._best(sorted(survival, reverse=True), self._rows)[1] - proposal.before
        worth.gain[proposal.sure] += (gain - worth.gain[proposal.sure]) / 8
        if gain > self.rate * worth.seconds:
            worth.pause = 8
        elif not proposal.paid:
            worth.pause = min(2 * worth.pause, LONGEST_PAUSE)

    def _learn(self, state: State, step: Step) -> None:
        """Every guess along the emitted text, verified or not, has an outcome."""
        tree = step.tree.proposed
        if not tree.tokens:
            return
        said = tree.said or [((name, score),) for name, score in zip(tree.source, tree.score, strict=True)]
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(tree.parents):
            if node not in tree.probe:
                children.setdefault(parent, []).append(node)
        at, recent = ROOT, state.recent
        for depth, token in enumerate(step.tokens, 1):
            nodes = children.get(at)
            if nodes is None:
                break
            voices = {name for node in nodes for name, _ in said[node]}
            right = next((node for node in nodes if tree.tokens[node] == token), None)
            for node in nodes:
                best = 0.0
                for name, score in said[node]:
                    calibrator, mood = self.calibration.of(name), recent.get(name, 0.0)
                    best = max(best, calibrator.probability(score, depth, mood))
                    calibrator.observe(score, depth, mood, node == right)
                if len(voices) > 1:
                    self.calibration.of(_pattern(said[node], voices)).observe(best, depth, 0.0, node == right)
            if depth == 1:
                for name in voices:
                    hit = right is not None and any(who == name for who, _ in said[right])
                    mood = recent.get(name, 0.0)
                    recent[name] = mood + RECENT * ((1.0 if hit else -1.0) - mood)
            if right is None:
                break
            at = right


def _pattern(who: Sequence[tuple[str, float]], voices: set[str]) -> str:
    """Who says it, and who says something else there."""
    names = [name for name, _ in who]
    return "+".join(names) + "|" + "+".join(sorted(voices.difference(names)))


def _only(tree: DraftTree, survival: Sequence[float], keep: Sequence[bool]) -> DraftTree:
    if tree.q is not None or not tree.tokens:
        return tree
    whole = tree
    if not any(keep):
        return DraftTree(asked=tree.asked, whole=whole)
    chosen = tree.only(keep)
    kept = tuple(s for s, k in zip(survival, keep, strict=True) if k)
    object.__setattr__(chosen, "survival", kept)
    object.__setattr__(chosen, "whole", whole)
    return chosen
