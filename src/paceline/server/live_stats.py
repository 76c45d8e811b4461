"""The page's figures: throughput and acceptance of the last seconds, beside plain decoding."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from paceline.api import LLM
from paceline.speculative.stats import TIME_PARTS, Step

IDLE_SECONDS = 2.0  # without a pass, after which the throughput is 0
WINDOW_STEPS = 256  # steps, and passes, that figures are computed over
MAX_DRAFT_POSITIONS = 16
POLICY_INTERVAL_SECONDS = 0.5  # between two queries of the policy


class LiveStats:
    """Figures that the engine's thread updates; any thread may call `state`."""

    def __init__(self, llm: LLM) -> None:
        self._llm, self._clock = llm, llm.engine.clock
        self._start = self._clock()
        self._passes: deque[tuple[float, int]] = deque(maxlen=WINDOW_STEPS)  # the seconds and tokens of each
        self._last_pass = -IDLE_SECONDS  # time at which the last pass ended
        self._steps: deque[Step] = deque(maxlen=WINDOW_STEPS)
        self._drafted, self._accepted = Counter[str](), Counter[str]()
        self._decision, self._policy_time = "No requests yet.", -POLICY_INTERVAL_SECONDS
        self._plain: float | None = None
        self._plain_each: float | None = None  # of one request

    def step(self, step: Step) -> None:
        if step.tokens:
            self._steps.append(step)
            self._drafted.update(step.drafted)
            self._accepted.update(step.accepted)

    def on_pass(self, seconds: float, tokens: int, running: int) -> None:
        self._last_pass = now = self._clock()
        self._passes.append((seconds, tokens))
        if now - self._policy_time < POLICY_INTERVAL_SECONDS:
            return
        self._policy_time = now
        costs = self._llm.policy.costs
        if costs is not None and running:  # the throughput of plain decoding, by the measured costs
            self._plain = float(running / (costs.target.seconds(running, 256) + running * costs.step))
            self._plain_each = self._plain / running
        self._decision = self._describe_decision()

    def _describe_decision(self) -> str:
        steps = list(self._steps)
        if self._llm.drafting.plain:
            return "Plain decoding: no drafter is configured."
        if not steps:
            return self._decision
        tokens, drafted = sum(len(step.tokens) for step in steps), [step for step in steps if step.drafted]
        summary, n = self._llm.policy.summary, len(steps)
        if len(drafted) * 2 < n and summary is not None and summary.why:
            return f"{summary.why[0].upper()}{summary.why[1:]}."
        message = f"Drafting at {len(drafted) / n:.0%} of the last {n} steps, {tokens / n:.1f} tokens a step"
        names = sum((Counter(step.accepted) for step in drafted), Counter[str]())
        best = ", ".join(name for name, _ in names.most_common(2))
        return f"{message}; most came from {best}." if best else f"{message}."

    def state(self) -> dict[str, Any]:
        """Return the figures for the page. They may be of slightly different moments."""
        now, steps, passes = self._clock(), list(self._steps), list(self._passes)
        # Idle time does not lower the throughput.
        busy = sum(seconds for seconds, _ in passes) if self._last_pass > now - IDLE_SECONDS else 0.0
        drafted, accepted = [0] * MAX_DRAFT_POSITIONS, [0] * MAX_DRAFT_POSITIONS
        times: Counter[str] = Counter()
        for step in steps:
            depth = max(step.tree.depths(), default=0) if step.drafted else 0
            n_accepted = sum(step.accepted.values())
            for at in range(min(depth, MAX_DRAFT_POSITIONS)):
                drafted[at] += 1
                accepted[at] += at < n_accepted
            for name in TIME_PARTS:
                times[name] += getattr(step.times, name)
        total = sum(times.values()) or 1.0
        return {
            "tokens_per_second": sum(n for _, n in passes) / busy if busy else 0.0,
            "plain_tokens_per_second": self._plain,
            "plain_tokens_per_second_each": self._plain_each,
            "acceptance": [a / d for a, d in zip(accepted, drafted, strict=True) if d],
            "drafted": dict(self._drafted),
            "accepted": dict(self._accepted),
            "times": {name: seconds / total for name, seconds in times.items()},
            "decision": self._decision,
            "uptime": now - self._start,
        }
