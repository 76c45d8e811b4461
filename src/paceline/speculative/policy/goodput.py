"""The goodput policy: draft what raises the number of tokens per second.

At the best achievable goodput (`rate`) a set of draft nodes N is worth verifying if it maximises

    1 + sum of reach probabilities  -  rate * (T_draft(N) + T_verify(1 + |N|, depth))

Reach probabilities are learned (acceptance.py) and costs measured (costs.py). The rate is the recent goodput,
at least that of plain decoding. A node is at most as likely as its parent, so the best n nodes are the n
likeliest (PassPrices). Requests of one pass compete for its rows in one list. (This is the goodput of
TurboSpec, arXiv:2406.14066, for single nodes instead of lengths.)

A drafter is called where that is expected to pay (goodput_budget.py). A request beyond its loss limit
(ledger.py) is decoded plainly until the loss is made good. Meanwhile drafters that cost no time are still
called and judged by the emitted text, unless the policy's own work is the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from weakref import WeakKeyDictionary

from paceline.speculative.interfaces import NO_BUDGET, Budget
from paceline.speculative.policy.acceptance import AcceptanceModel
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.policy.goodput_budget import GoodputBudget, PassPrices
from paceline.speculative.policy.interface import by_reach_probability, within_limits
from paceline.speculative.policy.ledger import DrafterLedger, DraftingSummary, LossLedger
from paceline.speculative.request import ActiveRequest
from paceline.speculative.stats import Step
from paceline.speculative.tree import ROOT, DraftTree

GOODPUT_DISCOUNT = 0.95  # the goodput of a few recent steps is an optimistic estimate
EMA_DECAY = 0.88  # a memory of about eight steps
FIRST_DRAFT_TOKENS = 4  # limit of the first drafts; later ones may double the longest accepted path
# Retries of passes that would pay at half of their old measurement: most nodes, and share of the time.
RETRY_TOKENS, RETRY_TIME_SHARE = 8, 0.01
MAX_SHARED_REQUESTS = 8  # the rows considered for a pass grow up to so many requests


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
        self._context_length = 1  # length of the longest sequence
        self._prefill_tokens = 0  # prompt tokens of prefilling requests
        self._fused_prefill = 0  # pending prompt tokens of decoding requests
        self._prices = PassPrices()

    @property
    def rate(self) -> float:
        """Tokens that a second has to bring."""
        return self._prices.rate

    def ledger(self, request: ActiveRequest) -> LossLedger:
        """Return the loss ledger of a request."""
        try:
            return self._ledgers[request]
        except KeyError:
            ledger = LossLedger(self._drafters, plain_seconds=request.stats.prefill_seconds)
            return self._ledgers.setdefault(request, ledger)

    def budget(self, requests: Sequence[ActiveRequest], prefill_tokens: int = 0) -> Sequence[Budget]:
        depth, nodes, width = self._limits
        n = len(requests)
        self._prefill_tokens = prefill_tokens
        pending = [request.session.pending_tokens for request in requests]
        self._fused_prefill, all_pending = 0, sum(pending)
        if all_pending:
            prompts = [m for m, r in zip(pending, requests, strict=True) if not r.stats.steps]
            self._fused_prefill = sum(prompts)
            self._recomputes = self._recomputes or all_pending > self._fused_prefill
        rows = n + prefill_tokens + all_pending
        end = rows + nodes * min(n, MAX_SHARED_REQUESTS)
        self._context_length = max([request.context_length for request in requests])
        pace, curve = self.costs.target.pace_factor(end, self._context_length)
        plain_pass = pace * curve[n + prefill_tokens]
        # The goodput of plain decoding without prefill: the best over fewer requests too, as the cost of some
        # number of rows may be unknown or badly measured.
        rate = max([m / curve[m] for m in range(1, n + 1)]) / pace
        if self._seconds > 0.0:
            rate = max(rate, GOODPUT_DISCOUNT * self._tokens / self._seconds)
        prices = PassPrices(pace, curve, rows, end, rate, self._recomputes, plain_pass)
        drafters, ledgers = self._drafters, [self.ledger(request) for request in requests]
        self._prices, drafters.draft_costs = prices, self.costs.draft
        drafters.calls.clear()
        credit = drafters.credit(plain_pass / n)
        for ledger in ledgers:
            ledger.begin_pass(credit)
        depth = min(depth, self._max_first_draft)
        return [
            NO_BUDGET
            if ledger.exceeds(2.0 * credit)
            else GoodputBudget(
                depth, nodes, width, p_split=self._p_split, prices=prices, ledger=ledger, pending=m
            )
            for ledger, m in zip(ledgers, pending, strict=True)
        ]

    def select(
        self, requests: Sequence[ActiveRequest], budgets: Sequence[Budget], drafts: Sequence[DraftTree]
    ) -> list[DraftTree]:
        reach_probabilities = [
            self.acceptance.reach_probabilities(self.ledger(request).recent_acceptance, draft)
            if draft.tokens
            else []
            for request, draft in zip(requests, drafts, strict=True)
        ]
        prices, now, rows = self._prices, self._drafters.clock(), self._prices.rows
        queue: list[tuple[float, int, int, float]] = []  # negated reach, request, node, negated gain
        for at, (draft, reach_probability, budget) in enumerate(
            zip(drafts, reach_probabilities, budgets, strict=True)
        ):
            is_limited, pending = False, 0
            if isinstance(budget, GoodputBudget):
                ledger, pending = budget.ledger, budget.pending
                is_limited = ledger.is_limited
                if ledger.call.drafter:
                    ledger.end_call(now, prices.gain(reach_probability, pending))
            if draft.q is not None:
                rows += len(draft)  # always verified
                self._drafters.sampling.update(draft.source)
            elif not is_limited:
                fitting = within_limits(by_reach_probability(draft, reach_probability), draft, budget)
                likely = [-reach_probability[node] for node in fitting]
                gains = prices.expected_gain(likely, pending)
                queue += [(s, at, node, g) for s, node, g in zip(likely, fitting, gains, strict=True)]
        if len(drafts) > 1:
            queue.sort()
        rows = min(rows, prices.end)  # sampled drafts may exceed the curve
        n = prices.best([entry[3] for entry in queue], rows)[0]
        n = n or self._retry_tokens([entry[0] for entry in queue], rows)
        selected: list[list[int]] = [[] for _ in drafts]
        for _, at, node, _ in queue[:n]:
            selected[at].append(node)
        return [
            draft if draft.q is not None else draft.subset(sorted(nodes), reach_probability)
            for draft, nodes, reach_probability in zip(drafts, selected, reach_probabilities, strict=True)
        ]

    def update(self, requests: Sequence[ActiveRequest], steps: Sequence[Step]) -> None:
        n, costs, ledgers = len(steps), self.costs.target, [self.ledger(request) for request in requests]
        for request, ledger, step in zip(requests, ledgers, steps, strict=True):
            self.acceptance.learn(ledger.recent_acceptance, step.proposal, step.tokens)
            self._max_first_draft = max(self._max_first_draft, 2 * len(step.path))
            if request.n_draft:  # a request decoded plainly by choice shows nothing about drafts
                self._counts.steps += 1
                if len(step.tree) == 0:
                    self._record_undrafted(ledger, step)
        rows = self._prefill_tokens + sum([step.batch_tokens for step in steps])
        longest = max([r.context_length - len(s.tokens) for r, s in zip(requests, steps, strict=True)])
        # A pass counts at its known cost, so that a hiccup does not distort the value of drafting.
        seconds = costs.seconds(rows, longest)
        base, extra_rows = self._prices.plain_pass, [step.batch_tokens - 1 for step in steps]
        if self._fused_prefill:  # the end of a prompt is no cost of drafts
            extra_rows = [len(step.tree) for step in steps]
            base = costs.seconds(rows - sum(extra_rows), longest)
        extra = (seconds - base) / max(1, sum(extra_rows))  # seconds per drafted or recomputed row
        plain, drafting, overhead = self._prices.plain_pass / n, 0.0, 0.0
        for ledger, step, more in zip(ledgers, steps, extra_rows, strict=True):
            times = step.times
            drafting += times.draft
            overhead += times.total - times.draft - times.forward
            ledger.plain_seconds += len(step.tokens) * plain
            saved = (len(step.tokens) - 1) * plain
            ledger.lose(extra * more + min(times.other, plain) - saved)
        if self._prefill_tokens or self._fused_prefill:  # dominated by prefill
            return
        if all(request.stats.steps > 1 for request in requests):  # first steps include one-time work
            costs.update(rows, longest, sum([step.times.forward for step in steps]))
            counted = min(overhead, seconds) / n  # per request, without drafting
            self.costs.step += 0.02 * (counted - self.costs.step) if self.costs.step else counted
        elapsed = seconds + min(drafting + overhead, seconds)
        saved_up = self._retry_seconds + RETRY_TIME_SHARE * elapsed
        self._retry_seconds = min(saved_up, RETRY_TOKENS * self._prices.plain_pass)
        self._tokens = EMA_DECAY * self._tokens + sum([len(step.tokens) for step in steps])
        self._seconds = EMA_DECAY * self._seconds + elapsed
        for value in self._drafters.values.values():
            value.add_credit(elapsed)

    def _record_undrafted(self, ledger: LossLedger, step: Step) -> None:
        """Count a step without verification: was there a guess, and was it right?"""
        proposal, counts = step.proposal, self._counts
        guesses = proposal.children(ROOT)
        if guesses:
            guess = guesses[0]
            if len(guesses) > 1:
                reach = self.acceptance.reach_probabilities(ledger.recent_acceptance, proposal)
                guess = max(guesses, key=reach.__getitem__)
            counts.left_out += 1
            counts.was_right += proposal.tokens[guess] == step.tokens[0]
        declined = bool(guesses) or ledger.is_refused or ledger.is_limited or ledger.exceeds(0.0)
        counts.braked += ledger.is_limited
        counts.refused += ledger.is_refused and not ledger.is_limited
        counts.declined += declined
        counts.silent += not declined

    @property
    def summary(self) -> DraftingSummary:
        return self._counts.with_reason(self.costs.target, self._context_length)

    def _retry_tokens(self, minus_reach: Sequence[float], rows: int) -> int:
        """Return how many unprofitable nodes to verify in order to measure an overdue cell.
        A cell measured too expensive is avoided, and would never be corrected otherwise."""
        if self._prefill_tokens or self._fused_prefill:  # such a pass does not update the costs
            return 0
        prices, gained = self._prices, 0.0
        for n, s in enumerate(minus_reach[: min(RETRY_TOKENS, prices.end - rows)], 1):
            gained -= s
            extra = prices.pace * (prices.curve[rows + n] - prices.curve[rows])
            pays = gained > 0.5 * prices.rate * extra
            if pays and self.costs.target.is_overdue(rows + n, self._context_length):
                if extra > self._retry_seconds:
                    return 0
                self._retry_seconds -= extra
                return n
        return 0
