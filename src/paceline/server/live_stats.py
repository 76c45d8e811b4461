"""What the page shows: the last seconds, beside what plain decoding costs here."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from paceline.api import LLM
from paceline.speculative.stats import TIME_PARTS, Step

IDLE_SECONDS = 2.0  # seconds of silence after which there is no speed
STEPS = 256  # steps, and passes, that figures are read over
MAX_DRAFT_POSITIONS = 16  # draft positions
POLICY_INTERVAL_SECONDS = 0.5  # seconds between two looks at the policy


class LiveStats:
    """Updated by the service's thread; `state` is for any."""

    def __init__(self, llm: LLM, clock: Callable[[], float]) -> None:
        self._llm, self._clock = llm, clock
        self._began = clock()
        self._passes: deque[tuple[float, int]] = deque(maxlen=STEPS)  # the seconds and tokens of each
        self._passed = -IDLE_SECONDS  # when the last of them ended
        self._steps: deque[Step] = deque(maxlen=STEPS)
        self._drafted: Counter[str] = Counter()
        self._accepted: Counter[str] = Counter()
        self._decision, self._looked = "Nothing has been asked yet.", -POLICY_INTERVAL_SECONDS
        self._plain: float | None = None
        self._plain_each: float | None = None  # of one among those who decode

    def step(self, step: Step) -> None:
        if not step.tokens:
            return
        self._steps.append(step)
        self._drafted.update(step.drafted)
        self._accepted.update(step.accepted)

    def on_pass(self, seconds: float, tokens: int, running: int) -> None:
        self._passed = now = self._clock()
        self._passes.append((seconds, tokens))
        if now - self._looked < POLICY_INTERVAL_SECONDS:
            return
        self._looked = now
        self._plain = self._plain_rate(running)
        if self._plain is not None and running:
            self._plain_each = self._plain / running
        self._decision = self._sentence()

    def _plain_rate(self, running: int) -> float | None:
        """Tokens a second that plain decoding would bring with as many at once, by the measured costs."""
        costs = getattr(self._llm.policy, "costs", None)
        if costs is None or not running:
            return self._plain
        return float(running / (costs.target.seconds(running, 256) + running * costs.step))

    def _sentence(self) -> str:
        steps = list(self._steps)
        if self._llm.drafting.plain:
            return "Decoding plainly: no drafter was asked for."
        if not steps:
            return self._decision
        tokens, drafted = sum(len(step.tokens) for step in steps), [step for step in steps if step.drafted]
        account, of = self._llm.policy.summary, len(steps)
        if len(drafted) * 2 < of and account is not None and account.why:
            return f"{account.why[0].upper()}{account.why[1:]}."
        message = (
            f"Drafting at {len(drafted) / of:.0%} of the last {of} steps, {tokens / of:.1f} tokens a step"
        )
        names: Counter[str] = Counter()
        for step in drafted:
            names.update(step.accepted)
        best = ", ".join(name for name, _ in names.most_common(2))
        return f"{message}; most came from {best}." if best else f"{message}."

    def state(self) -> dict[str, Any]:
        """For the page. Its numbers are a snapshot, each right by itself."""
        now, steps, passes = self._clock(), list(self._steps), list(self._passes)
        # While something is decoded: how long nobody asks is no matter of speed.
        busy = sum(seconds for seconds, _ in passes) if self._passed > now - IDLE_SECONDS else 0.0
        depths: list[int] = [0] * MAX_DRAFT_POSITIONS
        right: list[int] = [0] * MAX_DRAFT_POSITIONS
        for step in steps:
            longest = max(step.tree.depths(), default=0) if step.drafted else 0
            selected = sum(step.accepted.values())
            for at in range(min(longest, MAX_DRAFT_POSITIONS)):
                depths[at] += 1
                right[at] += at < selected
        times: Counter[str] = Counter()
        for step in steps:
            for name in TIME_PARTS:
                times[name] += getattr(step.times, name)
        total = sum(times.values()) or 1.0
        return {
            "tokens_per_second": sum(n for _, n in passes) / busy if busy else 0.0,
            "plain_tokens_per_second": self._plain,
            "plain_tokens_per_second_each": self._plain_each,
            "acceptance": [r / d for r, d in zip(right, depths, strict=True) if d],
            "drafted": dict(self._drafted),
            "accepted": dict(self._accepted),
            "times": {name: seconds / total for name, seconds in times.items()},
            "decision": self._decision,
            "uptime": now - self._began,
        }
