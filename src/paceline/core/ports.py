"""The contracts between the loop, the engines and the drafters.

Targets and drafters are symmetric: each is shared by all requests, gives a request its own state, and
works on a batch. Rows of a Forward: row 0 is the root's, row `i + 1` is node `i`'s; a row holds the
prediction for the token that *follows*. In a batch, `Any` stands for the implementation's own session or
memory: each is handed back only what it opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import DraftTree
from paceline.core.vocab import Vocab

if TYPE_CHECKING:
    from paceline.core.record import Step
    from paceline.core.rng import Noise

Logits = NDArray[np.float32] | NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Caps:
    """What a target can do. branch: the most leaves one tree may have (1: chains only).
    rewind: rejected tokens can be taken back. batch: the most sessions open at once.
    rows: the most rows one forward may compute. n_ctx: positions a session may fill.
    exact: what is decoded gives the same rows to the last bit however it is divided into passes.
    folded: up to so many tokens of a prompt are computed with the first forward, not in `prefill`."""

    branch: int
    rewind: bool
    batch: int
    rows: int
    n_ctx: int
    exact: bool = False
    folded: int = 0


@dataclass(frozen=True, slots=True)
class Want:
    """Target features a drafter reads. top_k: the k largest logits of every row."""

    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Features:
    """What `Want` asked for. top_k: token ids [rows, k], best first."""

    top_k: NDArray[np.int64] | None = None


class Forward(Protocol):
    """Answers about the rows one forward computed; valid until the target's next forward.

    Asking for a row that was not computed (a node this session had computed before) or asking too
    late raises ContractError.
    """

    @property
    def features(self) -> Features: ...

    def argmax(self, row: int) -> int:
        """The likeliest next token; the lowest id of equals. Raises LogitsError where the row's logits are
        not numbers, as `sampling.argmax` does."""

    def logits(self, row: int) -> Logits:
        """The row's logits [n_vocab], as a view that must not be written to."""


class Session(Protocol):
    """One sequence; the sole owner of its KV cache. Only `forward` and `prefill` compute."""

    @property
    def tokens(self) -> Sequence[int]:
        """Committed tokens. The last one is the root, which is not in the cache yet."""

    def prefill(self, tokens: Sequence[int]) -> None:
        """Make `tokens` (at least one) the committed sequence. Whatever the cache already holds of it,
        committed or drafted, is kept; the rest is dropped."""

    def keep(self, path: Sequence[int], root: int) -> None:
        """Commit the nodes on `path` of the last forward's tree, then `root` as the new root;
        drop every other branch."""

    def close(self) -> None: ...


class Target(Protocol):
    """A loaded model."""

    @property
    def vocab(self) -> Vocab: ...

    @property
    def caps(self) -> Caps: ...

    @property
    def origin(self) -> str:
        """What messages call it: its file, where it has one."""

    def open(self) -> Session: ...

    def forward(self, batch: Sequence[tuple[Any, DraftTree]], want: Want) -> Sequence[Forward]:
        """One pass over every session's root and tree. A tree that starts with the nodes of the
        session's last forward grows it: only the new nodes are computed."""

    def close(self) -> None: ...


class Grammar(Protocol):
    """What one request's text may be: a JSON schema, a regular expression. It stands where the committed text
    ends, and questions about drafts leave it there."""

    def mask(self, path: Sequence[int]) -> Mask:
        """Which tokens [n_vocab] may follow the committed text and then `path`; all of them once it has
        ended, and none after a token that it forbids. A view that must not be written to."""

    def commit(self, tokens: Sequence[int]) -> None:
        """`tokens` were emitted."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one proposal may hold. depth: longest path. nodes: most nodes. width: most leaves.
    p_min: a drafter that drafts step by step goes on while its best next token is at least this likely.
    p_split: it branches where an alternative is at least this likely.
    grammar: what the text must follow. A drafter that heeds it guesses better; others are pruned.
    noise: what the target will draw with, where it draws. A drafter that heeds it guesses better."""

    depth: int
    nodes: int
    width: int = 1
    p_min: float = 0.0
    p_split: float = 0.1
    grammar: Grammar | None = None
    noise: Noise | None = None

    def capped(self, depth: int, nodes: int, width: int) -> Budget:
        """No more than any of these."""
        if depth >= self.depth and nodes >= self.nodes and width >= self.width:
            return self
        depth, nodes = max(0, min(self.depth, depth)), max(0, min(self.nodes, nodes))
        return replace(self, depth=depth, nodes=nodes, width=min(self.width, width))

    def asks(self, drafter: str, draft: Callable[[], DraftTree]) -> bool:
        """Whether a composition asks one more drafter, known the `draft` of those before it."""
        return True

    def survival(self, drafter: str, likely: float, depth: int, parent: float) -> float:
        """The chance that a token at `depth` is reached and accepted, which the drafter finds as `likely`
        after a text that has the chance `parent`."""
        return parent * likely

    def goes_on(self, likeliest: float, drafted: int, depth: int, survival: float = 1.0) -> bool:
        """Whether to draft one more token below a node at `depth`, known the probability of the likeliest and
        its `survival`. Decided before the token is drawn, so that sampled drafts stay exact."""
        return drafted < self.nodes and depth < self.depth and likeliest >= self.p_min

    def deepens(self, drafted: int, depth: int, survival: float) -> bool:
        """Whether what follows a drafted token at `depth`, of that survival, is worth another pass of a
        drafter that has to compute it."""
        return True


NO_BUDGET = Budget(depth=0, nodes=0)


class Memory(Protocol):
    """One request's state in a drafter."""

    def observe(self, step: Step, features: Features) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Learner(Protocol):
    """A drafter that remembers across requests."""

    def learn(self, tokens: Sequence[int]) -> None:
        """One past output."""

    def forget(self) -> None:
        """Drop what requests and `learn` have taught it. What it was made with, a corpus for one, stays."""


class Drafter(Protocol):
    """Guesses the tokens that follow. What it shares between requests stays in the drafter."""

    @property
    def name(self) -> str: ...

    @property
    def wants(self) -> Want: ...

    def open(self, prompt: Sequence[int], seed: int) -> Memory:
        """One request's memory. `prompt` holds at least one token; its last one is the root."""

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> Sequence[DraftTree]:
        """One tree a request, within its budget; EMPTY where there is nothing to guess."""

    def close(self) -> None: ...
