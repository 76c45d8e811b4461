"""A tiny recurrent network in numpy, for tests, docs and proofs.

The cache holds a state per position. A row does not depend on other rows of a pass: logits are equal to the
last bit, or wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.errors import ContractError, UsageError
from paceline.speculative.forward_output import LogitsOutput, node_position
from paceline.speculative.interfaces import Caps, Features, RequiredOutputs, Rollback, Session
from paceline.speculative.sampling import filter_top_k
from paceline.speculative.tree import EMPTY, DraftTree
from paceline.speculative.vocabulary import Vocab

Array = NDArray[np.float64]


class ToyTarget:
    """A network of layers h_l' = tanh(A_l h_l + x_l), where x_0 = E[token] and x_l = B_l h_(l-1)'.

    The logits are sharpness * W h' of the last layer. All weights come from `seed`.
    noise: deviation of noise on W, which makes a draft model that resembles the model without.
    rollback: "restore" holds a single state, like a recurrent model."""

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
        layers: int = 1,
        rollback: Rollback = "free",
        chunk: int = 512,
    ) -> None:
        random = np.random.default_rng(seed)
        mix = random.normal(size=(width, width)) * 0.9 / np.sqrt(width)
        self._embed = random.normal(size=(n_vocab, width))
        head = random.normal(size=(n_vocab, width)) * sharpness
        self._head = head + noise * sharpness * np.random.default_rng(seed + 1).normal(size=head.shape)
        deeper = np.random.default_rng([seed, 2])
        self._mix = [mix, *deeper.normal(size=(layers - 1, width, width)) * 0.9 / np.sqrt(width)]
        self._up = deeper.normal(size=(layers - 1, width, width)) * 0.9 / np.sqrt(width)
        self._base = self
        self._passes = 0  # to notice reads of an outdated output
        self.layers = self.exit_layer = layers
        self.width = width
        spell = b"%d".__mod__
        self.origin = "the toy model"
        self.modification = ""
        self.vocab = Vocab(n_vocab, "toy", None, eos, False, False, text=spell, piece=spell)
        self.caps = Caps(
            max_branches=1 if rollback == "restore" else branch,
            rollback=rollback,
            max_sessions=64,
            max_batch_tokens=1 << 15,
            max_prefill_tokens=chunk,
            n_ctx=n_ctx,
        )

    def view(self, exits: int) -> ToyTarget:
        """Return a model of the same weights without the layers behind the first `exits`.

        Sessions opened beside one of this model take over its states."""
        view = copy(self)
        view.exit_layer = exits
        view.modification = f"{exits} of {self.exit_layer} layers" * (exits != self.exit_layer)
        return view

    def open(self, beside: Session | None = None) -> ToySession:
        shares = (
            isinstance(beside, ToySession)
            and beside._target is self._base is not self
            and self.caps.rollback == "free"
        )
        return ToySession(self, beside if shares else None)  # type: ignore[arg-type]  # a ToySession then

    def forget(self) -> None: ...

    def close(self) -> None: ...

    def forward(
        self, batch: Sequence[tuple[ToySession, DraftTree | int]], want: RequiredOutputs
    ) -> list[ToyForward]:
        outs = []
        self._passes += 1
        for session, tree in batch:
            if isinstance(tree, int):
                before, lead = session.read(tree)
                outs.append(ToyForward(self, lead, [], 0, len(lead), want, before))
            else:
                before, lead = session.read(session.pending_tokens)
                states, first = session.compute_tree(tree)
                computed = len(lead) + len(states) - first
                outs.append(ToyForward(self, lead, states, first, computed, want, before))
        return outs

    def after(self, state: Array | None, token: int) -> Array:
        """Return the states [exits, width] after a token."""
        before = np.zeros((self.exit_layer, self.width)) if state is None else state
        out = np.empty((self.exit_layer, self.width))
        x = self._embed[token]
        for layer in range(self.exit_layer):
            out[layer] = np.tanh(self._mix[layer] @ before[layer] + x)
            if layer < self.layers - 1:
                x = self._up[layer] @ out[layer]
        return out

    def hidden(self, state: Array, token: int, layer: int) -> Array:
        """Return a layer's input for a token with these states; for layer `layers`, the last output."""
        if 0 < layer < self.layers:
            out: Array = self._up[layer - 1] @ state[layer - 1]
        else:
            out = self._embed[token] if layer == 0 else state[-1]
        return out

    def logits(self, state: Array) -> Array:
        out: Array = self._head @ state[-1]
        return out


ComputedToken = tuple[Array, int]  # the states after a token, and the token


class ToySession:
    """The states of the committed tokens (`_states`), and of the root and the nodes of the last tree.

    A model that cannot roll back has the last state only: accepted tokens are computed again, unless the
    whole draft was accepted. beside: a session of the whole model, whose states a view uses."""

    def __init__(self, target: ToyTarget, beside: ToySession | None = None) -> None:
        self._target, self._beside = target, beside
        self._states: list[Array] = []
        self._read = 0  # committed tokens that were computed
        self._tree_states: list[Array] = []
        self._tree = EMPTY
        self.tokens: list[int] = []

    @property
    def pending_tokens(self) -> int:
        return max(0, len(self.tokens) - 1 - self._read)

    def extend(self, tokens: Sequence[int]) -> None:
        if not tokens and not self.tokens:
            raise UsageError("the prompt is empty: give at least one token")
        if self._tree_states and tokens:
            self._commit(self._tree.path_of(tokens[:-1]))
        self.tokens += tokens
        self._tree, self._tree_states = EMPTY, []

    def _commit(self, path: Sequence[int]) -> None:
        """Commit the states of the root and the path."""
        tip = self._tree_states[0] if not path else self._tree_states[path[-1] + 1]
        if self._target.caps.rollback == "free":
            self._states += [self._tree_states[0], *(self._tree_states[node + 1] for node in path)]
        elif len(path) == len(self._tree):
            self._states = [tip]
        else:
            return  # at the last state: everything since is computed again
        self._read += 1 + len(path)

    def read(self, n: int) -> tuple[int, list[ComputedToken]]:
        """Prefill `n` tokens; return where they begin, and the states not taken from `beside`."""
        if not self.tokens:
            raise ContractError("forward before extend: the session has no root")
        start, computed = self._read, list[ComputedToken]()
        if n > self.pending_tokens:
            raise ContractError(f"{n} tokens to be read, of {self.pending_tokens} that are unread")
        for token in self.tokens[start : start + n]:
            state = self._state_beside()
            if state is None:
                state = self._target.after(self._states[-1] if self._states else None, token)
                computed.append((state, token))
            if self._target.caps.rollback == "free":
                self._states.append(state)
            else:
                self._states = [state]
            self._read += 1
        return start, computed

    def _state_beside(self) -> Array | None:
        """Return the next token's states from the session beside this one, if it has them."""
        beside, at = self._beside, self._read
        if beside is None or at >= len(beside._states) or beside.tokens[at] != self.tokens[at]:
            return None
        return beside._states[at][: self._target.exit_layer]

    def compute_tree(self, tree: DraftTree) -> tuple[list[ComputedToken], int]:
        """Return the states of the root and all nodes, and the first that was not computed before."""
        if not (self._tree_states and tree.starts_with(self._tree)):
            self._tree_states = []
        first = len(self._tree_states)
        tokens = [self.tokens[-1], *tree.tokens]
        if first == 0:
            below = self._states[-1] if self._states else None
            self._tree_states.append(self._target.after(below, tokens[0]))
        for i in range(len(self._tree_states) - 1, len(tree)):
            self._tree_states.append(
                self._target.after(self._tree_states[tree.parents[i] + 1], tree.tokens[i])
            )
        self._tree = tree
        return list(zip(self._tree_states, tokens, strict=True)), first

    def commit(self, path: Sequence[int], root: int) -> None:
        if not self._tree_states:
            raise ContractError("keep before forward: there is nothing to commit")
        self._tree.check_path(path)
        self._commit(path)
        self.tokens += [*(self._tree.tokens[node] for node in path), root]
        self._tree, self._tree_states = EMPTY, []

    def close(self) -> None:
        self._states, self._tree_states, self.tokens, self._read = [], [], [], 0


class ToyForward(LogitsOutput):
    """The rows of a session.

    states: of the root and the nodes, new from `first` on. lead: of prefilled tokens, from `start` on."""

    def __init__(
        self,
        target: ToyTarget,
        lead: Sequence[ComputedToken],
        states: Sequence[ComputedToken],
        first: int,
        computed: int,
        want: RequiredOutputs,
        start: int,
    ) -> None:
        self._target, self._states, self._first = target, states, first
        self._pass = target._passes
        super().__init__(computed, Features(self._top(want.top_k), *self._hidden(lead, want), start))

    def _top(self, k: int) -> NDArray[np.int64] | None:
        rows = range(self._first, len(self._states))
        return np.stack([filter_top_k(self.logits(row), k) for row in rows]) if k and rows else None

    def _hidden(self, lead: Sequence[ComputedToken], want: RequiredOutputs) -> tuple[Any, int]:
        if not want.layers:
            return None, 0
        seen = [*lead, *self._states[self._first :]]
        hidden = [
            [self._target.hidden(state, token, layer) for layer in want.layers] for state, token in seen
        ]
        return np.array(hidden), len(lead)

    def logits(self, row: int) -> Array:
        node_position(row, range(self._first, len(self._states)), self._pass == self._target._passes)
        return self._target.logits(self._states[row][0])
