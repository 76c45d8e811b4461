"""A draft model: any Target with the target's vocabulary (Leviathan et al., arXiv:2211.17192).

Its session keeps the KV cache of the accepted part of the last draft. Drafts are
  greedy    a chain of argmax tokens, or with width > 1 a tree with branches at alternatives of at least
            `p_split`; q is None. If the target samples, its Gumbel noise is applied first (rng.py)
  sampled   a chain drawn from the draft's top-k at its temperature, recorded as q; with width > 1 a tree of
            siblings drawn without replacement
A grammar restricts both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.drafters.parts import MODEL_SOURCE, DrafterInputs, Warn
from paceline.heads.confidence import Confidence
from paceline.speculative.chunked_prefill import split_chunk
from paceline.speculative.interfaces import (
    NO_OUTPUTS,
    UNLIMITED,
    Budget,
    Drafter,
    Features,
    ForwardOutput,
    RequiredOutputs,
    Session,
    Target,
)
from paceline.speculative.rng import SeededRng
from paceline.speculative.sampling import (
    Logits,
    Probabilities,
    Rng,
    Sampling,
    describe_invalid_logits,
    filter_top_k,
    probabilities,
)
from paceline.speculative.sessions import ResumableSession
from paceline.speculative.stats import Step
from paceline.speculative.tree import EMPTY, ROOT, DraftTree
from paceline.speculative.vocabulary import Vocab

Ids = NDArray[np.int64]


class ModelDrafterState:
    """The draft model's session, and the tokens it has to catch up with."""

    def __init__(self, reader: ResumableSession, vocab: Vocab, prompt: Sequence[int], seed: int) -> None:
        self.reader = reader
        self._vocab = vocab
        self.tokens: list[int] = []
        self.extend(prompt)
        # A separate stream, so that drafting does not change the target's draws.
        self.rng: Rng = SeededRng(int(np.random.SeedSequence([seed, 1]).generate_state(1)[0]))

    @property
    def session(self) -> Session:
        return self.reader.session

    def extend(self, tokens: Sequence[int]) -> None:
        # Tokens the draft model lacks become token 0, which only costs acceptance.
        self.tokens += self._vocab.known(tokens)

    def update(self, step: Step, features: Features) -> None:
        self.extend(step.tokens)

    def pending_prefill(self) -> int:
        """See PrefillingState."""
        self.reader.sync_to(self.tokens)
        return self.session.pending_tokens

    def close(self) -> None:
        self.reader.close()


@dataclass
class _Growth:
    """A draft under construction: the arrays of the tree, and the nodes to expand next."""

    state: ModelDrafterState
    budget: Budget
    name: str
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    score: list[float] = field(default_factory=list)
    q: list[Probabilities | None] = field(default_factory=list)
    reach_probability: list[float] = field(default_factory=list)
    frontier: list[int] = field(default_factory=lambda: [ROOT])
    depth: int = 0
    leaves: int = 1

    def add(
        self, parent: int, token: int, score: float, reach_probability: float, q: Probabilities | None = None
    ) -> None:
        """Add a node, and expand it later if that is worth a pass."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.score.append(score)
        self.q.append(q)
        self.reach_probability.append(reach_probability)
        if self.budget.should_deepen(len(self.tokens), self.depth + 1, reach_probability):
            self.frontier.append(len(self.tokens) - 1)

    def score_of(self, node: int) -> float:
        return 1.0 if node == ROOT else self.score[node]

    def child_reach(self, parent: int, likely: float) -> float:
        """Return the reach probability of a token below `parent`."""
        above = 1.0 if parent == ROOT else self.reach_probability[parent]
        return self.budget.reach_probability(self.name, likely, self.depth + 1, above)

    def should_extend(self, likeliest: float, reach_probability: float) -> bool:
        return self.budget.should_extend(likeliest, len(self.tokens), self.depth, reach_probability)

    def allowed(self, node: int, logits: Logits, ids: Ids | None) -> Logits:
        """Return the logits after `node`, with tokens that the grammar forbids at minus infinity.
        ids: the tokens of the logits, None for all from 0 on."""
        if self.budget.grammar is None:
            return logits
        path: list[int] = []
        while node != ROOT:
            path.append(self.tokens[node])
            node = self.parents[node]
        mask = self.budget.grammar.mask(path[::-1])
        return np.where(mask[: len(logits)] if ids is None else mask[ids], logits, -np.inf)

    def tree(self) -> DraftTree:
        if not self.tokens:
            return EMPTY
        sampled = any(q is not None for q in self.q)
        return DraftTree(
            tokens=tuple(self.tokens),
            parents=tuple(self.parents),
            score=tuple(self.score),
            source=(self.name,) * len(self.tokens),
            q=tuple(self.q) if sampled else None,
            reach_probability=tuple(self.reach_probability),
        )


class ModelDrafter:
    """A drafter that owns a draft model.
    n_vocab: the target's vocabulary size; tokens beyond it are never proposed.
    temperature: 0 drafts greedily; above it tokens are drawn from the top_k, with a q.
    confidence: scores the likeliest token of greedy drafts, in place of its probability.
    warn: called once about invalid logits, for which nothing is drafted."""

    name = MODEL_SOURCE
    max_depth = UNLIMITED  # of a draft

    def __init__(
        self,
        draft: Target,
        n_vocab: int,
        *,
        temperature: float = 0.0,
        top_k: int = 10,
        confidence: Confidence | None = None,
        warn: Warn = lambda _: None,
    ) -> None:
        self._draft, self._confidence = draft, confidence
        self._warn, self._warned = warn, False
        self._n_vocab = n_vocab
        self._sampling = Sampling(temperature=temperature, top_k=top_k) if temperature > 0 else None

    @property
    def required_outputs(self) -> RequiredOutputs:
        return NO_OUTPUTS

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> ModelDrafterState:
        return ModelDrafterState(ResumableSession(self._draft, session), self._draft.vocab, prompt, seed)

    def close(self) -> None:
        self._draft.close()

    def propose(self, batch: Sequence[tuple[ModelDrafterState, Budget]]) -> list[DraftTree]:
        """Draft with one forward per level, for all requests together."""
        n = sum(budget.depth > 0 and budget.nodes > 0 for _, budget in batch)
        growths = [_Growth(state, self._fit_budget(state, budget, n), self.name) for state, budget in batch]
        active = [g for g in growths if g.budget.depth > 0 and g.budget.nodes > 0]
        for growth in active:
            growth.state.reader.sync_to(growth.state.tokens)
        active = self._caught_up(active)
        while active:
            outs = self._draft.forward([(g.state.session, g.tree()) for g in active], NO_OUTPUTS)
            for growth, out in zip(active, outs, strict=True):
                self._grow(growth, out)
            active = [g for g in active if g.frontier and g.depth < g.budget.depth]
        return [g.tree() for g in growths]

    def _caught_up(self, growths: list[_Growth]) -> list[_Growth]:
        """Return the drafts whose pending tokens fit this proposal's chunk; the others prefill."""
        pending_tokens = [growth.state.session.pending_tokens for growth in growths]
        chunk = min((growth.budget.max_catch_up for growth in growths), default=0)
        if sum(pending_tokens) <= chunk:
            return growths
        ready, reading = [], []
        for growth, pending, n in zip(
            growths, pending_tokens, split_chunk(pending_tokens, chunk), strict=True
        ):
            if n == pending:
                ready.append(growth)
            elif n:
                reading.append((growth.state.session, n))
        if reading:
            self._draft.forward(reading, NO_OUTPUTS)
        return ready

    def _fit_budget(self, state: ModelDrafterState, budget: Budget, n: int) -> Budget:
        """Limit the budget to the draft model's context and trees, and to a pass shared by `n` requests."""
        caps = self._draft.caps
        room = caps.n_ctx - len(state.tokens)
        nodes = min(room, caps.max_batch_tokens // max(1, n) - 1, caps.max_tree_nodes)
        nodes = 0 if caps.rollback == "none" else nodes
        return budget.limited_to(min(room, self.max_depth), nodes, width=caps.max_branches)

    def _grow(self, growth: _Growth, out: ForwardOutput) -> None:
        """Add the next level below the frontier."""
        frontier, growth.frontier = growth.frontier, []
        for node in frontier:
            noise = growth.budget.gumbel_noise
            row, ids = self._row(out, node, dense=noise is not None or self._sampling is not None)
            logits = growth.allowed(node, row, ids)
            most = logits.max()
            if not isfinite(most):  # a broken draft model, or no allowed token
                self._check(row)
                continue
            if self._sampling is not None:
                self._add_sampled(growth, node, logits, self._sampling)
                continue
            if noise is not None:
                ids, logits = noise.perturbed(logits, growth.depth)
                most = logits.max()
            if growth.budget.width == 1:
                self._add_likeliest(growth, node, logits, ids)
            else:
                self._add_branches(growth, node, logits - most, ids)
        growth.depth += 1

    def _row(self, out: Any, node: int, *, dense: bool) -> tuple[Logits, Ids | None]:
        """Return the logits after a node, and the ids of their tokens, None for all from 0 on.
        dense: the logits must be of all tokens."""
        return out.logits(node + 1)[: self._n_vocab], None

    def _check(self, row: Logits) -> None:
        """Warn once about invalid logits."""
        wrong = describe_invalid_logits(row.max())
        if wrong and not self._warned:
            self._warned = True
            self._warn(
                f"{self._draft.origin}: the draft model's logits are not numbers ({wrong}): nothing is "
                "drafted with them, and the output stays plain output; give another draft model, or none"
            )

    def _add_likeliest(self, growth: _Growth, node: int, logits: Logits, ids: Ids | None) -> None:
        """Add the argmax token."""
        best = int(logits.argmax())
        # The probability of the argmax needs one sum, not a whole distribution.
        weights = np.exp(logits - logits[best])
        likeliest = 1.0 / float(weights.sum())
        if self._confidence is not None:
            likeliest = self._confidence.probability(weights * likeliest, growth.depth, growth.score_of(node))
        reach_probability = growth.child_reach(node, likeliest)
        if growth.should_extend(likeliest, reach_probability):
            growth.add(node, best if ids is None else int(ids[best]), likeliest, reach_probability)

    def _add_sampled(self, growth: _Growth, node: int, logits: Logits, sampling: Sampling) -> None:
        """Draw siblings without replacement."""
        q = full = probabilities(logits, sampling, ())
        # The number of draws is fixed before the first: dropping a drawn token would bias the output.
        likeliest = float(q.max())
        if not growth.should_extend(likeliest, growth.child_reach(node, likeliest)):
            return
        room = 1 + growth.budget.width - growth.leaves
        n = max(1, min(room, int((q >= growth.budget.p_split).sum()), int((q > 0.0).sum())))
        growth.leaves += n - 1
        for _ in range(n):
            if len(growth.tokens) >= growth.budget.nodes:
                break
            token = growth.state.rng.draw(q)
            likely = float(full[token])
            growth.add(node, token, likely, growth.child_reach(node, likely), q)
            q = without_token(q, token)

    def _add_branches(self, growth: _Growth, node: int, logits: Logits, ids: Ids | None) -> None:
        """Add the likeliest tokens. logits: with maximum 0; overwritten."""
        budget = growth.budget
        p = np.exp(logits, out=logits)
        total = float(p.sum())
        # Few tokens are likely enough to branch to, so finding them is faster than a top-k.
        near = np.flatnonzero(p >= min(budget.p_split * total, 1.0))
        if len(near) > budget.width:
            near = near[filter_top_k(p[near], budget.width)]
        candidates = zip(p[near].tolist(), near.tolist(), strict=True)
        for rank, (weight, at) in enumerate(sorted(candidates, key=itemgetter(0), reverse=True)):
            if rank > 0 and growth.leaves >= budget.width:
                break
            likely = weight / total
            if rank == 0 and self._confidence is not None:
                likely = self._confidence.probability(p / total, growth.depth, growth.score_of(node))
            reach_probability = growth.child_reach(node, likely)
            if not growth.should_extend(likely, reach_probability):
                break
            growth.leaves += rank > 0
            growth.add(node, at if ids is None else int(ids[at]), likely, reach_probability)


def without_token(q: Probabilities, token: int) -> Probabilities:
    """Return `q` renormalised without one token; `q` itself if no other is left."""
    rest = q.copy()
    rest[token] = 0.0
    mass = rest.sum()
    return rest / mass if mass > 0.0 else q


def make(parts: DrafterInputs) -> Drafter:
    assert parts.draft is not None
    return ModelDrafter(parts.draft, parts.target.vocab.size, **parts.model_settings)
