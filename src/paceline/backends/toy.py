"""The toy model: a tiny recurrent network in numpy, for tests, docs, proofs and `-m toy:`.

The cache holds a state per position. A row does not depend on other rows of a pass: logits are equal to the
last bit, or wrong. `toy:seed=3,noise=0.3` sets arguments of ToyTarget; a draft model for `toy:` is
`toy:noise=0.3`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.common import check_exit, check_experts
from paceline.backends.interface import BackendBuild, ForwardCallback, KernelStatus, OutputHead
from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError
from paceline.speculative.forward_output import LogitsOutput, row_index
from paceline.speculative.interfaces import Caps, Features, RequiredOutputs, Rollback, Session, SessionBatch
from paceline.speculative.sessions import TreeSession
from paceline.speculative.tree import DraftTree
from paceline.speculative.vocabulary import Vocab
from paceline.text.grammar import TokenTrie
from paceline.text.interface import Text

Array = NDArray[np.float64]
ENGINE = f"toy, numpy {np.__version__}"
MAX_TOY_VOCAB = 10  # each token is one digit, so that a text has one tokenization
RANGES: Mapping[str, tuple[type, float, float]] = {
    "n_vocab": (int, 2, MAX_TOY_VOCAB),
    "seed": (int, 0, 2**32),
    "width": (int, 1, 1024),
    "layers": (int, 1, 64),
    "sharpness": (float, 0.0, 1000.0),
    "noise": (float, 0.0, 1000.0),
    "eos": (int, 0, MAX_TOY_VOCAB - 1),
}


class ToyTarget:
    """A network of layers h_l' = tanh(A_l h_l + x_l), where x_0 = E[token] and x_l = B_l h_(l-1)'.
    The logits are sharpness * W h' of the last layer. All weights come from `seed`.
    noise: deviation of noise on W, which makes a draft model that resembles the model without.
    rollback: "restore" holds a single state, like a recurrent model.
    path: the reference. The text of a token is its id: digits, for up to MAX_TOY_VOCAB tokens."""

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
        sessions: int = 64,
        path: Path = Path("toy:"),
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
        self._weights = (*self._mix, *self._up, self._embed, self._head)
        self._passes = 0  # to notice reads of an outdated output
        self.layers = self.exit_layer = layers
        self.width = self.hidden_size = width
        spell = b"%d".__mod__
        self.vocab = Vocab(n_vocab, "toy", None, eos, False, False, text=spell, piece=spell)
        self.path, self.name, self.origin, self.modification = path, str(path), "the toy model", ""
        self.description = f"toy model of {n_vocab} tokens"
        self.text: Text = DigitTokenizer(self.vocab)
        self.weight_bytes = sum(weight.nbytes for weight in self._weights)
        self.settings: Mapping[str, Any] = {"threads": 1}
        self.on_forward: ForwardCallback | None = None
        self.caps = Caps(
            max_branches=1 if rollback == "restore" else branch,
            rollback=rollback,
            max_sessions=sessions,
            max_batch_tokens=1 << 15,
            max_prefill_tokens=chunk,
            n_ctx=n_ctx,
            exact=True,  # a row does not depend on the other rows of a pass
        )

    @cached_property
    def token_trie(self) -> TokenTrie:
        return TokenTrie([self.vocab.piece(token) for token in range(self.vocab.size)], self.vocab.eos)

    def identity(self) -> dict[str, Any]:
        digest = hashlib.sha256(b"".join(weight.tobytes() for weight in self._weights))
        digest.update(repr(sorted(self.vocab.eos)).encode())
        return {"model": digest.hexdigest(), "engine": ENGINE, **self.settings}

    def view(self, exits: int) -> ToyTarget:
        """Return a model of the same weights without the layers behind the first `exits`.
        Sessions opened beside one of this model take over its states."""
        view = copy(self)
        view.exit_layer = exits
        view.modification = f"{exits} of {self.exit_layer} layers" * (exits != self.exit_layer)
        return view

    def first_layers(self, n: int) -> ToyTarget:
        check_exit(n, self.layers, self.path)
        return self.view(exits=n)

    def open(self, beside: Session | None = None) -> ToySession:
        shares = self._base is not self and self.caps.rollback == "free"
        if isinstance(beside, ToySession) and shares and beside._target is self._base:
            return ToySession(self, beside)
        return ToySession(self)

    def forget(self) -> None: ...

    def close(self) -> None: ...

    def forward(self, batch: SessionBatch[ToySession], want: RequiredOutputs) -> list[ToyForward]:
        outs, began = list[ToyForward](), perf_counter()
        self._passes += 1
        for session, tree in batch:
            first, states = 0, list[ComputedToken]()
            before, lead = session.read(tree if isinstance(tree, int) else session.pending_tokens)
            if not isinstance(tree, int):
                first = session.compute_tree(tree)
                states = session.states(tree)
            computed = len(lead) + len(states) - first
            outs.append(ToyForward(self, lead, states, first, computed, want, before))
        if self.on_forward is not None:
            rows = sum(out.computed for out in outs)
            self.on_forward(rows, len(batch[0][0].tokens), perf_counter() - began)
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
        end = state[-1] if layer else self._embed[token]
        out: Array = self._up[layer - 1] @ state[layer - 1] if 0 < layer < self.layers else end
        return out

    def logits(self, state: Array) -> Array:
        out: Array = self._head @ state[-1]
        return out

    def token_embeddings(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return self._embed[list(tokens)].astype(np.float32)

    def output_head(self) -> OutputHead:
        return OutputHead(None, self._head.astype(np.float32))


ComputedToken = tuple[Array, int]  # the states after a token, and the token


class ToySession(TreeSession):
    """The states of the committed tokens (`_states`), and of the root and the nodes of the last tree.
    A model that cannot roll back has the last state only: accepted tokens are computed again, unless the
    whole draft was accepted. beside: a session of the whole model, whose states a view uses."""

    def __init__(self, target: ToyTarget, beside: ToySession | None = None) -> None:
        super().__init__(target.caps.n_ctx)
        self._target, self._beside = target, beside
        self._states: list[Array] = []
        self._read = 0  # committed tokens that were computed
        self._tree_states: list[Array] = []

    @property
    def pending_tokens(self) -> int:
        return max(0, len(self.tokens) - 1 - self._read)

    def _commit(self, tree: DraftTree, path: Sequence[int]) -> None:
        accepted = [self._tree_states[0], *(self._tree_states[node + 1] for node in path)]
        if self._target.caps.rollback == "free":
            self._states += accepted
            self._read += len(accepted)
        elif len(path) == len(tree):  # otherwise everything since the last state is computed again
            self._states = accepted[-1:]
            self._read += len(accepted)
        self._rewind()

    def _rewind(self) -> None:
        self._tree_states = []

    def read(self, n: int) -> tuple[int, list[ComputedToken]]:
        """Prefill `n` tokens; return where they begin, and the states not taken from `beside`."""
        self.require_pending(n)
        start, computed = self._read, list[ComputedToken]()
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

    def _compute(self, tree: DraftTree, first: int) -> None:
        states, after = self._tree_states, self._target.after
        del states[first:]  # of a pass that was interrupted
        if first == 0:
            states.append(after(self._states[-1] if self._states else None, self.tokens[-1]))
        for node in range(len(states) - 1, len(tree)):
            states.append(after(states[tree.parents[node] + 1], tree.tokens[node]))

    def states(self, tree: DraftTree) -> list[ComputedToken]:
        """Return the states of the root and of all nodes."""
        return list(zip(self._tree_states, (self.tokens[-1], *tree.tokens), strict=True))

    def close(self) -> None:
        super().close()
        self._states, self._tree_states, self._read = [], [], 0


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
        top = self.top_k(range(first, len(states)), want.top_k)
        super().__init__(computed, Features(top, *self._hidden(lead, want), start))

    def _hidden(self, lead: Sequence[ComputedToken], want: RequiredOutputs) -> tuple[Any, int]:
        if not want.layers:
            return None, 0
        seen = [*lead, *self._states[self._first :]]
        hidden = self._target.hidden
        rows = [[hidden(state, token, layer) for layer in want.layers] for state, token in seen]
        return np.array(rows), len(lead)

    def logits(self, row: int) -> Array:
        row_index(row, range(self._first, len(self._states)), self._pass == self._target._passes)
        return self._target.logits(self._states[row][0])


def open_engine(path: Path, /, *, n_ctx: int = 0, sessions: int = 1, experts: int = 0, **_: Any) -> ToyTarget:
    if experts:
        check_experts(experts, 0, 0, path)
    given: dict[str, Any] = {"n_ctx": n_ctx} if n_ctx else {}
    return ToyTarget(path=path, sessions=sessions, **given, **parse_toy_reference(path))


def open_tokenizer(path: Path, /) -> ToyTarget:
    return ToyTarget(path=path, **parse_toy_reference(path))


def identity(path: Path, _settings: Mapping[str, Any], /) -> dict[str, Any]:
    return ToyTarget(path=path, **parse_toy_reference(path)).identity()


def build() -> BackendBuild:
    return BackendBuild("", False)


def kernel_status() -> KernelStatus:
    return KernelStatus()


def parse_toy_reference(path: Path) -> dict[str, Any]:
    """Return the arguments of ToyTarget in a reference. Raises UsageError."""
    out: dict[str, Any] = {}
    for part in filter(None, str(path).partition(":")[2].split(",")):
        name, _, value = part.partition("=")
        kind, low, high = RANGES.get(name, (str, 0.0, 0.0))
        try:
            out[name] = number = kind(value)
            good = isfinite(number) and low <= number <= high
        except (ValueError, TypeError):
            good = False
        if not good:
            known = ", ".join(f"{key} ({low:g} to {high:g})" for key, (_, low, high) in RANGES.items())
            raise UsageError(f"{path}: {part!r} is no setting; write toy:seed=3,noise=0.3, of {known}")
    if "eos" in out:
        out["eos"] = frozenset({out["eos"]})
    return out


class DigitTokenizer(Text):
    """Text of digits. Every other letter stands for a digit, too; white space is left out."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab

    def encode(self, text: str, *, special: bool = False, add_bos: bool = True) -> list[int]:
        letters = (letter for letter in typed.text("the text", text) if not letter.isspace())
        return [(ord(letter) - ord("0")) % self._vocab.size for letter in letters]

    def piece(self, token: int) -> bytes:
        return self._vocab.piece(token)

    def template(self, *, tools: bool = False) -> str:
        return ""

    def bos_and_eos(self) -> tuple[str, str]:
        return "", ""
