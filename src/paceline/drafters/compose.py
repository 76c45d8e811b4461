"""Compositions of several drafters.

ComposedDrafter    in order: the next is called only where those before proposed too little
PortfolioDrafter   all that are worth calling; their guesses form one tree, from which the policy chooses
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from paceline.speculative.interfaces import (
    NO_OUTPUTS,
    Budget,
    Drafter,
    DrafterState,
    Features,
    LearningDrafter,
    PredictedState,
    PrefillingState,
    RequiredOutputs,
    Session,
)
from paceline.speculative.stats import Step
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, Votes


class Resting:
    """A state of a drafter that reads hidden states. While it rests, passes need not output them."""

    max_idle = 8  # passes without a call
    can_wake = True  # false if it has nothing to draft from
    _idle = 0

    @property
    def is_resting(self) -> bool:
        return self._idle >= self.max_idle

    def wake(self) -> None:
        self._idle = 0

    def pass_over(self) -> None:
        """Count a pass without a call."""
        self._idle += 1


class ComposedState:
    """The states of all parts."""

    def __init__(self) -> None:
        self.parts: list[DrafterState] = []
        self._pending_prefill: list[Callable[[], int]] = []  # of each part; int() is 0

    def add(self, part: DrafterState) -> None:
        self.parts.append(part)
        self._pending_prefill.append(part.pending_prefill if isinstance(part, PrefillingState) else int)

    def can_call(self, i: int, name: str, budget: Budget, draft: Callable[[], DraftTree]) -> bool:
        """Return whether a composition calls part `i`, given the `draft` so far. A part that reads hidden
        states rests while it is not called; when it is due, it needs a pass before it can draft."""
        part = self.parts[i]
        if isinstance(part, Resting) and part.is_resting:
            if part.can_wake and budget.is_due(name, draft):
                part.wake()
            return False
        if budget.should_call(name, draft, self._pending_prefill[i]()):
            return True
        if isinstance(part, Resting) and not budget.is_due(name, draft):
            part.pass_over()  # otherwise it only waits until reading the prompt pays
        return False

    def predict(self, tokens: Sequence[int]) -> None:
        for part in self.parts:
            if isinstance(part, PredictedState):
                part.predict(tokens)

    def update(self, step: Step, features: Features) -> None:
        for part in self.parts:
            part.update(step, features)

    def close(self) -> None:
        for part in self.parts:
            part.close()


class _Composition:
    """The base of compositions, which opens, teaches and closes all drafters."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = list(drafters)
        self.name = ",".join(d.name for d in drafters)
        self._reading = [d for d in drafters if d.required_outputs != NO_OUTPUTS]

    @property
    def required_outputs(self) -> RequiredOutputs:
        return reduce(or_, (drafter.required_outputs for drafter in self._reading), NO_OUTPUTS)

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> ComposedState:
        state = ComposedState()
        try:
            for drafter in self.drafters:
                state.add(drafter.open(prompt, seed, session, scope))
        except BaseException:
            state.close()
            raise
        return state

    def learn(self, tokens: Sequence[int]) -> None:
        for drafter in learners(self):
            drafter.learn(tokens)

    def forget(self) -> None:
        for drafter in learners(self):
            drafter.forget()

    def close(self) -> None:
        for drafter in self.drafters:
            drafter.close()


def learners(drafter: object) -> list[LearningDrafter]:
    """Return the drafter if it learns, or the parts of a composition that do."""
    if isinstance(drafter, _Composition):
        return [learner for part in drafter.drafters for learner in learners(part)]
    return [drafter] if isinstance(drafter, LearningDrafter) else []


class ComposedDrafter(_Composition):
    """Drafters in order of preference. min_tokens: a draft of so many tokens is enough.
    If none is enough, the largest draft is taken, of ties the first. A sampled draft is taken whatever its
    size, as a choice by the drawn tokens would bias the output."""

    def __init__(self, drafters: Sequence[Drafter], min_tokens: int = 1) -> None:
        super().__init__(drafters)
        self._min_tokens = min_tokens

    def propose(self, batch: Sequence[tuple[ComposedState, Budget]]) -> list[DraftTree]:
        trees = [EMPTY] * len(batch)
        called: list[tuple[str, ...]] = [()] * len(batch)
        for i, drafter in enumerate(self.drafters):
            places = [
                at
                for at, (tree, (_, budget)) in enumerate(zip(trees, batch, strict=True))
                if tree.q is None
                and len(tree.drafter_names) < min(self._min_tokens, budget.nodes, budget.depth)
                and budget.may_call(drafter.name)
            ]
            if not places:
                continue
            proposals = drafter.propose([(batch[at][0].parts[i], batch[at][1]) for at in places])
            for at, tree in zip(places, proposals, strict=True):
                called[at] += tree.called or (drafter.name,)
                # Probes alone are used where there is no guess.
                size, best = [(len(draft.drafter_names), len(draft)) for draft in (tree, trees[at])]
                if tree.q is not None or size > best:
                    trees[at] = tree
        return [tree.proposed_by(names) for tree, names in zip(trees, called, strict=True)]


@dataclass
class MergedTree:
    """Several deterministic drafts in one tree, with one node for equal guesses.
    A node stays a probe unless a drafter proposes it as a guess; a probe is no vote for a guess."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    votes: list[Votes] = field(default_factory=list)
    probes: set[int] = field(default_factory=set)
    _places: dict[tuple[int, int], int] = field(default_factory=dict)
    _tree: DraftTree = EMPTY

    def add(self, draft: DraftTree) -> None:
        """Add a draft. A single one stays as it is; of several, equal guesses become votes for one node."""
        if not self.tokens and not self._tree.tokens:
            self._tree = draft
        elif draft.tokens:
            if not self.tokens:
                self._merge(self._tree)
            self._merge(draft)

    def _merge(self, draft: DraftTree) -> None:
        places = {ROOT: ROOT}
        nodes = zip(draft.tokens, draft.parents, draft.source, draft.score, strict=True)
        for node, (token, parent, source, score) in enumerate(nodes):
            key = (places[parent], token)
            place = self._places.get(key)
            is_probe = node in draft.probe
            if place is None:
                place = self._places[key] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(key[0])
                self.votes.append(((source, score),))
                if is_probe:
                    self.probes.add(place)
            elif place in self.probes and not is_probe:
                self.probes.remove(place)
                self.votes[place] = ((source, score),)
            elif is_probe == (place in self.probes):
                self.votes[place] += ((source, score),)
            places[node] = place
        self._tree = EMPTY

    def tree(self) -> DraftTree:
        if self.tokens and not self._tree.tokens:
            self._tree = DraftTree(
                tokens=tuple(self.tokens),
                parents=tuple(self.parents),
                score=tuple(max(score for _, score in who) for who in self.votes),
                source=tuple(who[0][0] for who in self.votes),
                votes=tuple(self.votes),
                probe=frozenset(self.probes),
            )
        return self._tree


class PortfolioDrafter(_Composition):
    """All drafters that the budget calls, merged into one tree.
    The tree may exceed the budget, as the policy chooses from it. A sampled draft stands alone."""

    def propose(self, batch: Sequence[tuple[ComposedState, Budget]]) -> list[DraftTree]:
        if not any(budget.depth for _, budget in batch):
            return [EMPTY] * len(batch)
        unions = [MergedTree() for _ in batch]
        sampled: list[DraftTree | None] = [None] * len(batch)
        called: list[tuple[str, ...]] = [()] * len(batch)
        for i, drafter in enumerate(self.drafters):
            places = [
                at
                for at, (state, budget) in enumerate(batch)
                if sampled[at] is None
                and budget.depth > 0
                and budget.may_call(drafter.name)
                and state.can_call(i, drafter.name, budget, unions[at].tree)
            ]
            if not places:
                continue
            proposals = drafter.propose([(batch[at][0].parts[i], batch[at][1]) for at in places])
            for at, tree in zip(places, proposals, strict=True):
                called[at] += tree.called or (drafter.name,)
                if tree.q is not None:
                    sampled[at] = tree
                else:
                    unions[at].add(tree)
        drafts = [union.tree() if tree is None else tree for union, tree in zip(unions, sampled, strict=True)]
        return [tree.proposed_by(names) for tree, names in zip(drafts, called, strict=True)]
