"""A tiny recurrent network in numpy, for tests, docs and proofs.

The cache holds a state per position. A row does not depend on other rows of a pass: logits are equal to the
last bit, or wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.errors import ContractError, UsageError
from paceline.speculative.forward_output import LogitsOutput, node_position
from paceline.speculative.interfaces import Caps, Features, RequiredOutputs, Session
from paceline.speculative.sampling import filter_top_k
from paceline.speculative.tree import EMPTY, DraftTree
from paceline.speculative.vocabulary import Vocab

Array = NDArray[np.float64]


class ToyTarget:
    """A network h' = tanh(A h + E[token]) with the logits sharpness * W h'. All weights come from `seed`.

    noise: deviation of noise on W, which makes a draft model that resembles the model without."""

    def __init__(
        self,
        n_vocab: int = 8,
        *,
        seed: int = 0,
        width: int = 8,
        sharpness: float = 2.0,
        noise: float = 0.0,
        eos: frozenset[int] = frozenset(),
        n_ctx: int = 4096,
        branch: int = 64,
        chunk: int = 512,
    ) -> None:
        random = np.random.default_rng(seed)
        self._mix = random.normal(size=(width, width)) * 0.9 / np.sqrt(width)
        self._embed = random.normal(size=(n_vocab, width))
        head = random.normal(size=(n_vocab, width)) * sharpness
        self._head = head + noise * sharpness * np.random.default_rng(seed + 1).normal(size=head.shape)
        self._passes = 0  # to notice reads of an outdated output
        spell = b"%d".__mod__
        self.origin = "the toy model"
        self.modification = ""
        self.vocab = Vocab(n_vocab, "toy", None, eos, False, False, text=spell, piece=spell)
        self.caps = Caps(
            max_branches=branch,
            rollback="free",
            max_sessions=64,
            max_batch_tokens=1 << 15,
            max_prefill_tokens=chunk,
            n_ctx=n_ctx,
        )

    def open(self, beside: Session | None = None) -> ToySession:
        return ToySession(self)

    def forget(self) -> None: ...

    def close(self) -> None: ...

    def forward(
        self, batch: Sequence[tuple[ToySession, DraftTree | int]], want: RequiredOutputs
    ) -> list[ToyForward]:
        outs = []
        self._passes += 1
        for session, tree in batch:
            if isinstance(tree, int):
                session.read(tree)
                outs.append(ToyForward(self, [], 0, tree, want))
            else:
                n = session.pending_tokens
                session.read(n)
                states, first = session.compute_tree(tree)
                outs.append(ToyForward(self, states, first, n + len(states) - first, want))
        return outs

    def after(self, state: Array | None, token: int) -> Array:
        """Return the state [width] after a token."""
        before = np.zeros(len(self._mix)) if state is None else state
        out: Array = np.tanh(self._mix @ before + self._embed[token])
        return out

    def logits(self, state: Array) -> Array:
        out: Array = self._head @ state
        return out


class ToySession:
    """The states of the committed tokens (`_states`), and of the root and the nodes of the last tree."""

    def __init__(self, target: ToyTarget) -> None:
        self._target = target
        self._states: list[Array] = []
        self._tree_states: list[Array] = []
        self._tree = EMPTY
        self.tokens: list[int] = []

    @property
    def pending_tokens(self) -> int:
        return max(0, len(self.tokens) - 1 - len(self._states))

    def extend(self, tokens: Sequence[int]) -> None:
        if not tokens and not self.tokens:
            raise UsageError("the prompt is empty: give at least one token")
        if self._tree_states and tokens:
            self._commit(self._tree.path_of(tokens[:-1]))
        self.tokens += tokens
        self._tree, self._tree_states = EMPTY, []

    def _commit(self, path: Sequence[int]) -> None:
        """Commit the states of the root and the path."""
        self._states += [self._tree_states[0], *(self._tree_states[node + 1] for node in path)]

    def read(self, n: int) -> None:
        """Prefill `n` tokens."""
        if not self.tokens:
            raise ContractError("forward before extend: the session has no root")
        if n > self.pending_tokens:
            raise ContractError(f"{n} tokens to be read, of {self.pending_tokens} that are unread")
        start = len(self._states)
        for token in self.tokens[start : start + n]:
            self._states.append(self._target.after(self._states[-1] if self._states else None, token))

    def compute_tree(self, tree: DraftTree) -> tuple[list[Array], int]:
        """Return the states of the root and all nodes, and the first that was not computed before."""
        if not (self._tree_states and tree.starts_with(self._tree)):
            self._tree_states = []
        first = len(self._tree_states)
        if first == 0:
            below = self._states[-1] if self._states else None
            self._tree_states.append(self._target.after(below, self.tokens[-1]))
        for i in range(len(self._tree_states) - 1, len(tree)):
            self._tree_states.append(
                self._target.after(self._tree_states[tree.parents[i] + 1], tree.tokens[i])
            )
        self._tree = tree
        return list(self._tree_states), first

    def commit(self, path: Sequence[int], root: int) -> None:
        if not self._tree_states:
            raise ContractError("keep before forward: there is nothing to commit")
        self._tree.check_path(path)
        self._commit(path)
        self.tokens += [*(self._tree.tokens[node] for node in path), root]
        self._tree, self._tree_states = EMPTY, []

    def close(self) -> None:
        self._states, self._tree_states, self.tokens = [], [], []


class ToyForward(LogitsOutput):
    """The rows of a session. states: of the root and the nodes, new from `first` on."""

    def __init__(
        self, target: ToyTarget, states: Sequence[Array], first: int, computed: int, want: RequiredOutputs
    ) -> None:
        self._target, self._states, self._first = target, states, first
        self._pass = target._passes
        super().__init__(computed)
        if want.top_k and (rows := range(first, len(states))):
            self.features = Features(np.stack([filter_top_k(self.logits(row), want.top_k) for row in rows]))

    def logits(self, row: int) -> Array:
        node_position(row, range(self._first, len(self._states)), self._pass == self._target._passes)
        return self._target.logits(self._states[row])
