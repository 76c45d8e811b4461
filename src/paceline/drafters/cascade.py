"""Cascade drafting: drafters for the drafter (cascade speculative drafting: Chen et al., arXiv:2312.11462).

vertical     a copier guesses the draft model's chain, and one pass of the draft model verifies the guess:
             the same chain in fewer passes
horizontal   beyond the draft model's chain, the copier drafts the later tokens

Drafts are chains. The copier's later tokens have the source DEFERRED, so that they are calibrated separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from paceline.drafters import suffix
from paceline.drafters.compose import ComposedDrafter, ComposedState
from paceline.drafters.model import ModelDrafter
from paceline.drafters.parts import MODEL_SOURCE, DrafterInputs
from paceline.speculative.delegating import DelegatingTarget
from paceline.speculative.forward_output import LogitsOutput
from paceline.speculative.interfaces import (
    Budget,
    Drafter,
    DrafterState,
    ForwardOutput,
    RequiredOutputs,
    Session,
    SessionBatch,
    Target,
)
from paceline.speculative.policy.acceptance import Calibrator, logit_at
from paceline.speculative.policy.costs import PassCosts
from paceline.speculative.sampling import Logits
from paceline.speculative.sessions import DerivedSession, ResumableSession
from paceline.speculative.tree import DraftTree, chain

DEFERRED = "later"
DEFAULT_COSTS = PassCosts.flat(1.0, per_row=0.5)  # typical of a few rows on a CPU


class Copier(Drafter, Protocol):
    """A drafter whose cost is negligible beside a pass of a model."""

    def follow(self, state: Any, more: Sequence[int], budget: Budget) -> DraftTree:
        """Return the proposal if the text went on with `more`; the state does not change."""


class CascadeDrafter(ComposedDrafter):
    """A draft model with a copier. cost: pass costs of the draft model; for the rest see ModelDrafter."""

    def __init__(
        self, draft: Target, n_vocab: int, copier: Copier, cost: PassCosts | None = None, **settings: Any
    ) -> None:
        self._copier = copier
        ahead = CascadeTarget(draft, copier, cost or DEFAULT_COSTS)
        self._model = ModelDrafter(ahead, n_vocab, **settings)
        super().__init__([self._model, copier])
        self.name = f"{MODEL_SOURCE},{DEFERRED}"

    def propose(self, batch: Sequence[tuple[ComposedState, Budget]]) -> list[DraftTree]:
        parts: list[Any] = [(*state.parts, budget) for state, budget in batch]
        for model, copier, budget in parts:
            model.session.begin_chain(copier, min(budget.depth, budget.nodes))
        trees = self._model.propose([(model, budget) for model, _, budget in parts])
        out = []
        for (model, copier, budget), tree in zip(parts, trees, strict=True):
            model.session.learn(tree.tokens)
            out.append(self._defer(copier, budget, tree))
        return out

    def _defer(self, state: DrafterState, budget: Budget, tree: DraftTree) -> DraftTree:
        """Return `tree` extended by the copier's guess, by the copier's score alone."""
        room = min(budget.depth, budget.nodes) - len(tree)
        # A sampled draft is verified whole, so a policy could not leave the addition out.
        if room < 1 or tree.q is not None:
            return tree.proposed_by((MODEL_SOURCE,))
        guess = self._copier.follow(state, tree.tokens, Budget(room, room))
        depth, reach_probabilities = len(tree), list(tree.reach_probability)
        for likely in guess.score:
            above = reach_probabilities[-1] if reach_probabilities else 1.0
            reach_probability = budget.reach_probability(DEFERRED, likely, depth + 1, above)
            if not budget.should_extend(likely, depth, depth, reach_probability):
                break
            reach_probabilities.append(reach_probability)
            depth += 1
        n = depth - len(tree)
        return DraftTree(
            tokens=tree.tokens + guess.tokens[:n],
            parents=tuple(range(-1, depth - 1)),
            score=tree.score + guess.score[:n],
            source=tree.source + (DEFERRED,) * n,
            reach_probability=tuple(reach_probabilities),
            called=(MODEL_SOURCE, DEFERRED),
        )


class CascadeTarget(DelegatingTarget):
    """A draft model as a target for a chain that grows token by token.
    Each pass also computes the copier's next tokens, as far as they pay: a right guess saves a pass."""

    def __init__(self, draft: Target, copier: Copier, cost: PassCosts) -> None:
        super().__init__(draft)
        self.copier, self.cost = copier, cost
        self.caps = replace(draft.caps, max_branches=1)
        self.calibrator = Calibrator(trend=0.0)  # learns from the draft model's choices

    def open(self, beside: Session | None = None) -> AheadSession:
        return AheadSession(self, ResumableSession(self.inner, beside))

    def forward(self, batch: SessionBatch[AheadSession], want: RequiredOutputs) -> Sequence[ForwardOutput]:
        """Return the row below the last node of each chain, or prefill a part of each prompt."""
        chains = [(session, tree) for session, tree in batch if isinstance(tree, DraftTree)]
        if not chains:
            outs: Sequence[ForwardOutput] = self.inner.forward([(s.inner, n) for s, n in batch], want)
            return outs
        return self._below(chains, want)

    def _below(
        self, batch: Sequence[tuple[AheadSession, DraftTree]], want: RequiredOutputs
    ) -> list[AheadRow]:
        for session, tree in batch:
            session.compute_tree(tree)
        unknown = [(session, tree.tokens) for session, tree in batch if not session.has_computed(tree.tokens)]
        if unknown:
            trees = [session.plan(path) for session, path in unknown]  # may change `inner`
            work = [(session.inner, tree) for (session, _), tree in zip(unknown, trees, strict=True)]
            for (session, _), out in zip(unknown, self.inner.forward(work, want), strict=True):
                session.take(out, shares=len(batch) > 1)
        return [session.row(len(tree)) for session, tree in batch]


class AheadSession(DerivedSession):
    """A session whose inner session holds the chain and some of the copier's guesses behind it."""

    def __init__(self, target: CascadeTarget, reader: ResumableSession) -> None:
        super().__init__(reader)
        self._target = target
        self._text: list[int] = []  # the same tokens
        self.begin_chain(None, 0)
        self._restart()

    def _restart(self) -> None:
        self._rows: list[Logits] = []  # of the last pass
        self._committed: tuple[int, ...] = ()  # committed tokens of the chain, the last one being the root
        self._read: tuple[int, ...] = ()  # tokens after them that the last pass computed

    def begin_chain(self, copied: DrafterState | None, depth: int) -> None:
        """Start a chain of up to `depth` tokens. copied: the copier's state."""
        self._copied, self._depth = copied, depth
        self._guessed: list[tuple[int, DraftTree]] = []

    def _append(self, tokens: Sequence[int]) -> None:
        self._restart()
        self._text += tokens
        self._reader.sync_to(self._text)

    def has_computed(self, path: tuple[int, ...]) -> bool:
        """Return whether the row below the chain `path` is known."""
        beyond = len(path) - len(self._committed)
        return len(self._rows) > 0 and beyond >= 0 and path == self._committed + self._read[:beyond]

    def take(self, out: ForwardOutput, *, shares: bool) -> None:
        """Note the rows of a pass. shares: copies of them, as a pass for other sessions invalidates them."""
        rows = (out.logits(row) for row in range(len(self._read) + 1))
        self._rows = [row.copy() if shares else row for row in rows]
        self._computed = out.computed

    def row(self, n: int) -> AheadRow:
        return AheadRow(n, self._rows[n - len(self._committed)], self._computed)

    def plan(self, path: tuple[int, ...]) -> DraftTree:
        """Return the tokens to compute for the row below the chain `path`, which grows the last one: its new
        tokens, and guesses."""
        if self._rows:
            more = path[len(self._committed) :]  # not a prefix of the computed tokens
            right = next(n for n, token in enumerate(more) if self._read[n : n + 1] != (token,))
            root = more[right]
            self.inner.commit(range(right), root)
            self._committed = path[: len(self._committed) + right + 1]
        self._rows = []
        self._read = path[len(self._committed) :]
        self._read += self._guess(path)
        return chain(self._read, "draft")

    def _guess(self, path: tuple[int, ...]) -> tuple[int, ...]:
        caps, rows = self._target.caps, 1 + len(self._read)
        room = min(self._depth, caps.n_ctx - len(self.tokens)) - len(path) - 1
        room = min(room, caps.max_batch_tokens - rows)
        if room < 1:
            return ()
        guess = self._target.copier.follow(self._copied, path, Budget(room, room))
        self._guessed.append((len(path), guess))
        curve = self._target.cost.curve(rows + len(guess), len(self.tokens))
        best, most, saved, reach_probability = 0, 0.0, 0.0, 1.0
        for n, (token, score) in enumerate(zip(guess.tokens, guess.score, strict=True), 1):
            if token >= self._target.vocab.size:  # unknown to the draft model
                break
            reach_probability *= self._target.calibrator.probability(score, n)
            saved += reach_probability * curve[1]
            gain = saved - (curve[rows + n] - curve[rows])
            if gain > most:
                best, most = n, gain
        return guess.tokens[:best]

    def learn(self, path: tuple[int, ...]) -> None:
        """Learn from the finished chain how far each guess was right, computed or not."""
        for start, guess in self._guessed:
            for n, (token, guessed) in enumerate(zip(path[start:], guess.tokens, strict=False), 1):
                x = logit_at(guess.score[n - 1])
                self._target.calibrator.update(x, n, 0.0, token == guessed)
                if token != guessed:
                    break

    def close(self) -> None:
        super().close()
        self._text = []
        self._restart()


class AheadRow(LogitsOutput):
    """The row below a chain of `row` tokens. computed: rows of the pass that computed it."""

    def __init__(self, row: int, logits: Logits, computed: int) -> None:
        super().__init__(computed)
        self._row, self._logits = row, logits

    def logits(self, row: int) -> Logits:
        assert row == self._row, f"row {row} was not computed, only row {self._row}"
        return self._logits


def make(parts: DrafterInputs) -> CascadeDrafter:
    assert parts.draft is not None
    return CascadeDrafter(
        parts.draft,
        parts.target.vocab.size,
        suffix.make(parts),
        temperature=parts.drafting.draft_temp,
        top_k=parts.drafting.draft_top_k,
        cost=None if parts.costs is None else parts.costs.draft,
        warn=parts.warn,
    )
