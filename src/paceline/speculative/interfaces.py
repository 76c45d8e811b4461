"""The contracts between the loop, the engines and the drafters.

Targets and drafters are symmetric: each is shared by all requests, gives a request its own state, and
works on a batch. Rows of a Forward: row 0 is the root's, row `i + 1` is node `i`'s; a row holds the
prediction for the token that *follows*. In a batch, `Any` stands for the implementation's own session or
memory: each is handed back only what it opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.arrays import Logits, Mask
from paceline.speculative.rng import GumbelNoise
from paceline.speculative.sampling import Sampling, TokenDistribution
from paceline.speculative.stats import Step
from paceline.speculative.tree import DraftTree
from paceline.speculative.vocabulary import Vocab

UNLIMITED = 1 << 40
Rollback = Literal["free", "restore", "none"]


@dataclass(frozen=True, slots=True)
class Caps:
    """What a target can do.

    branch: the most leaves one tree may have (1: chains only).
    rollback: how rejected tokens are taken back. free: they are dropped. restore: the model cannot rewind; it
        goes back to a checkpoint, and the tokens that were kept are computed again with the next pass. none:
        it cannot go back at all, and nothing can be drafted for it.
    sessions: the most that may be open at once.
    rows: the most rows with answers (roots and nodes) of one pass, all sessions together.
    chunk: the most tokens of prompts that are worth reading in one pass.
    n_ctx: positions a session may fill.
    nodes: the most that one tree may have.
    exact: what is decoded gives the same rows to the last bit however it is divided into passes.
    equal_rows: a row's numbers depend on its own text alone: not on how its prompt was divided, on what else
        is in the pass or the cache, nor on threads."""

    branch: int
    rollback: Rollback
    sessions: int
    rows: int
    chunk: int
    n_ctx: int
    nodes: int = UNLIMITED
    exact: bool = False
    equal_rows: bool = False


@dataclass(frozen=True, slots=True)
class RequiredOutputs:
    """What a drafter reads of the target. top_k: the k largest logits of every row. layers: the inputs of
    these layers, counted from 0; the number of layers stands for what the last of them puts out."""

    top_k: int = 0
    layers: tuple[int, ...] = ()

    def __or__(self, other: RequiredOutputs) -> RequiredOutputs:
        """What both read."""
        return RequiredOutputs(max(self.top_k, other.top_k), tuple(sorted({*self.layers, *other.layers})))


@dataclass(frozen=True, slots=True)
class Features:
    """What `RequiredOutputs` asked for, of the rows that a pass computed.

    top_k: token ids [rows, k], best first. hidden: [lead + rows, layers, width] in the order of the wanted
    layers, numbered upwards; an array of the engine's own kind, on its own device. lead: rows of committed
    text before the root's: of a prompt, or of tokens that are computed again. start: the position in the text
    of the first of all these rows (one that is not 0 at first: what is before it was computed by an earlier
    session)."""

    top_k: NDArray[np.int64] | None = None
    hidden: Any = None
    lead: int = 0
    start: int = 0


NOTHING = Features()


class ForwardOutput(Protocol):
    """What one forward says about one session; valid until the target's next forward.

    Asking for a row that was not computed (a node this session had computed before, or any where only a
    prompt was read) or asking too late raises ContractError.
    """

    @property
    def computed(self) -> int:
        """Rows that this pass computed for the session: of its prompt, what it had to compute again, its root
        and new nodes."""

    @property
    def features(self) -> Features: ...

    def argmax(self, row: int) -> int:
        """The likeliest next token; the lowest id of equals. Raises LogitsError where the row's logits are
        not numbers, as `sampling.argmax` does."""

    def target_distribution(
        self, row: int, sampling: Sampling, history: Sequence[int], mask: Mask | None = None
    ) -> TokenDistribution:
        """What plain sampling draws from at this row, as `sampling.odds` has it."""

    def logits(self, row: int) -> Logits:
        """The row's logits [n_vocab], as a view that must not be written to."""


class Session(Protocol):
    """One sequence; the sole owner of its KV cache or recurrent state. Only `forward` computes."""

    @property
    def tokens(self) -> Sequence[int]:
        """Committed tokens. The last one is the root, which is not in the cache yet."""

    @property
    def pending_tokens(self) -> int:
        """How many tokens before the root are still to be computed."""

    def extend(self, tokens: Sequence[int]) -> None:
        """`tokens` follow the committed ones: the prompt at first, of which anything that an earlier session
        has computed is taken over. Of a tree that was forwarded and not kept, what they go on with is taken
        over and the rest dropped: all of it where there are no tokens. Raises UsageError for a prompt without
        tokens, or too long; BusyError where all sessions are taken."""

    def commit(self, path: Sequence[int], root: int) -> None:
        """Commit the nodes on `path` of the last forward's tree, then `root` as the new root;
        drop every other branch."""

    def close(self) -> None: ...


class Target(Protocol):
    """Something that answers about next tokens: a loaded model, or a view of one."""

    @property
    def vocab(self) -> Vocab: ...

    @property
    def caps(self) -> Caps: ...

    @property
    def origin(self) -> str:
        """What messages call it: its file, where it has one."""

    def open(self, beside: Session | None = None) -> Session:
        """beside: the session of the target that is drafted for. A view of the same weights takes from it
        what it has already computed; any other model ignores it."""

    def forward(
        self, batch: Sequence[tuple[Any, DraftTree | int]], want: RequiredOutputs
    ) -> Sequence[ForwardOutput]:
        """One pass over all sessions. A tree: the session's unread tokens, its root and the tree; one that
        starts with the nodes of the session's last forward grows it: only the new nodes are computed.
        A number: only so many of its unread tokens are read, and there are no rows to ask about. (A target
        may need several passes for more than its caps allow.)"""

    def forget(self) -> None:
        """Drop what closed sessions have left to be taken over."""

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
    noise: what the target will draw with, where it draws. A drafter that heeds it guesses better.
    chunk: the most tokens of the text that a drafter with a model of its own may read for this proposal. One
    that is still behind then proposes nothing.
    only: names of the drafters of a composition that the request allows; None: all."""

    depth: int
    nodes: int
    width: int = 1
    p_min: float = 0.0
    p_split: float = 0.1
    grammar: Grammar | None = None
    noise: GumbelNoise | None = None
    chunk: int = UNLIMITED
    only: frozenset[str] | None = None

    def capped(self, depth: int, nodes: int, width: int) -> Budget:
        """No more than any of these."""
        if depth >= self.depth and nodes >= self.nodes and width >= self.width:
            return self
        depth, nodes = max(0, min(self.depth, depth)), max(0, min(self.nodes, nodes))
        return replace(self, depth=depth, nodes=nodes, width=min(self.width, width))

    def may_call(self, drafter: str) -> bool:
        """Whether the request allows it."""
        return self.only is None or drafter in self.only

    def should_call(self, drafter: str, draft: Callable[[], DraftTree], behind: int = 0) -> bool:
        """Whether a composition calls one more drafter, known the `draft` of those before it. behind: tokens
        that it has to read first."""
        return True

    def reach_probability(self, drafter: str, likely: float, depth: int, parent: float) -> float:
        """The chance that a token at `depth` is reached and accepted, which the drafter finds as `likely`
        after a text that has the chance `parent`."""
        return parent * likely

    def goes_on(self, likeliest: float, drafted: int, depth: int, reach_probability: float = 1.0) -> bool:
        """Whether to draft one more token below a node at `depth`, known the probability of the likeliest and
        its `reach_probability`. Decided before the token is drawn, so that sampled drafts stay exact."""
        return drafted < self.nodes and depth < self.depth and likeliest >= self.p_min

    def deepens(self, drafted: int, depth: int, reach_probability: float) -> bool:
        """Whether what follows a drafted token at `depth`, of that reach probability, is worth another pass
        of a drafter that has to compute it."""
        return True


NO_BUDGET = Budget(depth=0, nodes=0)


class DrafterState(Protocol):
    """One request's state in a drafter."""

    def update(self, step: Step, features: Features) -> None:
        """What was emitted. To a drafter that wants hidden states a prompt is shown first, in steps that emit
        nothing."""

    def close(self) -> None: ...


@runtime_checkable
class CatchesUp(Protocol):
    """A memory whose drafter reads the text by a model of its own before it can draft."""

    def behind(self) -> int:
        """Tokens that are still to be read."""


@runtime_checkable
class LearningDrafter(Protocol):
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
    def required_outputs(self) -> RequiredOutputs: ...

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> DrafterState:
        """One request's memory. `prompt` holds at least one token; its last one is the root. session: the
        target's, which a view of the target is opened beside. scope: what is learned of the request is for
        those of the same scope alone."""

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> Sequence[DraftTree]:
        """One tree a request, within its budget; EMPTY where there is nothing to guess."""

    def close(self) -> None: ...
