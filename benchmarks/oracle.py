"""The oracle bound: the least time in which a recorded answer could have been decoded with the same
proposals, by one who knows every outcome in advance.

At position t of the answer m(t) is the longest proposed path that agrees with what was recorded. One who
knows that verifies n <= m(t) nodes of it and nothing else, and goes on at t + n + 1. Backwards from the end:

    best(t) = min over n of   step + T_draft(n) + min_{r >= 1 + n} T_verify(r, depth) + best(t + n + 1)

The pass over more rows than needed is allowed, since more can cost less. T_draft is what at least n tokens of
a draft model take, one pass each of its cheapest; what costs no pass counts as free. No policy is faster on
the same proposals. How near one comes depends on what can be known beforehand: this is no target.

What is proposed: every drafter by itself is asked at every position for as much as the policy has asked for
at any. Whatever the played run itself proposed joins in. Drafters whose proposals depend on more than the
text are refused: what they would have proposed elsewhere depends on what was decoded there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.backends.recorded import Recording, ReplayTarget
from paceline.bench.method import Method
from paceline.bench.replay.replay import MethodReplay, ReplayContext, replay_recording
from paceline.bench.replay.traces import Trace
from paceline.drafter_factory import make_drafter
from paceline.drafter_table import DRAFT, users
from paceline.drafters.compose import ComposedDrafter, PortfolioDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.parts import MODEL_SOURCE
from paceline.engine import InferenceEngine
from paceline.settings import Drafting
from paceline.speculative.interfaces import (
    NO_BUDGET,
    Budget,
    Drafter,
    DrafterState,
    Features,
    LearningDrafter,
    RequiredOutputs,
    Session,
)
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.policy.interface import DraftPolicy, FixedPolicy
from paceline.speculative.policy.ledger import DraftingSummary
from paceline.speculative.request import ActiveRequest
from paceline.speculative.stats import Step
from paceline.speculative.tree import EMPTY, ROOT, DraftTree


def unbound(drafting: Drafting, draft: bool) -> str | None:
    """Why there is no bound for a method, None where there is one. draft: there is a draft model."""
    if others := [row.name for row in drafting.rows if row.window]:
        return f"{others[0]} proposes by what was verified before, not by the text alone"
    if drafting.draft_temp > 0 and draft and users(drafting.drafters, DRAFT):
        return "what the draft model samples is not told by the text"
    return None


def paid(drafter: Drafter, drafting: Drafting) -> frozenset[str]:
    """The sources whose tokens take a pass of the draft model each: its own, where nobody drafts for it and
    none of its tokens can be several of the target's."""
    own = [one for one in leaves(drafter) if MODEL_SOURCE in one.name.split(",")]
    alone = drafting.cross_vocab == "off" and all(isinstance(one, ModelDrafter) for one in own)
    return frozenset({MODEL_SOURCE} if alone else ())


def wide(most: Budget) -> tuple[Budget, ...]:
    """All that may be proposed within `most`: as a chain, and as trees where they are allowed. What a tree
    spends on branches can be missing from its length, so that none of them holds all of the others."""
    chain = Budget(most.depth, min(most.nodes, most.depth), gumbel_noise=most.gumbel_noise)
    trees = [replace(chain, nodes=most.nodes, width=most.width, p_split=p) for p in {0.0, most.p_split}]
    return (chain, *(trees if most.width > 1 else ()))


def following(most: Budget) -> Budget:
    """For the next token alone."""
    nodes = min(most.width, most.nodes)
    return Budget(min(1, most.depth), nodes, most.width, p_split=0.0, gumbel_noise=most.gumbel_noise)


@dataclass
class Chances:
    """What could have been drafted of one recorded answer. paid: the sources whose tokens take a pass of the
    draft model each. passes: at each position, how many passes the next 0, 1, 2, ... tokens take at least, as
    far as any proposal agrees with the record. ranks: how many tokens the draft model likes better than the
    one that was recorded, where that is among those it names."""

    tokens: tuple[int, ...]
    paid: frozenset[str] = frozenset()
    passes: list[list[int]] = field(init=False)
    ranks: list[int | None] = field(init=False)

    def __post_init__(self) -> None:
        self.passes = [[0] for _ in self.tokens]
        self.ranks = [None] * len(self.tokens)

    def add(self, at: int, tree: DraftTree) -> None:
        """Proposed after the first `at` tokens of the answer."""
        passes = 0
        for n, node in enumerate(tree.path_of(self.tokens[at:]), 1):
            passes += self._is_paid(tree, node)
            self._add(at, n, passes)

    def _add(self, at: int, n: int, passes: int) -> None:
        known = self.passes[at]
        if n == len(known):
            known.append(passes)
        else:
            known[n] = min(known[n], passes)

    def _is_paid(self, tree: DraftTree, node: int) -> bool:
        """Nobody proposed it for free."""
        proposers = [name for name, _ in tree.votes[node]] if tree.votes else [tree.source[node]]
        return self.paid.issuperset(proposers)

    def rank(self, at: int, tree: DraftTree) -> None:
        """The draft model's next token after `at` others, the likeliest first."""
        named = [tree.tokens[node] for node in tree.children(ROOT)]
        self.ranks[at] = named.index(self.tokens[at]) if self.tokens[at] in named else None

    def follow(self, most: Budget, cost: int) -> None:
        """Add all paths of the draft model within `most`, at `cost` passes a token."""
        for at in range(len(self.tokens)):
            leaves = nodes = 0
            for n, rank in enumerate(self.ranks[at : at + most.depth], 1):
                if rank is None:
                    break
                leaves, nodes = leaves + rank, nodes + 1 + rank
                if leaves >= most.width or nodes > most.nodes:
                    break
                self._add(at, n, n * cost)


def seconds(chances: Chances, n_prompt: int, costs: DecodingCosts) -> float:
    """best(0): of the whole answer, after a prompt of so many tokens."""
    end = len(chances.tokens)
    best = [0.0] * (end + 1)
    for at in range(end - 1, -1, -1):
        # The last token of an answer comes from the target at the latest: it need not be drafted.
        passes = chances.passes[at][: end - at]
        verify = cheapest(costs.target.curve(max(costs.target.max_batch_tokens, len(passes)), n_prompt + at))
        draft = 0.0
        if costs.draft is not None and any(passes):
            draft = min(costs.draft.curve(costs.draft.max_batch_tokens, n_prompt + at)[1:])
        best[at] = costs.step + min(
            draft * drafted + verify[1 + n] + best[at + n + 1] for n, drafted in enumerate(passes)
        )
    return best[0]


def cheapest(curve: Sequence[float]) -> list[float]:
    """At each number of rows, what a pass of so many or more takes at least."""
    out, least = list(curve), math.inf
    for rows in range(len(curve) - 1, -1, -1):
        least = out[rows] = min(least, curve[rows])
    return out


class Asked:
    """All the drafters of `drafter`, each asked by itself after every token, for all it may propose within
    `most`. What agrees with the record goes to `chances`, and nothing is proposed, so that decoding is plain.

    A draft model's greedy path follows from what it says of the next token at every position, and so do the
    trees it could have drafted: a branch that is not its choice takes a leaf for each token it likes better.
    """

    name = "asked"
    required_outputs = RequiredOutputs()

    def __init__(self, drafter: Drafter) -> None:
        self.drafters = list(leaves(drafter))
        self._drafter = drafter
        self.most, self.chances = NO_BUDGET, Chances(())

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> AskedMemory:
        return AskedMemory([drafter.open(prompt, seed, session, scope) for drafter in self.drafters])

    def propose(self, batch: Sequence[tuple[AskedMemory, Budget]]) -> list[DraftTree]:
        for memory, budget in batch:
            most = replace(self.most, gumbel_noise=budget.gumbel_noise)
            for drafter, part in zip(self.drafters, memory.parts, strict=True):
                if isinstance(drafter, ModelDrafter):
                    self.chances.rank(memory.at, self._ask(drafter, part, following(most)))
                    continue
                for each in wide(most):
                    self.chances.add(memory.at, self._ask(drafter, part, each))
        return [EMPTY] * len(batch)

    def _ask(self, drafter: Drafter, part: Any, budget: Budget) -> DraftTree:
        return drafter.propose([(part, budget)])[0]

    def close(self) -> None:
        self._drafter.close()


class AskedMemory:
    """at: how much of the answer is decoded."""

    def __init__(self, parts: list[DrafterState]) -> None:
        self.parts, self.at = parts, 0

    def update(self, step: Step, features: Features) -> None:
        self.at += len(step.tokens)
        for part in self.parts:
            part.update(step, features)

    def close(self) -> None:
        for part in self.parts:
            part.close()


def leaves(drafter: Drafter) -> Iterator[Drafter]:
    """The drafters that one is composed of, at any depth."""
    if isinstance(drafter, (ComposedDrafter, PortfolioDrafter)):
        for part in drafter.drafters:
            yield from leaves(part)
    else:
        yield drafter


class WatchedPolicy:
    """`policy`, with what it asked for and what was proposed. most: the largest budget so far."""

    def __init__(self, policy: DraftPolicy) -> None:
        self.inner = policy
        self.most, self.chances = Budget(0, 0), Chances(())

    @property
    def learns(self) -> bool:
        return self.inner.learns

    @property
    def summary(self) -> DraftingSummary | None:
        return self.inner.summary

    @property
    def costs(self) -> DecodingCosts | None:
        return self.inner.costs

    def forget(self) -> None:
        self.inner.forget()

    def budget(self, requests: Sequence[ActiveRequest], prefill_tokens: int = 0) -> Sequence[Budget]:
        budgets = self.inner.budget(requests, prefill_tokens)
        for b in budgets:
            most = self.most
            if b.depth > most.depth or b.nodes > most.nodes or b.width > most.width:
                depth, nodes = max(b.depth, most.depth), max(b.nodes, most.nodes)
                self.most = Budget(depth, nodes, max(b.width, most.width), p_split=b.p_split)
        return budgets

    def select(
        self, requests: Sequence[ActiveRequest], budgets: Sequence[Budget], drafts: Sequence[DraftTree]
    ) -> list[DraftTree]:
        for request, proposal in zip(requests, drafts, strict=True):
            self.chances.add(request.n_tokens, proposal)
        return self.inner.select(requests, budgets, drafts)

    def update(self, requests: Sequence[ActiveRequest], steps: Sequence[Step]) -> None:
        self.inner.update(requests, steps)


class Oracle:
    """The bounds of a method's recordings: play each with `play`, which plays it by the method first."""

    def __init__(self, lane: MethodReplay, recordings: Sequence[Recording]) -> None:
        means = lane.context
        assert means.costs is not None  # the caller's condition
        self._lane, self._costs = lane, means.costs
        self._paid = paid(lane.drafter, lane.drafting)
        self._watched = WatchedPolicy(lane.policy)
        lane.engine.policy = self._watched
        # A second set of drafters, which sees the same texts one token after the other.
        along = ReplayTarget(means.vocab, recordings, means.text)
        drafter, _ = make_drafter(lane.drafting, along, means.draft, means.corpora, means.costs)
        self._asked = Asked(drafter)
        self._engine = InferenceEngine(along, self._asked, FixedPolicy(NO_BUDGET), detokenize=False)
        self._drafter = drafter

    def play(self, recording: Recording) -> tuple[float, float]:
        """Seconds of the method, and of the oracle."""
        self._watched.chances = chances = Chances(recording.tokens, self._paid)
        played = self._lane.play(recording)
        self._asked.most, self._asked.chances = self._watched.most, chances
        replay_recording(self._engine, recording)
        chances.follow(self._asked.most, cost=len(self._paid))
        assert played.seconds is not None  # costs are known
        return played.seconds, seconds(chances, len(recording.prompt), self._costs)

    def forget(self) -> None:
        self._lane.forget()
        if isinstance(self._drafter, LearningDrafter):
            self._drafter.forget()


def share_of_bound(recorded: Sequence[Trace], method: Method, means: ReplayContext) -> float:
    """The oracle's seconds over the method's; not a number where there is no bound."""
    if unbound(method.drafting, means.draft is not None) is not None:
        return math.nan
    recordings = [request.recording for trace in recorded for request in trace.requests]
    lane = MethodReplay(method, recordings, means)
    try:
        oracle, sums = Oracle(lane, recordings), [0.0, 0.0]
        for trace in recorded:
            oracle.forget()
            for request in trace.requests:
                took, least = oracle.play(request.recording)
                sums[0] += took
                sums[1] += least
        return sums[1] / sums[0]
    finally:
        lane.close()
