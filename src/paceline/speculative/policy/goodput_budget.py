"""The budgets of the goodput policy (goodput.py): prices of rows, calls of drafters, lengths of drafts."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.speculative.interfaces import Budget
from paceline.speculative.policy.acceptance import AcceptanceModel, Recent
from paceline.speculative.policy.costs import PassCosts
from paceline.speculative.policy.drafter_value import DrafterValue, confidence_level
from paceline.speculative.tree import DraftTree

LOOKAHEAD_LEVELS = 8  # levels a draft model looks ahead for the next edge of the cost curve
MAX_CHEAP_CATCH_UP = 32  # pending tokens of a drafter up to which a call counts as usual
RECOMPUTED_ROWS = 8  # rows over which the price of a recomputed one is averaged
NEGLIGIBLE_SHARE = 0.002  # of a plain pass: cheaper drafters are always called


class RowPrices:
    """The prices of one pass.
    pace, curve: pass costs (PassCosts.pace_factor).
    rows: rows of the pass without drafts; end: with the longest drafts.
    rate: tokens that a second has to bring.
    recomputes: a rejected draft leaves accepted tokens to be computed again (rollback="restore")."""

    __slots__ = ("_least", "curve", "end", "pace", "rate", "recompute", "rows")

    def __init__(
        self,
        pace: float = 1.0,
        curve: Sequence[float] = (),
        rows: int = 1,
        end: int = 1,
        rate: float = 0.0,
        recomputes: bool = False,
    ) -> None:
        self.pace, self.curve, self.rows, self.end, self.rate = pace, curve, rows, end, rate
        self._least = self.recompute = 0.0
        if recomputes and (more := min(RECOMPUTED_ROWS, end - rows)) > 0:  # tokens per row of a later pass
            self.recompute = max(0.0, rate * pace * (curve[rows + more] - curve[rows]) / more)

    @property
    def least(self) -> float:
        """Half the reach probability that pays for the cheapest row: the limit for drafting a guess."""
        if not self._least:
            curve, rows = self.curve, self.rows
            row = min((curve[n] - curve[rows]) / (n - rows) for n in range(rows + 1, self.end + 1))
            self._least = max(0.01, 0.5 * self.rate * self.pace * row)
        return self._least

    def worth(self, reach_probability: Sequence[float], pending: int = 0) -> float:
        """Return the worth of a draft in tokens. pending: see `net_of_rejection`."""
        minus_reach = sorted([-s for s in reach_probability])
        return self.best(self.net_of_rejection(minus_reach, pending), self.rows)[1]

    def net_of_rejection(self, minus_reach: Sequence[float], pending: int) -> Sequence[float]:
        """Return negated reach probabilities, less what each node of a chain adds to the expected price of a
        rejection. If node n is the first to be rejected, a later pass computes `pending + n` tokens again:
        those that this pass did, the root and n - 1 nodes."""
        if not self.recompute:
            return minus_reach
        net, above = list[float](), -1.0
        for n, s in enumerate(minus_reach, 1):
            net.append(s + self.recompute * (s - above) * (pending + n))
            above = s
        return net

    def best(self, minus_reach: Sequence[float], rows: int) -> tuple[int, float]:
        """Return how many nodes to verify beside `rows` other rows, and their worth in tokens.
        Every number is tried, as the curve has steps. minus_reach: negated reach probabilities, the likeliest
        first."""
        curve, price = self.curve, self.rate * self.pace  # in tokens per unit of the curve
        best, most, gained, base = 0, 0.0, 0.0, price * curve[rows]
        for n, s in enumerate(minus_reach[: self.end - rows], 1):
            gained -= s
            worth = gained + base - price * curve[rows + n]
            if worth > most:
                best, most = n, worth
        return best, most


class DrafterCall:
    """The current call of a drafter for one proposal; drafter is "" if there is none.
    since: time of the call.
    before: worth of the draft before the call, in tokens.
    kind: kind of step (drafter_value.py).
    levels: levels of depth computed so far.
    nodes: negated reach probabilities of the drafted nodes, ascending.
    reads: the call begins with a long prefill."""

    __slots__ = ("before", "drafter", "kind", "levels", "nodes", "reads", "since")

    def __init__(self) -> None:
        self.begin("", 0.0, 0.0, 0)

    def begin(self, drafter: str, since: float, before: float, kind: int, reads: bool = False) -> None:
        self.drafter, self.since, self.before, self.kind, self.reads = drafter, since, before, kind, reads
        self.levels = 0
        self.nodes: list[float] = []


@dataclass
class LossLedger:
    """The gains and losses of one request.
    recent_acceptance: by drafter.
    lost_seconds: time of drafts beyond what they saved.
    plain_seconds: time of the prompt, and of plain decoding of the same tokens.
    missed_seconds: time a drafter with pending tokens might have saved since its last call."""

    recent_acceptance: Recent = field(default_factory=dict)
    lost_seconds: float = 0.0
    plain_seconds: float = 0.0
    missed_seconds: float = 0.0

    def exceeds(self, share: float, credit: float) -> bool:
        """Return whether the loss exceeds a share of the plain time plus `credit` seconds."""
        return self.lost_seconds > share * self.plain_seconds + credit


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputBudget(Budget):
    """The budget of one proposal. is_limited: the request is beyond its loss limit.
    pending: tokens that its pass computes before the root."""

    rule: DrafterCalls
    ledger: LossLedger
    is_limited: bool = False
    pending: int = 0
    call: DrafterCall = field(default_factory=DrafterCall)

    def should_call(self, drafter: str, draft: Callable[[], DraftTree], behind: int = 0) -> bool:
        return self.rule.should_call(self, drafter, draft, behind)

    def is_due(self, drafter: str, draft: Callable[[], DraftTree]) -> bool:
        return self.rule.is_due(self, drafter, draft)

    def reach_probability(self, drafter: str, likely: float, depth: int, parent: float) -> float:
        return self.rule.reach(self.ledger, drafter, likely, depth, parent)

    def should_extend(
        self, likeliest: float, drafted: int, depth: int, reach_probability: float = 1.0
    ) -> bool:
        return drafted < self.nodes and depth < self.depth and reach_probability >= self.rule.prices.least

    def should_deepen(self, drafted: int, depth: int, reach_probability: float) -> bool:
        return depth < self.depth and self.rule.deepens(self, depth, reach_probability)


class DrafterCalls:
    """The calls of drafters, with the time and gain of each.
    values: by drafter. sampling: drafters whose drafts must be verified whole.
    saved: seconds saved by all drafts.
    refused: ids of the ledgers of requests for which a drafter was not called in this pass."""

    def __init__(self, acceptance: AcceptanceModel, clock: Callable[[], float]) -> None:
        self.clock, self._acceptance = clock, acceptance
        self.values: dict[str, DrafterValue] = {}
        self.sampling: set[str] = set()
        self.saved = 0.0
        self.refused: set[int] = set()
        self._called: Counter[str] = Counter()  # requests of this pass by drafter
        self.begin(RowPrices(), 0.0, None)

    def begin(self, prices: RowPrices, plain_pass: float, draft_costs: PassCosts | None) -> None:
        """Begin a pass. plain_pass: its seconds without drafts."""
        self.prices, self._plain_pass, self._draft_costs = prices, plain_pass, draft_costs
        self.refused.clear()
        self._called.clear()

    def save(self, seconds: float) -> None:
        """Credit the elapsed seconds to all drafters."""
        for value in self.values.values():
            value.add_credit(seconds)

    def lose(self, ledger: LossLedger, seconds: float) -> None:
        """Record the loss of one request's draft; negative if it saved time."""
        ledger.lost_seconds += seconds
        self.saved -= seconds

    def should_call(
        self, budget: GoodputBudget, drafter: str, draft: Callable[[], DraftTree], behind: int
    ) -> bool:
        """Return whether to call a drafter, by the gain of its calls at similar steps."""
        reads = behind > MAX_CHEAP_CATCH_UP
        value, worth, kind = self._look(budget, drafter, draft, reads)
        if (
            self._is_dear(budget, drafter, value)
            and (budget.is_limited or not value.should_call(kind, self.prices.rate))
        ) or (reads and not self._is_worth_reading(budget.ledger, value.tokens[kind], value.seconds, behind)):
            self.refused.add(id(budget.ledger))
            return False
        self._called[drafter] += 1
        budget.call.begin(drafter, self.clock(), worth, kind, reads)
        return True

    def is_due(self, budget: GoodputBudget, drafter: str, draft: Callable[[], DraftTree]) -> bool:
        """Return whether `should_call` would return True."""
        value, _, kind = self._look(budget, drafter, draft, False)
        if not self._is_dear(budget, drafter, value):
            return True
        due = not budget.is_limited and value.is_due(kind, self.prices.rate)
        if not due:
            self.refused.add(id(budget.ledger))
        return due

    def _look(
        self, budget: GoodputBudget, drafter: str, draft: Callable[[], DraftTree], reads: bool
    ) -> tuple[DrafterValue, float, int]:
        """Record the call before, and return what is known of a drafter, the worth of the draft so far, and
        the kind of step. reads: the drafter begins with a long prefill."""
        now, value = self.clock(), self.values.get(drafter)
        if value is None:
            value = self.values[drafter] = DrafterValue()
        worth, kind = 0.0, 0
        last = self.values.get(budget.call.drafter, value)
        if reads or max(value.seconds, last.seconds) > NEGLIGIBLE_SHARE * self._plain_pass:
            reach = self._acceptance.reach_probabilities(budget.ledger.recent_acceptance, draft())
            worth = self.prices.worth(reach, budget.pending)
            kind = confidence_level(max(reach, default=0.0))
        self.finish_call(budget, now, worth)
        return value, worth, kind

    def _is_dear(self, budget: GoodputBudget, drafter: str, value: DrafterValue) -> bool:
        """Return whether a call of the drafter has to pay."""
        return value.seconds > NEGLIGIBLE_SHARE * self._plain_pass or (
            budget.is_limited and (not value.calls or drafter in self.sampling)
        )

    def _is_worth_reading(self, ledger: LossLedger, tokens: float, seconds: float, behind: int) -> bool:
        """Return whether missed savings have reached the cost of the prefill. tokens, seconds: of a call.
        This costs at most twice the best choice in hindsight (ski rental, Karlin et al., 1988)."""
        if (cost := self._draft_costs) is None:
            return True
        ledger.missed_seconds += max(0.0, tokens / self.prices.rate - seconds)
        if (
            ledger.missed_seconds
            < behind * cost.seconds(cost.max_batch_tokens, behind) / cost.max_batch_tokens
        ):
            return False
        ledger.missed_seconds = 0.0
        return True

    def finish_call(self, budget: GoodputBudget, now: float, worth: float) -> None:
        """Record the result of the current call, if any. worth: of the draft now."""
        call = budget.call
        if call.drafter:
            seconds = (now - call.since) / self._called[call.drafter]
            value, won = self.values[call.drafter], worth - call.before
            self.lose(budget.ledger, value.update(call.kind, won, seconds, call.levels, reads=call.reads))
            call.drafter = ""

    def reach(self, ledger: LossLedger, drafter: str, likely: float, depth: int, parent: float) -> float:
        """Return the calibrated reach probability of a token."""
        recent = ledger.recent_acceptance.get(drafter, 0.0)
        return parent * self._acceptance.of(drafter).probability(likely, depth, recent)

    def deepens(self, budget: GoodputBudget, depth: int, reach_probability: float) -> bool:
        """Return whether another level should raise the worth of the draft by more than its cost.
        Further nodes are assumed to be as likely as those before."""
        call, prices = budget.call, self.prices
        value = self.values.get(call.drafter)
        level = 0.0 if value is None else prices.rate * value.level
        call.levels = max(call.levels, depth)
        nodes = call.nodes
        insort(nodes, -reach_probability)
        now = prices.best(prices.net_of_rejection(nodes, budget.pending), prices.rows)[1]
        each, last = reach_probability ** (1 / depth), min(LOOKAHEAD_LEVELS, budget.depth - depth)
        further = nodes
        for m in range(1, last + 1):
            reach_probability *= each
            further = sorted([*further, -reach_probability])
            # Check only powers of two and the last level, which find the edges of the curve.
            if m & (m - 1) == 0 or m == last:
                net = prices.net_of_rejection(further, budget.pending)
                if prices.best(net, prices.rows)[1] - m * level > now:
                    return True
        return False
