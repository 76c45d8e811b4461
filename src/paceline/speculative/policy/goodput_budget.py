"""The goodput policy's decisions within one proposal: which drafters to call, and how far (goodput.py)."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.speculative.interfaces import Budget
from paceline.speculative.policy.ledger import DrafterCall, DrafterValue, LossLedger, confidence_level
from paceline.speculative.tree import DraftTree

LOOKAHEAD_LEVELS = 8  # levels a draft model looks ahead for the next edge of the cost curve
MAX_CHEAP_CATCH_UP = 32  # pending tokens of a drafter up to which a call counts as usual
RECOMPUTED_ROWS = 8  # rows over which the price of a recomputed one is averaged
NEGLIGIBLE_SHARE = 0.002  # of a plain pass: cheaper drafters are always called


@dataclass(slots=True)
class PassPrices:
    """The prices of one pass.
    pace, curve: pass costs (PassCosts.pace_factor)."""

    pace: float = 1.0
    curve: Sequence[float] = ()
    rows: int = 1  # of the pass without drafts
    end: int = 1  # rows with the longest drafts
    rate: float = 0.0  # tokens that a second has to bring
    recomputes: bool = False  # a rejected draft leaves accepted tokens to compute again (rollback="restore")
    plain_pass: float = 0.0  # seconds without drafts
    recompute: float = field(init=False, default=0.0)  # price of a row to compute again, in tokens
    _min_reach: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        if self.recomputes and (more := min(RECOMPUTED_ROWS, self.end - self.rows)) > 0:
            row = self.curve[self.rows + more] - self.curve[self.rows]
            self.recompute = max(0.0, self.rate * self.pace * row / more)

    @property
    def min_reach(self) -> float:
        """Half the reach probability that pays for the cheapest row: the limit for drafting a guess."""
        if not self._min_reach:
            curve, rows = self.curve, self.rows
            row = min((curve[n] - curve[rows]) / (n - rows) for n in range(rows + 1, self.end + 1))
            self._min_reach = max(0.01, 0.5 * self.rate * self.pace * row)
        return self._min_reach

    def gain(self, reach_probability: Sequence[float], pending: int = 0) -> float:
        """Return the gain of a draft in tokens. pending: see `expected_gain`."""
        minus_reach = sorted([-s for s in reach_probability])
        return self.best(self.expected_gain(minus_reach, pending), self.rows)[1]

    def expected_gain(self, minus_reach: Sequence[float], pending: int) -> Sequence[float]:
        """Return each node's negated gain: its reach probability, less what a chain's node adds to the
        expected price of a rejection. If node n is the first to be rejected, the next pass recomputes
        `pending + n` tokens: this pass's pending tokens, the root, and n - 1 draft nodes."""
        if not self.recompute:
            return minus_reach
        net, above = list[float](), -1.0
        for n, s in enumerate(minus_reach, 1):
            net.append(s + self.recompute * (s - above) * (pending + n))
            above = s
        return net

    def best(self, minus_gain: Sequence[float], rows: int) -> tuple[int, float]:
        """Return how many nodes to verify in a pass with `rows` other rows, and their gain in tokens.
        Every number is tried, as the curve has steps. minus_gain: by node, the likeliest first."""
        curve, price = self.curve, self.rate * self.pace  # in tokens per unit of the curve
        best, largest, gained, base = 0, 0.0, 0.0, price * curve[rows]
        for n, s in enumerate(minus_gain[: self.end - rows], 1):
            gained -= s
            gain = gained + base - price * curve[rows + n]
            if gain > largest:
                best, largest = n, gain
        return best, largest


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputBudget(Budget):
    """The budget of one proposal."""

    prices: PassPrices  # of the pass
    ledger: LossLedger  # of the request
    pending: int  # tokens that the pass computes before the request's root

    def should_call(self, drafter: str, draft: Callable[[], DraftTree], pending_prefill: int = 0) -> bool:
        """Return whether to call a drafter, by the gain of its calls at similar steps."""
        has_prefill = pending_prefill > MAX_CHEAP_CATCH_UP
        value, gain, confidence = self._assess(drafter, draft, has_prefill)
        ledger, drafters = self.ledger, self.ledger.drafters
        due = not self._must_pay(drafter, value) or (
            not ledger.is_limited and value.should_call(confidence, self.prices.rate)
        )
        if not due or (has_prefill and not self._pays_for_prefill(value, confidence, pending_prefill)):
            ledger.is_refused = True
            return False
        drafters.calls[drafter] += 1
        ledger.call = DrafterCall(drafter, drafters.clock(), gain, confidence, has_prefill)
        return True

    def is_due(self, drafter: str, draft: Callable[[], DraftTree]) -> bool:
        value, _, confidence = self._assess(drafter, draft, False)
        due = not self._must_pay(drafter, value) or (
            not self.ledger.is_limited and value.is_due(confidence, self.prices.rate)
        )
        if not due:
            self.ledger.is_refused = True
        return due

    def _assess(
        self, drafter: str, draft: Callable[[], DraftTree], has_prefill: bool
    ) -> tuple[DrafterValue, float, int]:
        """End the current call, and return a drafter's value, the gain of the draft so far, and its
        confidence level. has_prefill: the drafter begins with a long prefill."""
        drafters, gain, confidence = self.ledger.drafters, 0.0, 0
        now, value = drafters.clock(), drafters.values.get(drafter)
        if value is None:
            value = drafters.values[drafter] = DrafterValue()
        last = drafters.values.get(self.ledger.call.drafter, value)
        if has_prefill or max(value.seconds, last.seconds) > NEGLIGIBLE_SHARE * self.prices.plain_pass:
            reach = drafters.acceptance.reach_probabilities(self.ledger.recent_acceptance, draft())
            gain = self.prices.gain(reach, self.pending)
            confidence = confidence_level(max(reach, default=0.0))
        self.ledger.end_call(now, gain)
        return value, gain, confidence

    def _must_pay(self, drafter: str, value: DrafterValue) -> bool:
        """Return whether a call of the drafter costs enough that it has to pay."""
        return value.seconds > NEGLIGIBLE_SHARE * self.prices.plain_pass or (
            self.ledger.is_limited and (not value.calls or drafter in self.ledger.drafters.sampling)
        )

    def _pays_for_prefill(self, value: DrafterValue, confidence: int, pending: int) -> bool:
        """Return whether missed savings have reached the cost of the prefill.
        This costs at most twice the best choice in hindsight (ski rental, Karlin et al., 1988)."""
        ledger, costs = self.ledger, self.ledger.drafters.draft_costs
        if costs is None:
            return True
        ledger.missed_seconds += max(0.0, value.tokens[confidence] / self.prices.rate - value.seconds)
        rows = costs.max_batch_tokens
        if ledger.missed_seconds < pending * costs.seconds(rows, pending) / rows:
            return False
        ledger.missed_seconds = 0.0
        return True

    def reach_probability(self, drafter: str, likely: float, depth: int, parent: float) -> float:
        recent = self.ledger.recent_acceptance.get(drafter, 0.0)
        return parent * self.ledger.drafters.acceptance.of(drafter).probability(likely, depth, recent)

    def should_extend(
        self, likeliest: float, drafted: int, depth: int, reach_probability: float = 1.0
    ) -> bool:
        return drafted < self.nodes and depth < self.depth and reach_probability >= self.prices.min_reach

    def should_deepen(self, drafted: int, depth: int, reach_probability: float) -> bool:
        """Return whether another level should raise the gain of the draft by more than its cost.
        Further nodes are assumed to be as likely as those before."""
        if depth >= self.depth:
            return False
        call, prices, pending = self.ledger.call, self.prices, self.pending
        value = self.ledger.drafters.values.get(call.drafter)
        level = 0.0 if value is None else prices.rate * value.level_seconds  # tokens per level
        call.levels = max(call.levels, depth)
        insort(call.minus_reach, -reach_probability)
        now = prices.best(prices.expected_gain(call.minus_reach, pending), prices.rows)[1]
        each, last = reach_probability ** (1 / depth), min(LOOKAHEAD_LEVELS, self.depth - depth)
        further = call.minus_reach
        for m in range(1, last + 1):
            reach_probability *= each
            further = sorted([*further, -reach_probability])
            # Check only powers of two and the last level, which find the edges of the curve.
            if m & (m - 1) == 0 or m == last:
                gain = prices.best(prices.expected_gain(further, pending), prices.rows)[1]
                if gain - m * level > now:
                    return True
        return False
