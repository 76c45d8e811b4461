"""The toy model: a tiny recurrent network in numpy, for tests, docs, proofs and `-m toy:`.

The cache holds a state per position. A row does not depend on other rows of a pass: logits are equal to the
last bit, or wrong. `toy:seed=3,noise=0.3` sets arguments of ToyTarget; a draft model for `toy:` is
`toy:noise=0.3`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.interface import BackendBuild, ForwardCallback, KernelStatus
from paceline.speculative import validation as typed
from paceline.speculative.errors import ContractError, UsageError
from paceline.speculative.forward_output import LogitsOutput, node_position
from paceline.speculative.interfaces import Caps, Features, RequiredOutputs, Session
from paceline.speculative.sampling import filter_top_k
from paceline.speculative.tree import EMPTY, DraftTree
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
    "sharpness": (float, 0.0, 1000.0),
    "noise": (float, 0.0, 1000.0),
    "eos": (int, 0, MAX_TOY_VOCAB - 1),
}


class ToyTarget:
    """A network h' = tanh(A h + E[token]) with the logits sharpness * W h'. All weights come from `seed`.
    noise: deviation of noise on W, which makes a draft model that resembles the model without.
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
        chunk: int = 512,
        sessions: int = 64,
        path: Path = Path("toy:"),
    ) -> None:
        random = np.random.default_rng(seed)
        self._mix = random.normal(size=(width, width)) * 0.9 / np.sqrt(width)
        self._embed = random.normal(size=(n_vocab, width))
        head = random.normal(size=(n_vocab, width)) * sharpness
        self._head = head + noise * sharpness * np.random.default_rng(seed + 1).normal(size=head.shape)
        self._weights = (self._mix, self._embed, self._head)
        self._passes = 0  # to notice reads of an outdated output
        spell = b"%d".__mod__
        self.vocab = Vocab(n_vocab, "toy", None, eos, False, False, text=spell, piece=spell)
        self.path, self.name, self.origin, self.modification = path, str(path), "the toy model", ""
        self.description = f"toy model of {n_vocab} tokens"
        self.text: Text = DigitTokenizer(self.vocab)
        self.weight_bytes = sum(weight.nbytes for weight in self._weights)
        self.settings: Mapping[str, Any] = {"threads": 1}
        self.on_forward: ForwardCallback | None = None
        self.caps = Caps(
            max_branches=branch,
            rollback="free",
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

    def open(self, beside: Session | None = None) -> ToySession:
        return ToySession(self)

    def forget(self) -> None: ...

    def close(self) -> None: ...

    def forward(
        self, batch: Sequence[tuple[ToySession, DraftTree | int]], want: RequiredOutputs
    ) -> list[ToyForward]:
        outs, began = list[ToyForward](), perf_counter()
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
        if self.on_forward is not None:
            rows = sum(out.computed for out in outs)
            self.on_forward(rows, len(batch[0][0].tokens), perf_counter() - began)
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


def open_engine(path: Path, /, *, n_ctx: int = 0, sessions: int = 1, **_: Any) -> ToyTarget:
    given: dict[str, Any] = {"n_ctx": n_ctx} if n_ctx else {}
    return ToyTarget(path=path, sessions=sessions, **given, **parse_toy_reference(path))


def open_tokenizer(path: Path, /) -> ToyTarget:
    return ToyTarget(path=path, **parse_toy_reference(path))


def identity(path: Path, _settings: Mapping[str, Any], /) -> dict[str, Any]:
    return ToyTarget(path=path, **parse_toy_reference(path)).identity()


def build() -> BackendBuild:
    return BackendBuild("", False)


def kernels_status() -> KernelStatus:
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
