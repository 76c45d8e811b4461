"""The contracts between the loop, the engines and the drafters.

Targets and drafters are symmetric: shared by all requests, they give each a state and work on a batch.
Rows of a ForwardOutput: row 0 is the root's, row `i + 1` is node `i`'s; a row holds the prediction for the
token that *follows*. In a batch, `Any` stands for the implementation's session or state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.rng import GumbelNoise
from paceline.speculative.sampling import Logits, Mask, Sampling, TokenDistribution
from paceline.speculative.stats import Step
from paceline.speculative.tree import DraftTree
from paceline.speculative.vocabulary import Vocab

UNLIMITED = 1 << 40
Rollback = Literal["free", "restore", "none"]


@dataclass(frozen=True, slots=True)
class Caps:
    """What a target can do.

    branch: the most leaves of one tree (1: chains only).
    rollback: how rejected tokens are taken back. free: dropped. restore: the model goes back to a checkpoint,
        and tokens that were kept are computed again with the next pass. none: nothing can be drafted.
    sessions: the most that may be open at once.
    rows: the most rows with answers (roots and nodes) of one pass, all sessions together.
    chunk: the most tokens of prompts that are worth reading in one pass.
    n_ctx: positions a session may fill.
    nodes: the most that one tree may have.
    exact: decoding gives the same rows to the last bit however it is divided into passes.
    equal_rows: a row depends on its text alone, not on chunks, batch, cache or threads."""

    max_branches: int
    rollback: Rollback
    max_sessions: int
    max_batch_tokens: int
    max_prefill_tokens: int
    n_ctx: int
    max_tree_nodes: int = UNLIMITED
    exact: bool = False
    equal_rows: bool = False


@dataclass(frozen=True, slots=True)
class RequiredOutputs:
    """What a drafter reads of the target.

    top_k: the k largest logits of every row.
    layers: inputs of these layers, from 0; the number of layers stands for the last one's output."""

    top_k: int = 0
    layers: tuple[int, ...] = ()

    def __or__(self, other: RequiredOutputs) -> RequiredOutputs:
        return RequiredOutputs(max(self.top_k, other.top_k), tuple(sorted({*self.layers, *other.layers})))


@dataclass(frozen=True, slots=True)
class Features:
    """What `RequiredOutputs` asked for, of the rows that a pass computed.

    top_k: token ids [rows, k], best first.
    hidden: [lead + rows, layers, width], layers ascending; an array of the engine's kind, on its device.
    lead: rows of committed text before the root's: of a prompt, or of tokens that are computed again.
    start: the position of the first of these rows; text before it was computed by an earlier session."""

    top_k: NDArray[np.int64] | None = None
    hidden: Any = None
    lead: int = 0
    start: int = 0


NO_FEATURES = Features()


class ForwardOutput(Protocol):
    """What one forward says about one session; valid until the target's next forward. Asking for a row that
    this forward did not compute, or too late, raises ContractError."""

    @property
    def computed(self) -> int:
        """Rows that this pass computed for the session: of its prompt, again, its root and new nodes."""

    @property
    def features(self) -> Features: ...

    def argmax(self, row: int) -> int:
        """See `sampling.argmax`."""

    def target_distribution(
        self, row: int, sampling: Sampling, history: Sequence[int], mask: Mask | None = None
    ) -> TokenDistribution:
        """See `sampling.target_distribution`."""

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
        """Append `tokens` to the committed ones: the prompt at first, of which the cache of earlier sessions
        is taken over. Of a tree that was forwarded and not committed, what agrees with them is taken over and
        the rest dropped. Raises UsageError for a prompt without tokens, or too long; BusyError where all
        sessions are taken."""

    def commit(self, path: Sequence[int], root: int) -> None:
        """Commit the nodes on `path` of the last forward's tree, then `root`; drop every other branch."""

    def close(self) -> None: ...


class Target(Protocol):
    """A loaded model, or a view of one."""

    @property
    def vocab(self) -> Vocab: ...

    @property
    def caps(self) -> Caps: ...

    @property
    def origin(self) -> str:
        """What messages call it: its file, where it has one."""

    def open(self, beside: Session | None = None) -> Session:
        """beside: the session of the target that is drafted for, whose computed rows a view of the same
        weights takes over; any other model ignores it."""

    def forward(
        self, batch: Sequence[tuple[Any, DraftTree | int]], want: RequiredOutputs
    ) -> Sequence[ForwardOutput]:
        """One pass over all sessions. A tree: the session's pending tokens, its root and the tree, whose
        leading nodes may be those of the session's last forward and are not computed again. A number: so many
        pending tokens are read, and there are no rows to ask about."""

    def forget(self) -> None:
        """Drop what closed sessions have left to be taken over."""

    def close(self) -> None: ...


class Grammar(Protocol):
    """What one request's text may be: a JSON schema, a regular expression."""

    def mask(self, path: Sequence[int]) -> Mask:
        """Which tokens [n_vocab] may follow the committed text and then `path`: all once it has ended, none
        after a token that it forbids. A view that must not be written to."""

    def commit(self, tokens: Sequence[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one proposal may hold.

    depth, nodes, width: the longest path, the most nodes, the most leaves.
    p_min: a drafter that drafts step by step goes on while the best next token is at least this likely.
    p_split: a drafter branches where an alternative is at least this likely.
    grammar: what the text must follow. Drafts of drafters that ignore it are pruned.
    noise: what the target will draw with, where it draws.
    chunk: the most tokens of the text that a draft model may read for this proposal; one that is still behind
        then proposes nothing.
    only: names of the drafters of a composition that the request allows; None: all."""

    depth: int
    nodes: int
    width: int = 1
    p_min: float = 0.0
    p_split: float = 0.1
    grammar: Grammar | None = None
    gumbel_noise: GumbelNoise | None = None
    max_catch_up: int = UNLIMITED
    allowed_drafters: frozenset[str] | None = None

    def limited_to(self, depth: int, nodes: int, width: int) -> Budget:
        """No more than any of these."""
        if depth >= self.depth and nodes >= self.nodes and width >= self.width:
            return self
        depth, nodes = max(0, min(self.depth, depth)), max(0, min(self.nodes, nodes))
        return replace(self, depth=depth, nodes=nodes, width=min(self.width, width))

    def may_call(self, drafter: str) -> bool:
        """Whether the request allows the drafter."""
        return self.allowed_drafters is None or drafter in self.allowed_drafters

    def should_call(self, drafter: str, draft: Callable[[], DraftTree], behind: int = 0) -> bool:
        """Whether a composition calls one more drafter, after the `draft` of those before. behind: tokens
        that the drafter has to read first."""
        return True

    def reach_probability(self, drafter: str, likely: float, depth: int, parent: float) -> float:
        """The chance that a token at `depth` is reached and accepted. likely: the drafter's score; parent:
        the chance of the node above."""
        return parent * likely

    def should_extend(
        self, likeliest: float, drafted: int, depth: int, reach_probability: float = 1.0
    ) -> bool:
        """Whether to draft one more token below a node at `depth`, by the probability of the likeliest and
        its `reach_probability`: before the token is drawn, so that sampled drafts stay exact."""
        return drafted < self.nodes and depth < self.depth and likeliest >= self.p_min

    def should_deepen(self, drafted: int, depth: int, reach_probability: float) -> bool:
        """Whether what follows a drafted token at `depth` is worth another pass of a draft model."""
        return True


NO_BUDGET = Budget(depth=0, nodes=0)


class DrafterState(Protocol):
    """One request's state in a drafter."""

    def update(self, step: Step, features: Features) -> None:
        """One step. A drafter that wants hidden states first sees the prompt, in steps that emit nothing."""

    def close(self) -> None: ...


@runtime_checkable
class LearningDrafter(Protocol):
    """A drafter that remembers across requests."""

    def learn(self, tokens: Sequence[int]) -> None:
        """One past output."""

    def forget(self) -> None:
        """Drop what requests and `learn` have taught; what the drafter was made with stays."""


class Drafter(Protocol):
    """Guesses the tokens that follow."""

    @property
    def name(self) -> str: ...

    @property
    def required_outputs(self) -> RequiredOutputs: ...

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> DrafterState:
        """Open one request's state. prompt: at least one token, the last one being the root. session: the
        target's, which a view of the target is opened beside. scope: what is learned of the request is for
        those of the same scope alone."""

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> Sequence[DraftTree]:
        """One tree a request, within its budget; EMPTY where there is nothing to guess."""

    def close(self) -> None: ...
