"""The contracts between the decoding loop, the backends and the drafters.

Targets and drafters are symmetric: both are shared by all requests, keep a state per request and work on
batches. Row 0 of a ForwardOutput belongs to the root and row `i + 1` to node `i`. A row predicts the *next*
token. `Any` in a batch stands for the implementation's session or state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.rng import GumbelNoise
from paceline.speculative.sampling import Logits, Mask, Sampling, TokenDistribution
from paceline.speculative.stats import Step
from paceline.speculative.tree import DraftTree
from paceline.speculative.vocabulary import Vocab

UNLIMITED = 1 << 40
Rollback = Literal["free", "restore", "none"]
S = TypeVar("S")
SessionBatch = Sequence[tuple[S, DraftTree | int]]  # sessions, each with its tree or tokens to prefill


@dataclass(frozen=True, slots=True)
class Caps:
    """The capabilities of a target.
    rollback: how rejected tokens leave the cache. free: they are dropped. restore: the model returns to a
        checkpoint and recomputes accepted tokens in the next pass. none: nothing can be drafted."""

    max_branches: int  # leaves of one tree; 1 means chains only
    rollback: Rollback
    max_sessions: int  # sessions open at once
    max_batch_tokens: int  # rows with outputs (roots and nodes) of one pass, over all sessions
    max_prefill_tokens: int  # prompt tokens worth computing in one pass
    n_ctx: int  # positions per session
    max_tree_nodes: int = UNLIMITED  # nodes of one tree
    exact: bool = False  # rows are bitwise equal however decoding is divided into passes
    equal_rows: bool = False  # rows depend on the tokens alone, not on chunks, batch, cache or threads
    sparse_prompts: bool = False  # sessions can leave out prompt tokens (SparseSession)


@dataclass(frozen=True, slots=True)
class RequiredOutputs:
    """The target outputs that a drafter reads."""

    top_k: int = 0  # the k largest logits of every row
    layers: tuple[int, ...] = ()  # hidden states at their inputs; the number of layers: the last output

    def __or__(self, other: RequiredOutputs) -> RequiredOutputs:
        return RequiredOutputs(max(self.top_k, other.top_k), tuple(sorted({*self.layers, *other.layers})))


NO_OUTPUTS = RequiredOutputs()


@dataclass(frozen=True, slots=True)
class Features:
    """The `RequiredOutputs` of one pass."""

    top_k: NDArray[np.int64] | None = None  # token ids [rows, k], best first
    hidden: Any = None  # [lead + rows, layers, width], layers ascending, on the backend's device
    lead: int = 0  # rows before the root's, of prompt tokens or of recomputed tokens
    start: int = 0  # position of the first row; earlier positions came from another session's cache


NO_FEATURES = Features()


class ForwardOutput(Protocol):
    """The output of one forward for one session, valid until the target's next forward.
    Methods fail for a row that was not computed or is no longer valid."""

    @property
    def computed(self) -> int:
        """Rows computed for this session: prompt, recomputed tokens, root and new nodes."""

    @property
    def features(self) -> Features: ...

    def argmax(self, row: int) -> int:
        """See `sampling.argmax`."""

    def target_distribution(
        self, row: int, sampling: Sampling, history: Sequence[int], mask: Mask | None = None
    ) -> TokenDistribution:
        """See `sampling.target_distribution`."""

    def logits(self, row: int) -> Logits:
        """Return a read-only view of the row's logits [n_vocab]."""


class Session(Protocol):
    """One token sequence, and sole owner of its KV cache or recurrent state. Only `forward` computes.
    Backends derive theirs from TreeSession (sessions.py)."""

    @property
    def tokens(self) -> Sequence[int]:
        """Committed tokens. The last one is the root, which is not in the cache yet."""

    @property
    def pending_tokens(self) -> int:
        """Number of tokens before the root that are not computed yet."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens, at first the prompt; reuse the cached prefix and drop uncommitted nodes.
        Raises UsageError for an empty or too long prompt, BusyError if all sessions are in use."""

    def commit(self, path: Sequence[int], root: int) -> None:
        """Commit the nodes on `path` of the last tree, then `root`; drop all other branches."""

    def close(self) -> None: ...


class SparseSession(Session, Protocol):
    """A session that can leave out prompt tokens, which changes what the model says."""

    def require_free(self) -> None:
        """Raise BusyError if all sessions are in use, before prompt tokens are selected."""

    def extend_sparse(self, prompt: Sequence[int], positions: Sequence[int]) -> None:
        """Append a prompt of which only the tokens at these positions are computed, where they are.
        positions: ascending, the last one being that of the root. Raises as `extend` does."""


class PromptSelector(Protocol):
    """Chooses the prompt tokens that are computed. Lossy: what is left out is never verified."""

    @property
    def description(self) -> str:
        """The change of the model, for records."""

    def select(self, prompt: Sequence[int]) -> Sequence[int]:
        """Return the positions of the prompt's tokens to compute; see SparseSession."""


@runtime_checkable
class SelectsPromptTokens(Protocol):
    """A target that may be set to leave out prompt tokens; `caps.sparse_prompts` says whether it can."""

    prompt_selector: PromptSelector | None


class Target(Protocol):
    """A loaded model, or a view of one. Wrappers derive from DelegatingTarget (delegating.py)."""

    @property
    def vocab(self) -> Vocab: ...

    @property
    def caps(self) -> Caps: ...

    @property
    def origin(self) -> str:
        """The model's name in messages: its file, if it has one."""

    def open(self, beside: Session | None = None) -> Session:
        """Open a session.
        beside: the target's session, for a draft model; a view of the same weights reuses its cache."""

    def forward(self, batch: SessionBatch[Any], want: RequiredOutputs) -> Sequence[ForwardOutput]:
        """Run one pass over all sessions.
        A tree computes the session's pending tokens, its root and new nodes; leading nodes that were in the
        last tree are reused. A number prefills so many pending tokens, without outputs."""

    def forget(self) -> None:
        """Drop the cache that closed sessions left for reuse."""

    def close(self) -> None: ...


class Grammar(Protocol):
    """The constraint on one request's text, such as a JSON schema or a regular expression."""

    @property
    def is_slow(self) -> bool:
        """Return true if masks have taken so long that the request is decoded without further drafts."""
        return False

    @property
    def following(self) -> Grammar | None:
        """Return the constraint on the text from here on; None if there is none any more."""
        return self

    def mask(self, path: Sequence[int]) -> Mask:
        """Return a read-only mask [n_vocab] of the tokens allowed after the committed text and `path`.
        All are allowed once the text has ended, none after a forbidden token."""

    def commit(self, tokens: Sequence[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of one proposal.
    depth, nodes, width: the longest path, the most nodes, the most leaves."""

    depth: int
    nodes: int
    width: int = 1
    p_min: float = 0.0  # an autoregressive drafter stops when its best next token is less likely
    p_split: float = 0.1  # a drafter branches where an alternative is at least this likely
    grammar: Grammar | None = None  # the request's constraint; drafts that ignore it are pruned
    gumbel_noise: GumbelNoise | None = None  # the noise the target will sample with, if it samples
    max_catch_up: int = UNLIMITED  # pending tokens beyond which a draft model only catches up
    allowed_drafters: frozenset[str] | None = None  # names of those the request allows; None: all

    def limited_to(self, depth: int, nodes: int, width: int) -> Budget:
        """Return the budget with these upper limits."""
        if depth >= self.depth and nodes >= self.nodes and width >= self.width:
            return self
        depth, nodes = max(0, min(self.depth, depth)), max(0, min(self.nodes, nodes))
        return replace(self, depth=depth, nodes=nodes, width=min(self.width, width))

    def for_request(
        self,
        grammar: Grammar | None,
        noise: GumbelNoise | None,
        catch_up: int,
        drafters: frozenset[str] | None,
    ) -> Budget:
        """Return the budget with what holds for a request: the last four fields."""
        return replace(
            self, grammar=grammar, gumbel_noise=noise, max_catch_up=catch_up, allowed_drafters=drafters
        )

    def may_call(self, drafter: str) -> bool:
        """Return whether the request allows the drafter."""
        return self.allowed_drafters is None or drafter in self.allowed_drafters

    def should_call(self, drafter: str, draft: Callable[[], DraftTree], pending_prefill: int = 0) -> bool:
        """Return whether a composition calls one more drafter, given the `draft` so far.
        pending_prefill: tokens the drafter has to prefill first."""
        return True

    def is_due(self, drafter: str, draft: Callable[[], DraftTree]) -> bool:
        """Return whether `should_call` would return True, without a call that counts."""
        return True

    def reach_probability(self, drafter: str, likely: float, depth: int, parent: float) -> float:
        """Return the probability that a token at `depth` is reached and accepted.
        likely: the drafter's score. parent: the reach probability of the parent."""
        return parent * likely

    def should_extend(
        self, likeliest: float, drafted: int, depth: int, reach_probability: float = 1.0
    ) -> bool:
        """Return whether to draft one more token below a node at `depth`.
        likeliest: probability of the best next token. Sampled drafts stay exact: no drawn token is judged."""
        return drafted < self.nodes and depth < self.depth and likeliest >= self.p_min

    def should_deepen(self, drafted: int, depth: int, reach_probability: float) -> bool:
        """Return whether a node at `depth` is worth another pass of the draft model."""
        return True


NO_BUDGET = Budget(depth=0, nodes=0)


class DrafterState(Protocol):
    """The state of one request in a drafter."""

    def update(self, step: Step, features: Features) -> None:
        """Record one step. A drafter of hidden states also gets the prompt, as steps without tokens."""

    def close(self) -> None: ...


@runtime_checkable
class PrefillingState(DrafterState, Protocol):
    """The state of a request in a draft model, which may have tokens to prefill before it drafts."""

    def pending_prefill(self) -> int:
        """Return the number of these tokens."""


@runtime_checkable
class PredictedState(DrafterState, Protocol):
    """The state of a request in a drafter that can follow a predicted output."""

    def predict(self, tokens: Sequence[int]) -> None:
        """Set the output that the request expects."""


@runtime_checkable
class LearningDrafter(Protocol):
    """A drafter that learns across requests."""

    def learn(self, tokens: Sequence[int]) -> None:
        """Learn one past output."""

    def forget(self) -> None:
        """Drop everything learned; what the drafter was constructed with stays."""


class Drafter(Protocol):
    """A source of guesses about the next tokens."""

    @property
    def name(self) -> str: ...

    @property
    def required_outputs(self) -> RequiredOutputs:
        """What the next pass has to output; less while the drafter is not used."""

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> DrafterState:
        """Open the state of one request.
        prompt: at least one token, the last one being the root.
        session: the target's session, for a draft model that is a view of the target.
        scope: what is learned from the request serves only requests of the same scope."""

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> Sequence[DraftTree]:
        """Return one tree per request within its budget, EMPTY where there is no guess."""

    def close(self) -> None: ...
