"""The decision rule: draft what raises the rate.

At the best achievable rate (tokens a second) a set of draft nodes N is worth verifying where it maximises

    1 + sum of reach probabilities  -  rate * (T_draft(N) + T_verify(1 + |N|, depth))

Reach probabilities are learned (acceptance_model.py), costs measured (cost_model.py). The rate is what was
reached lately, at least that of plain decoding. A node is at most as likely as its parent, so that the best n
nodes are the n likeliest (row_prices.py). Requests that share a pass compete for its rows in one list. (The
goodput of TurboSpec, arXiv:2406.14066, for single nodes instead of lengths.)

A drafter is called where that is expected to pay (drafter_value.py). A brake bounds what a request can lose,
whatever is believed: once drafting has lost more than a share of the plain time, one pass, and a part of what
all drafts have saved, the request is decoded plainly until that is made good. Drafters that take no time are
still called meanwhile, and judged by the text that comes; none is where the rule's own work is the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from weakref import WeakKeyDictionary

from paceline.speculative.interfaces import NO_BUDGET, Budget
from paceline.speculative.policy.acceptance_model import AcceptanceModel
from paceline.speculative.policy.cost_model import DecodingCosts
from paceline.speculative.policy.drafting_summary import DraftingCounts, DraftingSummary
from paceline.speculative.policy.goodput_budget import DrafterCalls, GoodputBudget, LossLedger
from paceline.speculative.policy.interface import most_probable, within_limits
from paceline.speculative.policy.row_prices import RowPrices
from paceline.speculative.request import ActiveRequest
from paceline.speculative.stats import Step
from paceline.speculative.tree import ROOT, DraftTree

MAX_LOSS_SHARE, FREE_PASSES = (
    0.02,
    1.0,
)  # what a request may lose: a share of its plain time, and plain passes
SAVINGS_AT_RISK = 0.1  # and of what drafts have saved so far, in all requests
GOODPUT_DISCOUNT = 0.95  # what was reached in a few steps flatters what the next ones will reach
EMA_DECAY = 0.88  # what is left of a step's weight after the next one: a memory of some eight steps
FIRST_DRAFT_TOKENS = (
    4  # tokens of a process's first drafts; later ones may have twice what was accepted so far
)
# Passes that would pay if they took half of what was measured long ago: rows, and a share of the time.
RETRY_TOKENS, RETRY_PROBABILITY = 8, 0.01
MAX_SHARED_REQUESTS = 8  # requests beyond which a pass that they share is not looked at over more rows


class GoodputPolicy:
    """costs: what passes take here, kept up to date. nodes, depth, width: the most that a draft may have;
    p_split: see Budget."""

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
        self.forget()

    def forget(self) -> None:
        """Everything learned from requests; what passes cost stays."""
        self.belief = AcceptanceModel()
        self._calls = DrafterCalls(self.belief, self._clock)
        self._tracks: WeakKeyDictionary[ActiveRequest, LossLedger] = WeakKeyDictionary()
        self._tokens = self._seconds = 0.0  # of late
        self._spare = 0.0  # seconds for passes that are made for the sake of their costs
        self._counts = DraftingCounts()
        self._earned = FIRST_DRAFT_TOKENS
        # Of the pass in the making:
        self._braked: set[int] = set()  # tracks of requests that may lose nothing
        self._deepest = 1  # tokens of the longest text
        self._reading = 0  # rows of prompts
        self._tails = 0  # rows of prompts that those who decode still have to read
        self._prices = RowPrices()
        self._alone = 0.0  # seconds of a pass without drafts

    @property
    def rate(self) -> float:
        """Tokens that a second has to bring."""
        return self._prices.rate

    def ledger(self, request: ActiveRequest) -> LossLedger:
        try:
            return self._tracks[request]
        except KeyError:
            return self._tracks.setdefault(request, LossLedger(plain_seconds=request.stats.reading_seconds))

    def budget(self, requests: Sequence[ActiveRequest], reading: int = 0) -> Sequence[Budget]:
        depth, nodes, width = self._most
        depth = min(depth, self._earned)
        n = len(requests)
        self._reading, self._tails = reading, sum([request.session.pending_tokens for request in requests])
        rows = n + reading + self._tails
        end = rows + nodes * min(n, MAX_SHARED_REQUESTS)
        self._deepest = max([len(request.session.tokens) for request in requests])
        pace, curve = self.costs.target.pace_factor(end, self._deepest)
        self._alone = pace * curve[n + reading]
        # Of plain decoding, with no prompt in between. More requests bring no less than fewer would: some
        # number of rows in between may not be known, or have been measured in a bad moment.
        rate = max([m / curve[m] for m in range(1, n + 1)]) / pace
        if self._seconds > 0.0:
            rate = max(rate, GOODPUT_DISCOUNT * self._tokens / self._seconds)
        self._prices = RowPrices(pace, curve, rows, end, rate)
        self._calls.begin(self._prices, self._alone, self.costs.draft)
        credit = FREE_PASSES * self._alone / n + SAVINGS_AT_RISK * max(0.0, self._calls.saved)
        tracks = [self.ledger(request) for request in requests]
        self._braked = {id(track) for track in tracks if track.exceeds(MAX_LOSS_SHARE, credit)}
        return [
            NO_BUDGET
            if track.exceeds(MAX_LOSS_SHARE, 2.0 * credit)
            else GoodputBudget(
                depth,
                nodes,
                width,
                p_split=self._p_split,
                rule=self._calls,
                ledger=track,
                is_limited=id(track) in self._braked,
            )
            for track in tracks
        ]

    def select(
        self, requests: Sequence[ActiveRequest], budgets: Sequence[Budget], drafts: Sequence[DraftTree]
    ) -> list[DraftTree]:
        reach_probabilities = [
            self.belief.reach_probabilities(self.ledger(request).recent_acceptance, draft)
            if draft.tokens
            else []
            for request, draft in zip(requests, drafts, strict=True)
        ]
        now, rows = self._calls.clock(), self._prices.rows
        queue: list[tuple[float, int, int]] = []
        for at, (draft, reach_probability, budget) in enumerate(
            zip(drafts, reach_probabilities, budgets, strict=True)
        ):
            if isinstance(budget, GoodputBudget) and budget.call.drafter:
                self._calls.finish_call(budget, now, self._prices.worth(reach_probability))
            if draft.q is not None:
                rows += len(draft)  # verified whatever it is worth
                self._calls.sampling.update(draft.source)
            elif not (isinstance(budget, GoodputBudget) and budget.is_limited):
                selected = within_limits(most_probable(draft, reach_probability), draft, budget)
                queue += [(-reach_probability[node], at, node) for node in selected]
        if len(drafts) > 1:
            queue.sort()
        rows = min(rows, self._prices.end)  # many requests may have drawn more than the curve shows
        likely = [entry[0] for entry in queue]
        n = self._prices.best(likely, rows)[0] or self._retry_tokens(likely, rows)
        taken: list[list[int]] = [[] for _ in drafts]
        for _, at, node in queue[:n]:
            taken[at].append(node)
        return [
            draft if draft.q is not None else draft.subset(sorted(nodes), reach_probability)
            for draft, nodes, reach_probability in zip(drafts, taken, reach_probabilities, strict=True)
        ]

    def update(self, requests: Sequence[ActiveRequest], steps: Sequence[Step]) -> None:
        n, cost, tracks = len(steps), self.costs.target, [self.ledger(request) for request in requests]
        for request, track, step in zip(requests, tracks, steps, strict=True):
            self.belief.learn(track.recent_acceptance, step.proposal, step.tokens)
            self._earned = max(self._earned, 2 * len(step.path))
            if not request.n_draft:  # it asked for plain decoding: that says nothing of drafts
                continue
            self._counts.steps += 1
            if len(step.tree) == 0:
                self._record_skipped(track, step)
        rows = sum([step.batch_tokens for step in steps])
        tokens = sum([len(step.tokens) for step in steps])
        deepest = max([len(r.session.tokens) - len(s.tokens) for r, s in zip(requests, steps, strict=True)])
        nodes = sum([len(step.tree) for step in steps])
        # A hiccup of the machine says nothing of what drafting is worth: a pass counts what such passes cost.
        pass_ = cost.seconds(rows + self._reading, deepest)
        plain, drafting, beside = self._alone / n, 0.0, 0.0
        base = self._alone
        if self._tails:  # the end of a prompt is nothing that drafts have cost
            base = cost.seconds(rows + self._reading - nodes, deepest)
        extra = (pass_ - base) / max(1, nodes)  # of a drafted row
        for track, step in zip(tracks, steps, strict=True):
            times = step.times
            drafting += times.draft
            beside += times.total - times.draft - times.forward
            track.plain_seconds += len(step.tokens) * plain
            saved = (len(step.tokens) - 1) * plain
            self._calls.lose(track, extra * len(step.tree) + min(times.other, plain) - saved)
        if self._reading or self._tails:  # what such a pass took is the prompt's matter
            return
        if all(request.stats.steps > 1 for request in requests):  # the first one builds what others reuse
            cost.update(rows, deepest, sum([step.times.forward for step in steps]))
            counted = min(beside, pass_) / n  # of one request; drafts have costs of their own
            self.costs.step += 0.02 * (counted - self.costs.step) if self.costs.step else counted
        took = pass_ + min(drafting + beside, pass_)
        self._spare = min(self._spare + RETRY_PROBABILITY * took, RETRY_TOKENS * self._alone)
        self._tokens = EMA_DECAY * self._tokens + tokens
        self._seconds = EMA_DECAY * self._seconds + took
        self._calls.save(took)

    def _record_skipped(self, track: LossLedger, step: Step) -> None:
        """Nothing was verified: was there a guess, and would it have been right?"""
        proposal = step.proposal
        guesses = proposal.children(ROOT)
        if guesses:
            guess = guesses[0]
            if len(guesses) > 1:
                guess = max(
                    guesses,
                    key=self.belief.reach_probabilities(track.recent_acceptance, proposal).__getitem__,
                )
            self._counts.left_out += 1
            self._counts.was_right += proposal.tokens[guess] == step.tokens[0]
        braked, refused = id(track) in self._braked, id(track) in self._calls.refused
        declined = bool(guesses) or refused or braked or track.exceeds(MAX_LOSS_SHARE, 0.0)
        self._counts.braked += braked
        self._counts.refused += refused and not braked
        self._counts.declined += declined
        self._counts.silent += not declined

    @property
    def summary(self) -> DraftingSummary:
        return self._counts.summary(self.costs.target, self._deepest, self.belief.calibration())

    def _retry_tokens(self, minus_reach: Sequence[float], rows: int) -> int:
        """Return how many nodes are verified where none is worth it, to see what that takes: a cell that was
        measured too dear is avoided, and would stay so."""
        if self._reading or self._tails:  # such a pass is not observed
            return 0
        prices, gained = self._prices, 0.0
        for n, s in enumerate(minus_reach[: min(RETRY_TOKENS, prices.end - rows)], 1):
            gained -= s
            extra = prices.pace * (prices.curve[rows + n] - prices.curve[rows])
            pays = gained > 0.5 * prices.rate * extra
            if pays and self.costs.target.is_overdue(rows + n, self._deepest):
                if extra > self._spare:
                    return 0
                self._spare -= extra
                return n
        return 0
