"""The goodput policy: draft what raises the number of tokens per second.

At the best achievable goodput (`rate`) a set of draft nodes N is worth verifying if it maximises

    1 + sum of reach probabilities  -  rate * (T_draft(N) + T_verify(1 + |N|, depth))

Reach probabilities are learned (acceptance.py) and costs measured (costs.py). The rate is the recent goodput,
at least that of plain decoding. A node is at most as likely as its parent, so the best n nodes are the n
likeliest (PassPrices). Requests of one pass compete for its rows in one list. (This is the goodput of
TurboSpec, arXiv:2406.14066, for single nodes instead of lengths.)

A drafter is called where that is expected to pay (GoodputBudget). A request beyond its loss limit (ledger.py)
is decoded plainly until the loss is made good. Meanwhile drafters that cost no time are still called and
judged by the emitted text, unless the policy's own work is the loss: then nothing is decided for some passes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

from paceline.speculative.interfaces import NO_BUDGET, Budget
from paceline.speculative.policy.acceptance import AcceptanceModel
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.policy.interface import likeliest
from paceline.speculative.policy.ledger import (
    DrafterCall,
    DrafterLedger,
    DrafterValue,
    DraftingSummary,
    LossLedger,
    confidence_level,
)
from paceline.speculative.request import ActiveRequest
from paceline.speculative.stats import Step
from paceline.speculative.tree import ROOT, DraftTree

GOODPUT_DISCOUNT = 0.95  # the goodput of a few recent steps is an optimistic estimate
EMA_DECAY = 0.88  # a memory of about eight steps
FIRST_DRAFT_TOKENS = 4  # limit of the first drafts; later ones may double the longest accepted path
# Retries of passes that would pay at half of their old measurement: most nodes, and share of the time.
RETRY_TOKENS, RETRY_TIME_SHARE = 8, 0.01
MAX_SHARED_REQUESTS = 8  # the rows considered for a pass grow up to so many requests
LOOKAHEAD_LEVELS = 8  # levels a draft model looks ahead for the next edge of the cost curve
MAX_CHEAP_CATCH_UP = 32  # pending tokens of a drafter up to which a call counts as usual
RECOMPUTED_ROWS = 8  # rows over which the price of a recomputed one is averaged
NEGLIGIBLE_SHARE = 0.002  # of a plain pass: cheaper drafters are always called
STEP_WEIGHT = 0.02  # of the last step in the time that steps take outside the passes


@dataclass(slots=True)
class PassPrices:
    """The prices of the current pass.
    pace, curve: pass costs (PassCosts.pace_factor)."""

    pace: float = 1.0
    curve: Sequence[float] = ()
    rows: int = 1  # of the pass without drafts
    end: int = 1  # rows with the longest drafts
    rate: float = 0.0  # tokens that a second has to bring
    plain_pass: float = 0.0  # seconds without drafts
    recompute: float = 0.0  # price of a row to compute again, in tokens
    _min_reach: float = 0.0

    def begin_pass(self, pace: float, curve: Sequence[float], rows: int, end: int, rate: float) -> None:
        self.pace, self.curve, self.rows, self.end, self.rate = pace, curve, rows, end, rate
        self.recompute = self._min_reach = 0.0

    def charge_recomputed(self) -> None:
        """Let a rejected draft cost the accepted tokens that are computed again (rollback="restore")."""
        if (more := min(RECOMPUTED_ROWS, self.end - self.rows)) > 0:
            row = self.curve[self.rows + more] - self.curve[self.rows]
            self.recompute = max(0.0, self.rate * self.pace * row / more)

    def seconds(self, rows: int) -> float:
        return self.pace * self.curve[min(rows, len(self.curve) - 1)]

    @property
    def min_reach(self) -> float:
        """Half the reach probability that pays for the cheapest row: the limit for drafting a guess."""
        if not self._min_reach:
            base, more = self.curve[self.rows], self.curve[self.rows + 1 : self.end + 1]
            row = min([(seconds - base) / n for n, seconds in enumerate(more, 1)])
            self._min_reach = max(0.01, 0.5 * self.rate * self.pace * row)
        return self._min_reach

    def expected_gain(self, minus_reach: Sequence[float], pending: int) -> Sequence[float]:
        """Return each node's negated gain: its reach probability, less what a chain's node adds to the
        expected price of a rejection. If node n is the first to be rejected, the next pass recomputes
        `pending + n` tokens: this pass's pending tokens, the root, and n - 1 draft nodes."""
        if not self.recompute:
            return minus_reach
        net: list[float] = []
        above = -1.0
        for n, s in enumerate(minus_reach, 1):
            net.append(s + self.recompute * (s - above) * (pending + n))
            above = s
        return net

    def best(self, minus_gain: Sequence[float], rows: int) -> tuple[int, float]:
        """Return how many nodes to verify in a pass with `rows` other rows, and their gain in tokens.
        Every number is tried, as the curve has steps. minus_gain: by node, the likeliest first."""
        curve, price = self.curve, self.rate * self.pace  # in tokens per unit of the curve
        best, largest, gained = 0, 0.0, price * curve[rows]
        for n, (s, seconds) in enumerate(zip(minus_gain, curve[rows + 1 : self.end + 1], strict=False), 1):
            gained -= s
            if (gain := gained - price * seconds) > largest:
                best, largest = n, gain
        return best, largest

    def best_gain(self, minus_reach: Sequence[float], pending: int) -> float:
        """Return the gain of the best part of one draft, in tokens."""
        return self.best(self.expected_gain(minus_reach, pending), self.rows)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputBudget(Budget):
    """The budget of one proposal, which decides what drafters to call, and how far."""

    prices: PassPrices  # of the pass
    ledger: LossLedger  # of the request

    def for_request(self, *request: Any) -> GoodputBudget:
        limits = self.depth, self.nodes, self.width, self.p_min, self.p_split  # a fourth of `replace`'s time
        return GoodputBudget(*limits, *request, prices=self.prices, ledger=self.ledger)

    def should_call(self, drafter: str, draft: Callable[[], DraftTree], pending_prefill: int = 0) -> bool:
        """Return whether to call a drafter, by the gain of its calls at similar steps."""
        has_prefill, ledger = pending_prefill > MAX_CHEAP_CATCH_UP, self.ledger
        due, value, gain, confidence = self._assess(drafter, draft, has_prefill)
        if not due:
            return False
        if self._must_pay(drafter, value):
            value.begin_trial(confidence, self.prices.rate)
        if has_prefill and not self._pays_for_prefill(value, confidence, pending_prefill):
            ledger.is_refused = True
            return False
        drafters = ledger.drafters
        drafters.calls[drafter] = drafters.calls.get(drafter, 0) + 1
        ledger.call = DrafterCall(drafter, drafters.clock(), gain, confidence, has_prefill)
        return True

    def is_due(self, drafter: str, draft: Callable[[], DraftTree]) -> bool:
        return self._assess(drafter, draft, False)[0]

    def _assess(
        self, drafter: str, draft: Callable[[], DraftTree], has_prefill: bool
    ) -> tuple[bool, DrafterValue, float, int]:
        """End the current call. Return whether a call of the drafter should pay or is due as a trial, its
        value, the gain of the draft so far, and its confidence level."""
        ledger, prices, gain, confidence = self.ledger, self.prices, 0.0, 0
        drafters, call = ledger.drafters, ledger.call
        value = drafters.values.get(drafter)
        if value is None:
            value = drafters.values[drafter] = DrafterValue()
        now, seconds = drafters.clock(), value.seconds
        if call is not None:
            seconds = max(seconds, drafters.values[call.drafter].seconds)
        if has_prefill or seconds > NEGLIGIBLE_SHARE * prices.plain_pass:
            reach = drafters.acceptance.reach_probabilities(ledger.recent_acceptance, draft())
            gain = prices.best_gain(sorted([-s for s in reach]), ledger.pending)
            confidence = confidence_level(max(reach, default=0.0))
        ledger.end_call(now, gain)
        due = not self._must_pay(drafter, value) or (
            not ledger.is_limited and value.is_due(confidence, prices.rate)
        )
        ledger.is_refused = ledger.is_refused or not due
        return due, value, gain, confidence

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
        call, prices, pending = self.ledger.call, self.prices, self.ledger.pending
        if depth >= self.depth or call is None:
            return depth < self.depth
        level = prices.rate * self.ledger.drafters.values[call.drafter].level_seconds  # tokens per level
        call.levels = max(call.levels, depth)
        insort(call.minus_reach, -reach_probability)
        now = prices.best_gain(call.minus_reach, pending)
        each, last = reach_probability ** (1 / depth), min(LOOKAHEAD_LEVELS, self.depth - depth)
        further = call.minus_reach.copy()
        for m in range(1, last + 1):
            reach_probability *= each
            insort(further, -reach_probability)
            # Check only powers of two and the last level, which find the edges of the curve.
            if (m & (m - 1) == 0 or m == last) and prices.best_gain(further, pending) - m * level > now:
                return True
        return False


class GoodputPolicy:
    """The goodput rule. costs: updated in use. depth, nodes, width: limits of a draft."""

    learns = True

    def __init__(
        self,
        costs: DecodingCosts,
        *,
        depth: int = 31,
        nodes: int = 62,
        width: int = 4,
        p_split: float = 0.1,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.costs = costs
        self._limits, self._p_split = (depth, nodes, width), p_split
        self._clock = clock
        self._recomputes = False  # whether rejected drafts were seen to leave tokens to compute again
        self.forget()

    def forget(self) -> None:
        """Drop everything learned from requests but the pass costs."""
        self.acceptance = AcceptanceModel()
        self._drafters = DrafterLedger(self.acceptance, self._clock)
        self._ledgers: WeakKeyDictionary[ActiveRequest, LossLedger] = WeakKeyDictionary()
        self._tokens = self._seconds = 0.0  # moving sums over passes
        self._retry_seconds = 0.0  # seconds saved up for retries
        self._counts = DraftingSummary()
        self._max_first_draft = FIRST_DRAFT_TOKENS
        # State of the current pass
        self._current: Sequence[LossLedger] = ()
        self._is_resting = False  # nothing is decided
        self._context_length = 1  # length of the longest sequence
        self._prefill_tokens = 0  # prompt tokens of prefilling requests
        self._fused_prefill = 0  # pending prompt tokens of decoding requests
        self._prices = PassPrices()

    @property
    def learned(self) -> dict[str, Any]:
        """What a later process can begin with, as JSON; empty if no drafter was called."""
        names = ("tokens", "seconds", "level_seconds", "calls")
        known = {name: it for name, it in self._drafters.values.items() if it.calls}
        values = {name: {one: getattr(it, one) for one in names} for name, it in known.items()}
        return {"values": values, "weights": self.acceptance.weights} if values else {}

    def begin_with(self, learned: Mapping[str, Any]) -> None:
        """Begin with what another process has learned. Raises ValueError, KeyError or TypeError."""
        values = {name: DrafterValue.of(value) for name, value in learned["values"].items()}
        self.acceptance.begin_with(learned["weights"])
        self._drafters.values.update(values)

    @property
    def rate(self) -> float:
        """Tokens that a second has to bring."""
        return self._prices.rate

    def ledger(self, request: ActiveRequest) -> LossLedger:
        """Return the loss ledger of a request."""
        ledger = self._ledgers.get(request)
        if ledger is None:
            ledger = LossLedger(self._drafters, plain_seconds=request.stats.prefill_seconds)
            self._ledgers[request] = ledger
        return ledger

    def budget(self, requests: Sequence[ActiveRequest], prefill_tokens: int = 0) -> Sequence[Budget]:
        n = len(requests)
        self._current = ledgers = [self.ledger(request) for request in requests]
        self._is_resting = all(ledger.rests() for ledger in ledgers)
        if self._is_resting:
            self._tokens = self._seconds = 0.0
            return [NO_BUDGET] * n
        self._prefill_tokens, self._fused_prefill, all_pending = prefill_tokens, 0, 0
        for request, ledger in zip(requests, ledgers, strict=True):
            ledger.pending = request.session.pending_tokens
            all_pending += ledger.pending
            if not request.stats.steps:
                self._fused_prefill += ledger.pending
        self._recomputes = self._recomputes or all_pending > self._fused_prefill
        rows = n + prefill_tokens + all_pending
        end = rows + self._limits[1] * min(n, MAX_SHARED_REQUESTS)
        self._context_length = max([request.context_length for request in requests])
        pace, curve = self.costs.target.pace_factor(end, self._context_length)
        plain_pass = pace * curve[n + prefill_tokens]
        # The goodput of plain decoding without prefill: the best over fewer requests too, as the cost of some
        # number of rows may be unknown or badly measured.
        rate = max([m / curve[m] for m in range(1, n + 1)]) / pace
        if self._seconds > 0.0:
            rate = max(rate, GOODPUT_DISCOUNT * self._tokens / self._seconds)
        prices, drafters = self._prices, self._drafters
        prices.begin_pass(pace, curve, rows, end, rate)
        prices.plain_pass = plain_pass
        if self._recomputes:
            prices.charge_recomputed()
        drafters.draft_costs = self.costs.draft
        drafters.calls.clear()
        credit, plain = drafters.credit(plain_pass / n), plain_pass / n
        return [self._budget(ledger) if ledger.begin_pass(credit, plain) else NO_BUDGET for ledger in ledgers]

    def _budget(self, ledger: LossLedger) -> Budget:
        """Return the budget of a request, the same one as long as its limits are the same."""
        depth, nodes, width = self._limits
        depth = min(depth, self._max_first_draft)
        if ledger.budget.depth != depth:
            ledger.budget = GoodputBudget(
                depth, nodes, width, p_split=self._p_split, prices=self._prices, ledger=ledger
            )
        return ledger.budget

    def select(
        self, requests: Sequence[ActiveRequest], budgets: Sequence[Budget], drafts: Sequence[DraftTree]
    ) -> list[DraftTree]:
        if self._is_resting:
            return list(drafts)
        prices, now, rows = self._prices, self._drafters.clock(), self._prices.rows
        queue: list[tuple[float, int, int, float]] = []  # negated reach, request, node, negated gain
        n = 0
        for at, (ledger, draft, budget) in enumerate(zip(self._current, drafts, budgets, strict=True)):
            n, gain = 0, 0.0
            if draft.tokens:
                reach = self.acceptance.reach_probabilities(ledger.recent_acceptance, draft)
                nodes = likeliest(draft, reach, budget)
                likely = [-reach[node] for node in nodes]
                gains = prices.expected_gain(likely, ledger.pending)
                n, gain = prices.best(gains, prices.rows)
                if draft.q is not None:
                    rows += len(draft)  # always verified
                    self._drafters.sampling.update(draft.source)
                elif not ledger.is_limited:
                    queue += zip(likely, repeat(at), nodes, gains, strict=False)
            ledger.end_call(now, gain)
        if not queue:
            return [draft if draft.q is not None else draft.subset((), ()) for draft in drafts]
        if len(drafts) > 1:
            queue.sort()
            rows = min(rows, prices.end)  # sampled drafts may exceed the curve
            n = prices.best([entry[3] for entry in queue], rows)[0]
        n = n or self._retry_tokens(queue, rows)
        selected: list[list[int]] = [[] for _ in drafts]
        for _, at, node, _ in queue[:n]:
            selected[at].append(node)
        return [
            draft if draft.q is not None else draft.subset(sorted(nodes), draft.reach_probability)
            for draft, nodes in zip(drafts, selected, strict=True)
        ]

    def update(self, requests: Sequence[ActiveRequest], steps: Sequence[Step]) -> None:
        n, prices, ledgers = len(steps), self._prices, self._current
        ledgers = ledgers if n == len(ledgers) else [self.ledger(request) for request in requests]
        plain = prices.plain_pass / n
        rows, drafted, tokens = self._prefill_tokens, 0, 0
        for request, ledger, step in zip(requests, ledgers, steps, strict=True):
            rows += step.batch_tokens
            drafted += len(step.tree.tokens)
            tokens += len(step.tokens)
            ledger.plain_seconds += len(step.tokens) * plain
            if step.proposal.tokens:
                self.acceptance.learn(ledger.recent_acceptance, step.proposal, step.tokens)
                self._max_first_draft = max(self._max_first_draft, 2 * len(step.path))
            if request.n_draft:  # a request decoded plainly by choice shows nothing about drafts
                self._counts.steps += 1
                if not step.tree.tokens:
                    self._record_undrafted(ledger, step)
        if self._is_resting:
            return
        # A pass counts at its known cost, so that a hiccup does not distort the value of drafting.
        seconds, base, more = prices.seconds(rows), prices.plain_pass, rows - self._prefill_tokens - n
        if self._fused_prefill:  # the end of a prompt is no cost of drafts
            base, more = prices.seconds(rows - drafted), drafted
        row = (seconds - base) / max(1, more)  # seconds per drafted or recomputed row
        forward = drafting = overhead = 0.0
        for ledger, step in zip(ledgers, steps, strict=True):
            times, more = step.times, len(step.tree.tokens) if self._fused_prefill else step.batch_tokens - 1
            forward += times.forward
            drafting += times.draft
            overhead += times.verify + times.commit + times.other
            ledger.lose(row * more + min(times.other, plain) - (len(step.tokens) - 1) * plain)
        if self._prefill_tokens or self._fused_prefill:  # dominated by prefill
            return
        overhead = min(overhead, seconds)
        if all(request.stats.steps > 1 for request in requests):  # first steps include one-time work
            self.costs.target.update(rows, self._context_length, forward)
            weight = STEP_WEIGHT if self.costs.step else 1.0
            self.costs.step += weight * (overhead / n - self.costs.step)  # per request, without drafting
        elapsed = seconds + min(drafting + overhead, seconds)
        saved_up = self._retry_seconds + RETRY_TIME_SHARE * elapsed
        self._retry_seconds = min(saved_up, RETRY_TOKENS * prices.plain_pass)
        self._tokens = EMA_DECAY * self._tokens + tokens
        self._seconds = EMA_DECAY * self._seconds + elapsed
        for value in self._drafters.values.values():
            value.add_credit(elapsed)

    def _record_undrafted(self, ledger: LossLedger, step: Step) -> None:
        """Count a step without verification: was there a guess, and was it right?"""
        proposal, counts = step.proposal, self._counts
        guesses = proposal.children(ROOT) if proposal.tokens else ()
        if guesses:
            guess = guesses[0]
            if len(guesses) > 1:
                reach = self.acceptance.reach_probabilities(ledger.recent_acceptance, proposal)
                guess = max(guesses, key=reach.__getitem__)
            counts.left_out += 1
            counts.was_right += proposal.tokens[guess] == step.tokens[0]
        declined = bool(guesses) or ledger.is_refused or ledger.is_limited or ledger.excess > 0.0
        counts.braked += ledger.is_limited
        counts.refused += ledger.is_refused and not ledger.is_limited
        counts.declined += declined
        counts.silent += not declined

    @property
    def summary(self) -> DraftingSummary:
        self._counts.reliability = self.acceptance.reliability
        return self._counts.with_reason(self.costs.target, self._context_length)

    def _retry_tokens(self, queue: Sequence[tuple[float, int, int, float]], rows: int) -> int:
        """Return how many unprofitable nodes to verify in order to measure an overdue cell.
        A cell measured too expensive is avoided, and would never be corrected otherwise."""
        if self._prefill_tokens or self._fused_prefill:  # such a pass does not update the costs
            return 0
        prices, gained = self._prices, 0.0
        for n, entry in enumerate(queue[: min(RETRY_TOKENS, prices.end - rows)], 1):
            gained -= entry[0]
            extra = prices.pace * (prices.curve[rows + n] - prices.curve[rows])
            pays = gained > 0.5 * prices.rate * extra
            if pays and self.costs.target.is_overdue(rows + n, self._context_length):
                if extra > self._retry_seconds:
                    return 0
                self._retry_seconds -= extra
                return n
        return 0
