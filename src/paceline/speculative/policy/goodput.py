"""The goodput policy: draft what raises the number of tokens per second.

At the best achievable goodput (`rate`) a set of draft nodes N is worth verifying if it maximises

    1 + sum of reach probabilities  -  rate * (T_draft(N) + T_verify(1 + |N|, depth))

Reach probabilities are learned (acceptance.py) and costs measured (costs.py). The rate is the
recent goodput, at least that of plain decoding. A node is at most as likely as its parent, so the best n
nodes are the n likeliest (RowPrices). Requests of one pass compete for its rows in one list. (This is the
goodput of TurboSpec, arXiv:2406.14066, for single nodes instead of lengths.)

A drafter is called where that is expected to pay (drafter_value.py). A loss limit bounds what a request can
lose whatever the predictions: a share of its plain decoding time, one pass, and a part of all savings. Beyond
it the request is decoded plainly until the loss is made good. Meanwhile drafters that cost no time are still
called and judged by the emitted text, unless the policy's own work is the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from weakref import WeakKeyDictionary

from paceline.speculative.interfaces import NO_BUDGET, Budget
from paceline.speculative.policy.acceptance import AcceptanceModel
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.policy.drafting_summary import DraftingSummary
from paceline.speculative.policy.goodput_budget import DrafterCalls, GoodputBudget, LossLedger, RowPrices
from paceline.speculative.policy.interface import by_reach_probability, within_limits
from paceline.speculative.request import ActiveRequest
from paceline.speculative.stats import Step
from paceline.speculative.tree import ROOT, DraftTree

# The loss limit of a request: a share of its plain time, plain passes, and a share of all savings so far.
MAX_LOSS_SHARE, FREE_PASSES, SAVINGS_AT_RISK = 0.02, 1.0, 0.1
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
        self._most, self._p_split = (depth, nodes, width), p_split
        self._clock = clock
        self._recomputes = False  # whether rejected drafts were seen to leave tokens to compute again
        self.forget()

    def forget(self) -> None:
        """Drop everything learned from requests but the pass costs."""
        self.acceptance = AcceptanceModel()
        self._calls = DrafterCalls(self.acceptance, self._clock)
        self._ledgers: WeakKeyDictionary[ActiveRequest, LossLedger] = WeakKeyDictionary()
        self._tokens = self._seconds = 0.0  # of recent passes
        self._retry_seconds = 0.0  # seconds saved up for retries
        self._counts = DraftingSummary()
        self._max_first_draft = FIRST_DRAFT_TOKENS
        # Of the current pass:
        self._limited: set[int] = set()  # ids of the ledgers beyond the loss limit
        self._context_length = 1  # length of the longest sequence
        self._prefill_tokens = 0  # prompt tokens of prefilling requests
        self._fused_prefill = 0  # pending prompt tokens of decoding requests
        self._prices = RowPrices()
        self._plain_pass = 0.0  # seconds without drafts

    @property
    def rate(self) -> float:
        """Tokens that a second has to bring."""
        return self._prices.rate

    def ledger(self, request: ActiveRequest) -> LossLedger:
        """Return the loss ledger of a request."""
        try:
            return self._ledgers[request]
        except KeyError:
            return self._ledgers.setdefault(request, LossLedger(plain_seconds=request.stats.prefill_seconds))

    def budget(self, requests: Sequence[ActiveRequest], prefill_tokens: int = 0) -> Sequence[Budget]:
        depth, nodes, width = self._most
        depth = min(depth, self._max_first_draft)
        n = len(requests)
        self._prefill_tokens = prefill_tokens
        pending = [request.session.pending_tokens for request in requests]
        self._fused_prefill, all_pending = 0, sum(pending)
        if all_pending:
            self._fused_prefill = sum(
                [m for m, r in zip(pending, requests, strict=True) if not r.stats.steps]
            )
            self._recomputes = self._recomputes or all_pending > self._fused_prefill
        rows = n + prefill_tokens + all_pending
        end = rows + nodes * min(n, MAX_SHARED_REQUESTS)
        self._context_length = max([request.context_length for request in requests])
        pace, curve = self.costs.target.pace_factor(end, self._context_length)
        self._plain_pass = pace * curve[n + prefill_tokens]
        # The goodput of plain decoding without prefill: the best over fewer requests too, as the cost of some
        # number of rows may be unknown or badly measured.
        rate = max([m / curve[m] for m in range(1, n + 1)]) / pace
        if self._seconds > 0.0:
            rate = max(rate, GOODPUT_DISCOUNT * self._tokens / self._seconds)
        self._prices = RowPrices(pace, curve, rows, end, rate, self._recomputes)
        self._calls.begin(self._prices, self._plain_pass, self.costs.draft)
        credit = FREE_PASSES * self._plain_pass / n + SAVINGS_AT_RISK * max(0.0, self._calls.saved)
        ledgers = [self.ledger(request) for request in requests]
        self._limited = {id(ledger) for ledger in ledgers if ledger.exceeds(MAX_LOSS_SHARE, credit)}
        return [
            NO_BUDGET
            if ledger.exceeds(MAX_LOSS_SHARE, 2.0 * credit)
            else GoodputBudget(
                depth,
                nodes,
                width,
                p_split=self._p_split,
                rule=self._calls,
                ledger=ledger,
                is_limited=id(ledger) in self._limited,
                pending=m,
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
        now, rows = self._calls.clock(), self._prices.rows
        queue: list[tuple[float, int, int, float]] = []
        for at, (draft, reach_probability, budget) in enumerate(
            zip(drafts, reach_probabilities, budgets, strict=True)
        ):
            if isinstance(budget, GoodputBudget) and budget.call.drafter:
                self._calls.finish_call(budget, now, self._prices.worth(reach_probability, budget.pending))
            if draft.q is not None:
                rows += len(draft)  # always verified
                self._calls.sampling.update(draft.source)
            elif not (isinstance(budget, GoodputBudget) and budget.is_limited):
                fitting = within_limits(by_reach_probability(draft, reach_probability), draft, budget)
                likely = [-reach_probability[node] for node in fitting]
                pending = budget.pending if isinstance(budget, GoodputBudget) else 0
                net = self._prices.net_of_rejection(likely, pending)
                queue += [(s, at, node, worth) for s, node, worth in zip(likely, fitting, net, strict=True)]
        if len(drafts) > 1:
            queue.sort()
        rows = min(rows, self._prices.end)  # sampled drafts may exceed the curve
        n = self._prices.best([entry[3] for entry in queue], rows)[0]
        n = n or self._retry_tokens([entry[0] for entry in queue], rows)
        taken: list[list[int]] = [[] for _ in drafts]
        for _, at, node, _ in queue[:n]:
            taken[at].append(node)
        return [
            draft if draft.q is not None else draft.subset(sorted(nodes), reach_probability)
            for draft, nodes, reach_probability in zip(drafts, taken, reach_probabilities, strict=True)
        ]

    def update(self, requests: Sequence[ActiveRequest], steps: Sequence[Step]) -> None:
        n, cost, ledgers = len(steps), self.costs.target, [self.ledger(request) for request in requests]
        for request, ledger, step in zip(requests, ledgers, steps, strict=True):
            self.acceptance.learn(ledger.recent_acceptance, step.proposal, step.tokens)
            self._max_first_draft = max(self._max_first_draft, 2 * len(step.path))
            if not request.n_draft:  # plain by request, which says nothing about drafts
                continue
            self._counts.steps += 1
            if len(step.tree) == 0:
                self._record_skipped(ledger, step)
        rows = sum([step.batch_tokens for step in steps])
        tokens = sum([len(step.tokens) for step in steps])
        longest = max([r.context_length - len(s.tokens) for r, s in zip(requests, steps, strict=True)])
        # A pass counts at its known cost, so that a hiccup does not distort the value of drafting.
        pass_ = cost.seconds(rows + self._prefill_tokens, longest)
        plain, drafting, overhead = self._plain_pass / n, 0.0, 0.0
        base, extra_rows = self._plain_pass, [step.batch_tokens - 1 for step in steps]
        if self._fused_prefill:  # the end of a prompt is no cost of drafts
            extra_rows = [len(step.tree) for step in steps]
            base = cost.seconds(rows + self._prefill_tokens - sum(extra_rows), longest)
        extra = (pass_ - base) / max(1, sum(extra_rows))  # seconds per drafted or recomputed row
        for ledger, step, more in zip(ledgers, steps, extra_rows, strict=True):
            times = step.times
            drafting += times.draft
            overhead += times.total - times.draft - times.forward
            ledger.plain_seconds += len(step.tokens) * plain
            saved = (len(step.tokens) - 1) * plain
            self._calls.lose(ledger, extra * more + min(times.other, plain) - saved)
        if self._prefill_tokens or self._fused_prefill:  # dominated by prefill
            return
        if all(request.stats.steps > 1 for request in requests):  # first steps include one-time work
            cost.update(rows, longest, sum([step.times.forward for step in steps]))
            counted = min(overhead, pass_) / n  # per request, without drafting
            self.costs.step += 0.02 * (counted - self.costs.step) if self.costs.step else counted
        elapsed = pass_ + min(drafting + overhead, pass_)
        self._retry_seconds = min(
            self._retry_seconds + RETRY_TIME_SHARE * elapsed, RETRY_TOKENS * self._plain_pass
        )
        self._tokens = EMA_DECAY * self._tokens + tokens
        self._seconds = EMA_DECAY * self._seconds + elapsed
        self._calls.save(elapsed)

    def _record_skipped(self, ledger: LossLedger, step: Step) -> None:
        """Record a step without verification: was there a guess, and was it right?"""
        proposal = step.proposal
        guesses = proposal.children(ROOT)
        if guesses:
            guess = guesses[0]
            if len(guesses) > 1:
                guess = max(
                    guesses,
                    key=self.acceptance.reach_probabilities(ledger.recent_acceptance, proposal).__getitem__,
                )
            self._counts.left_out += 1
            self._counts.was_right += proposal.tokens[guess] == step.tokens[0]
        braked, refused = id(ledger) in self._limited, id(ledger) in self._calls.refused
        declined = bool(guesses) or refused or braked or ledger.exceeds(MAX_LOSS_SHARE, 0.0)
        self._counts.braked += braked
        self._counts.refused += refused and not braked
        self._counts.declined += declined
        self._counts.silent += not declined

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
