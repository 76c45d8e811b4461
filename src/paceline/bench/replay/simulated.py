"""A virtual clock for replays, which advances by the known costs of passes."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.speculative.delegating import DelegatingTarget
from paceline.speculative.interfaces import ForwardOutput, RequiredOutputs, Session, Target
from paceline.speculative.policy.costs import PassCosts
from paceline.speculative.sessions import DelegatingSession
from paceline.speculative.tree import DraftTree


class VirtualClock:
    """A clock that only `spend` advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


class SimulatedTarget(DelegatingTarget):
    """A target whose passes advance the clock by the cost of their rows at the sessions' mean context length.
    step: seconds of each commit. prompts: the first prefill of a session costs time too."""

    def __init__(
        self, target: Target, cost: PassCosts, clock: VirtualClock, step: float = 0, *, prompts: bool = False
    ) -> None:
        super().__init__(target)
        # The mean of each measurement: a policy takes the more expensive bound where it has seen few passes.
        self.cost = PassCosts(cost.table)
        self.clock, self.step, self.prompts = clock, step, prompts

    def open(self, beside: Session | None = None) -> SimulatedSession:
        return SimulatedSession(self, self.inner.open())

    def forward(
        self, batch: Sequence[tuple[SimulatedSession, DraftTree | int]], want: RequiredOutputs
    ) -> Sequence[ForwardOutput]:
        work = [(session.inner, tree) for session, tree in batch]
        outs: Sequence[ForwardOutput] = self.inner.forward(work, want)
        rows = sum(session.paid(out.computed) for (session, _), out in zip(batch, outs, strict=True))
        if rows:
            depth = sum(len(session.tokens) for session, _ in batch) // len(batch)
            self.clock.spend(self.cost.seconds(rows, depth))
        return outs


class SimulatedSession(DelegatingSession):
    """A session with the number of prompt rows that are still free of cost."""

    def __init__(self, target: SimulatedTarget, inner: Session) -> None:
        super().__init__(inner)
        self._target = target
        self._free = 0

    def extend(self, tokens: Sequence[int]) -> None:
        is_prompt = not self.tokens
        super().extend(tokens)
        if is_prompt and not self._target.prompts:
            self._free = self.pending_tokens

    def paid(self, computed: int) -> int:
        """Return the number of rows of a pass that cost time."""
        free = min(self._free, computed)
        self._free -= free
        return computed - free

    def commit(self, path: Sequence[int], root: int) -> None:
        super().commit(path, root)
        self._target.clock.spend(self._target.step)
