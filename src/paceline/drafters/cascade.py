"""Drafters for the drafter (cascade speculative drafting: Chen et al., arXiv:2312.11462).

vertical     a copier guesses how the draft model's own chain goes on, and one pass of the draft model tells
             how far that is right. The chain is the one it would have drafted token by token (where rows do
             not depend on the shape of a pass: to the last bit), in fewer passes.
horizontal   where the draft model ends, since another pass is not worth it or it is not sure enough, the
             copier drafts the later tokens.

Chains only. They are the draft model's however they came about, and have its name as their source; what is
guessed behind them has LATER, so that it is calibrated for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from paceline.core.answers import Answers
from paceline.core.arrays import Logits
from paceline.core.calibrate import Calibrator, logit_at
from paceline.core.cost import Cost
from paceline.core.errors import ContractError
from paceline.core.following import Following
from paceline.core.ports import Budget, Drafter, Forward, Learner, Memory, Session, Target, Want
from paceline.core.tree import DraftTree, chain
from paceline.drafters import suffix
from paceline.drafters.compose import ComposedMemory
from paceline.drafters.model import MODEL, NOTHING, ModelDrafter
from paceline.drafters.parts import Parts, Warn

LATER = "later"
# What rows cost where nobody measured: half a pass for each one more, as a few do on a processor. A GPU would
# pay more guesses than that lets through.
UNKNOWN = Cost.flat(1.0, per_row=0.5)


class Copier(Drafter, Protocol):
    """A drafter that costs next to nothing beside a pass of a model."""

    def follow(self, memory: Any, said: Sequence[int], budget: Budget) -> DraftTree:
        """What would be proposed had the text gone on with `said`. The memory stays as it is."""


class CascadeDrafter:
    """n_vocab: the target's vocabulary size. temperature, top_k, warn: see ModelDrafter; a sampled chain is
    drawn from the draft model, whatever was guessed. cost: of the draft model's passes, where it is known."""

    name = f"{MODEL},{LATER}"
    wants = NOTHING

    def __init__(
        self,
        draft: Target,
        n_vocab: int,
        copier: Copier,
        *,
        temperature: float = 0.0,
        top_k: int = 10,
        cost: Cost | None = None,
        warn: Warn = lambda _: None,
    ) -> None:
        self._copier = copier
        self._ahead = ReadAhead(draft, copier, cost or UNKNOWN)
        self._model = ModelDrafter(self._ahead, n_vocab, temperature=temperature, top_k=top_k, warn=warn)

    def open(self, prompt: Sequence[int], seed: int, session: Session | None = None) -> ComposedMemory:
        memory = ComposedMemory([])
        try:
            memory.parts.append(self._model.open(prompt, seed, session))
            memory.parts.append(self._copier.open(prompt, seed))
        except BaseException:
            memory.close()
            raise
        return memory

    def propose(self, batch: Sequence[tuple[ComposedMemory, Budget]]) -> list[DraftTree]:
        parts: list[tuple[Any, Any, Budget]] = []
        for memory, budget in batch:
            model, copier = memory.parts
            parts.append((model, copier, budget))
        for model, copier, budget in parts:
            model.session.expect(copier, min(budget.depth, budget.nodes))
        trees = self._model.propose([(model, budget) for model, _, budget in parts])
        out = []
        for (model, copier, budget), tree in zip(parts, trees, strict=True):
            model.session.learn(tree.tokens)
            out.append(self._later(copier, budget, tree))
        return out

    def _later(self, memory: Memory, budget: Budget, tree: DraftTree) -> DraftTree:
        """`tree` and what the copier adds, by its own score: a draft model that is unsure says little about a
        copy (docs/drafters.md)."""
        room = min(budget.depth, budget.nodes) - len(tree)
        # Of a sampled draft nothing may be left out: nobody could say no to what is added.
        if room < 1 or tree.q is not None:
            return replace(tree, asked=(MODEL,))
        guess = self._copier.follow(memory, tree.tokens, Budget(room, room))
        depth, survivals = len(tree), list(tree.survival)
        for likely in guess.score:
            above = survivals[-1] if survivals else 1.0
            survival = budget.survival(LATER, likely, depth + 1, above)
            if not budget.goes_on(likely, depth, depth, survival):
                break
            survivals.append(survival)
            depth += 1
        n = depth - len(tree)
        return DraftTree(
            tokens=tree.tokens + guess.tokens[:n],
            parents=tuple(range(-1, depth - 1)),
            score=tree.score + guess.score[:n],
            source=tree.source + (LATER,) * n,
            survival=tuple(survivals),
            asked=(MODEL, LATER),
        )

    @property
    def learners(self) -> list[Learner]:
        return [self._copier] if isinstance(self._copier, Learner) else []

    def learn(self, tokens: Sequence[int]) -> None:
        for copier in self.learners:
            copier.learn(tokens)

    def forget(self) -> None:
        for copier in self.learners:
            copier.forget()

    def close(self) -> None:
        self._model.close()
        self._copier.close()


class ReadAhead:
    """`draft` as a target that is asked about a chain token by token: a pass reads on in what the copier
    guesses will be asked next, and where that comes true the answers are known.

    The copier guesses as far as that is worth: a right guess saves a pass, each costs a row of one."""

    def __init__(self, draft: Target, copier: Copier, cost: Cost) -> None:
        self.draft, self.copier, self.cost = draft, copier, cost
        self.vocab, self.caps, self.origin = draft.vocab, replace(draft.caps, branch=1), draft.origin
        self.calibrator = Calibrator(trend=0.0)  # of the guesses, by what the draft model said then

    def open(self, beside: Session | None = None) -> AheadSession:
        return AheadSession(self, Following(self.draft, beside))

    def forget(self) -> None:
        self.draft.forget()

    def close(self) -> None:
        self.draft.close()

    def forward(self, batch: Sequence[tuple[AheadSession, DraftTree | int]], want: Want) -> Sequence[Forward]:
        """The row below the last node of each chain; or a part of each prompt."""
        chains = [(session, tree) for session, tree in batch if isinstance(tree, DraftTree)]
        if not chains:
            return self.draft.forward([(session.inner, n) for session, n in batch], want)
        return self._below(chains, want)

    def _below(self, batch: Sequence[tuple[AheadSession, DraftTree]], want: Want) -> list[AheadRow]:
        unknown = [(session, tree.tokens) for session, tree in batch if not session.has_read(tree.tokens)]
        if unknown:
            for session, tree in batch:
                if session.has_read(tree.tokens):
                    session.save()  # the pass ends what the answers of the last one are valid for
            trees = [session.plan(said) for session, said in unknown]
            work = [(session.inner, tree) for (session, _), tree in zip(unknown, trees, strict=True)]
            for (session, _), out in zip(unknown, self.draft.forward(work, want), strict=True):
                session.out = out
        return [session.row(len(tree)) for session, tree in batch]


class AheadSession:
    """Owns the draft's session, which goes along the chain, and beyond it as far as the copier's guesses.

    kept: tokens of the chain that are committed there, the last one as its root. read: what the last pass
    read after them."""

    def __init__(self, target: ReadAhead, reader: Following) -> None:
        self._target, self._reader = target, reader
        self.tokens: list[int] = []
        self.expect(None, 0)
        self._restart()

    def _restart(self) -> None:
        self.out: Forward | None = None
        self._kept: tuple[int, ...] = ()
        self._read: tuple[int, ...] = ()
        self._saved: list[Logits] = []

    def expect(self, copied: Memory | None, depth: int) -> None:
        """A chain of up to `depth` tokens. copied: the copier's memory of the text."""
        self._copied, self._depth = copied, depth
        self._guessed: list[tuple[int, DraftTree]] = []

    @property
    def inner(self) -> Session:
        return self._reader.session

    @property
    def unread(self) -> int:
        return self.inner.unread

    def extend(self, tokens: Sequence[int]) -> None:
        self._restart()
        self.tokens += tokens
        self._reader.become(self.tokens)

    def keep(self, path: Sequence[int], root: int) -> None:
        said = (*self._kept, *self._read)
        self.extend([*(said[node] for node in path), root])

    def has_read(self, said: tuple[int, ...]) -> bool:
        """Whether it is known what follows the chain."""
        beyond = len(said) - len(self._kept)
        return self.out is not None and beyond >= 0 and said == self._kept + self._read[:beyond]

    def save(self) -> None:
        """The answers of the last pass are copied."""
        if not self._saved and self.out is not None:
            self._saved = [self.out.logits(row).copy() for row in range(len(self._read) + 1)]

    def row(self, n: int) -> AheadRow:
        assert self.out is not None  # it has been read
        row = n - len(self._kept)
        return AheadRow(n, self._saved[row] if self._saved else self.out.logits(row), self.out.computed)

    def plan(self, said: tuple[int, ...]) -> DraftTree:
        """What a pass has to compute for the row below the chain: the tokens that were not read yet, and
        guesses."""
        if self.out is not None and said[: len(self._kept)] != self._kept:
            self.extend(())
        elif self.out is not None:
            right = alike(self._read, said[len(self._kept) :])
            root = said[len(self._kept) + right]
            self.inner.keep(range(right), root)
            self._kept = said[: len(self._kept) + right + 1]
        self.out = None
        self._saved = []
        self._read = said[len(self._kept) :]
        self._read += self._guess(said)
        return chain(self._read, "draft")

    def _guess(self, said: tuple[int, ...]) -> tuple[int, ...]:
        caps, rows = self._target.caps, 1 + len(self._read)
        room = min(self._depth, caps.n_ctx - len(self.tokens)) - len(said) - 1
        room = min(room, caps.rows - rows)
        if room < 1:
            return ()
        guess = self._target.copier.follow(self._copied, said, Budget(room, room))
        self._guessed.append((len(said), guess))
        curve = self._target.cost.curve(rows + len(guess), len(self.tokens))
        best, most, saved, survival = 0, 0.0, 0.0, 1.0
        for n, (token, score) in enumerate(zip(guess.tokens, guess.score, strict=True), 1):
            if token >= self._target.vocab.size:  # one that the draft model does not have
                break
            survival *= self._target.calibrator.probability(score, n)
            saved += survival * curve[1]
            worth = saved - (curve[rows + n] - curve[rows])
            if worth > most:
                best, most = n, worth
        return guess.tokens[:best]

    def learn(self, said: tuple[int, ...]) -> None:
        """The whole chain is known, and so is how far each guess was right, read or not."""
        for start, guess in self._guessed:
            for n, (token, guessed) in enumerate(zip(said[start:], guess.tokens, strict=False), 1):
                x = logit_at(guess.score[n - 1])
                self._target.calibrator.observe(x, n, 0.0, token == guessed)
                if token != guessed:
                    break

    def close(self) -> None:
        self._reader.close()
        self._restart()


class AheadRow(Answers):
    """What follows a chain of `row` tokens. computed: of the pass that told it."""

    def __init__(self, row: int, logits: Logits, computed: int) -> None:
        super().__init__(computed)
        self._row, self._logits = row, logits

    def logits(self, row: int) -> Logits:
        if row != self._row:
            raise ContractError(f"row {row} is not the one that was asked for, {self._row}")
        return self._logits


def alike(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def make(parts: Parts) -> CascadeDrafter:
    """With the drafter as copier that guesses best for nothing."""
    assert parts.draft is not None  # makers.py has seen to it
    return CascadeDrafter(
        parts.draft,
        parts.target.vocab.size,
        suffix.make(parts),
        temperature=parts.drafting.temperature,
        top_k=parts.drafting.top_k,
        cost=None if parts.costs is None else parts.costs.draft,
        warn=parts.warn,
    )
