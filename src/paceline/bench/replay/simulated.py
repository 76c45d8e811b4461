"""A virtual clock for replays, which advances by the known costs of passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.speculative.interfaces import Caps, ForwardOutput, RequiredOutputs, Session, Target
from paceline.speculative.policy.cost_model import PassCosts
from paceline.speculative.tree import DraftTree
from paceline.speculative.vocabulary import Vocab


class VirtualClock:
    """A clock that only `spend` advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


class SimulatedTarget:
    """A target whose passes advance the clock by the cost of their rows at the sessions' mean context length.

    step: seconds of each commit. prompts: the first prefill of a session costs time too."""

    def __init__(
        self,
        target: Target,
        cost: PassCosts,
        clock: VirtualClock,
        step: float = 0.0,
        *,
        prompts: bool = False,
    ) -> None:
        self.inner, self.cost, self.clock, self.step, self.prompts = target, cost, clock, step, prompts
        self.vocab: Vocab = target.vocab
        self.origin = target.origin
        self.caps: Caps = target.caps

    @property
    def text(self) -> Any:
        return self.inner.text  # type: ignore[attr-defined]  # backends have one, the contract does not

    def open(self, beside: Session | None = None) -> SimulatedSession:
        return SimulatedSession(self, self.inner.open())

    def forward(
        self, batch: Sequence[tuple[SimulatedSession, DraftTree | int]], want: RequiredOutputs
    ) -> Sequence[ForwardOutput]:
        outs = self.inner.forward([(session.inner, tree) for session, tree in batch], want)
        rows = sum(session.paid(out.computed) for (session, _), out in zip(batch, outs, strict=True))
        if rows:
            depth = sum(len(session.tokens) for session, _ in batch) // len(batch)
            self.clock.spend(self.cost.seconds(rows, depth))
        return outs

    def forget(self) -> None:
        self.inner.forget()

    def close(self) -> None:
        self.inner.close()


class SimulatedSession:
    """A session with the number of prompt rows that are still free of cost."""

    def __init__(self, target: SimulatedTarget, inner: Session) -> None:
        self._target, self.inner = target, inner
        self._free = 0

    @property
    def tokens(self) -> Sequence[int]:
        return self.inner.tokens

    @property
    def pending_tokens(self) -> int:
        return self.inner.pending_tokens

    def extend(self, tokens: Sequence[int]) -> None:
        first = len(self.inner.tokens) == 0
        self.inner.extend(tokens)
        if first and not self._target.prompts:
            self._free = self.inner.pending_tokens

    def paid(self, computed: int) -> int:
        """Return the number of rows of a pass that cost time."""
        free = min(self._free, computed)
        self._free -= free
        return computed - free

    def commit(self, path: Sequence[int], root: int) -> None:
        self.inner.commit(path, root)
        self._target.clock.spend(self._target.step)

    def close(self) -> None:
        self.inner.close()
