"""A draft head: a draft model (drafters/model.py) that is also given the target's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

from paceline.drafters.compose import Resting
from paceline.drafters.model import Ids, ModelDrafter, ModelDrafterState
from paceline.drafters.parts import DrafterInputs
from paceline.heads.draft_base import DraftForward, HeadBase
from paceline.heads.session import HeadSession
from paceline.speculative.interfaces import NO_BUDGET, NO_OUTPUTS, Budget, Features, RequiredOutputs, Session
from paceline.speculative.sampling import Logits
from paceline.speculative.sessions import ResumableSession, common_prefix
from paceline.speculative.stats import Step
from paceline.speculative.tree import DraftTree


class DraftVocabDrafter(ModelDrafter):
    """A drafter of one kind of head, which may have a draft vocabulary of its own. It shows the head nothing
    of the target's passes: a trained early exit (its confidence ends a draft), or a parallel draft (PARD)."""

    def __init__(self, head: Any, **settings: Any) -> None:
        super().__init__(head, head.vocab.size, **settings)
        self.head, self.name, self.max_depth = head, head.kind, head.max_depth

    def _row(self, out: DraftForward, node: int, *, dense: bool) -> tuple[Logits, Ids | None]:
        if dense:
            return out.logits(node + 1), None
        ids, row = out.draft_logits(node + 1)
        return row, ids


class HeadState(ModelDrafterState, Resting):
    """The head's session of one request."""

    def __init__(
        self, drafter: HeadDrafter, prompt: Sequence[int], seed: int, beside: Session | None
    ) -> None:
        self._drafter, head = drafter, drafter.head
        session = drafter.resume(prompt, beside)
        super().__init__(ResumableSession(head, beside, session), head.vocab, prompt, seed)
        drafter.states.add(self)

    @property
    def head_session(self) -> HeadSession:
        session = self.reader.session
        assert isinstance(session, HeadSession)
        return session

    def update(self, step: Step, features: Features) -> None:
        super().update(step, features)
        if features.hidden is not None:
            rows = [*range(features.lead), *(features.lead + node + 1 for node in (-1, *step.path))]
            n = len(features.hidden)
            rows = [row for row in rows if row < n]  # a prefill has no root
            hidden = features.hidden if rows == [*range(n)] else features.hidden[rows]
            hidden = hidden if self._drafter.order is None else hidden[:, self._drafter.order]
            self.head_session.observe(features.start, hidden)

    @property
    def is_ready(self) -> bool:
        if len(self.tokens) > self._drafter.head.caps.n_ctx:
            return False
        self.reader.sync_to(self.tokens)
        return self.head_session.is_ready

    def close(self) -> None:
        if self.tokens:
            self._drafter.retain(self.tokens, self.head_session)
        self._drafter.states.discard(self)
        super().close()


class HeadDrafter(DraftVocabDrafter):
    """A drafter of one kind of head. Closed sessions are kept, for prompts that begin alike."""

    def __init__(self, head: HeadBase, **settings: Any) -> None:
        super().__init__(head, **settings)
        ids = head.config.layer_ids
        layers = tuple(sorted(set(ids)))
        self._outputs, self.states = RequiredOutputs(layers=layers), WeakSet[HeadState]()
        # The places of the head's layers among those of a pass, None if these are the same.
        self.order = None if ids == layers else [layers.index(index) for index in ids]
        self._retained: list[tuple[list[int], HeadSession]] = []

    @property
    def required_outputs(self) -> RequiredOutputs:
        """See Drafter. Nothing while all states rest."""
        resting = self.states and all([state.is_resting for state in self.states])  # noqa: C419  # faster
        return NO_OUTPUTS if resting else self._outputs

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> HeadState:
        return HeadState(self, prompt, seed, session)

    def resume(self, prompt: Sequence[int], beside: Session | None = None) -> HeadSession:
        """Return the retained session with the longest common prefix, or a new one.
        beside: the target's session."""
        prompt = list(prompt)
        shared = [common_prefix(tokens, prompt) for tokens, _ in self._retained]
        best = max(range(len(shared)), key=shared.__getitem__, default=None)
        if best is None or shared[best] < 2:
            opened: HeadSession = self.head.open(beside)
            return opened
        _, session = self._retained.pop(best)
        session.rewind(min(shared[best], len(prompt) - 1))  # the root's row is computed again
        self.head.reopen(session, beside)
        return session

    def retain(self, tokens: list[int], session: HeadSession) -> None:
        """Keep a session that ends, in place of the oldest."""
        session.close()
        self._retained.append((tokens[:], session))
        del self._retained[: -self.head.caps.max_sessions]

    def forget(self) -> None:
        """Drop the retained sessions."""
        self._retained.clear()

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> list[DraftTree]:
        ready = ((state, budget if state.is_ready else NO_BUDGET) for state, budget in batch)
        return super().propose([*ready])


def make(parts: DrafterInputs) -> DraftVocabDrafter:
    """Make the drafter of a head of any kind."""
    head: Any = parts.draft
    kind = DraftVocabDrafter if head.kind in ("exits", "pard") else HeadDrafter
    return kind(head, **parts.model_settings)
