"""The decision rule: draft what raises the rate.

At the best achievable rate (tokens a second) a set of draft nodes N is worth verifying where it maximises

    1 + sum of reach probabilities  -  rate * (T_draft(N) + T_verify(1 + |N|, depth))

Survivals are learned (acceptance_model.py), costs measured (cost_model.py), and the rate is what was reached
lately, at least that of plain decoding. A node's reach probability is at most its parent's, so that the best
n nodes are the n likeliest, and the best n is found by trying each: the curve of costs has steps, and a draft
ends at one of its edges. Requests that share a pass share its cost, and their nodes compete in one list.
(The goodput of TurboSpec, arXiv:2406.14066, for single nodes instead of lengths.)

A drafter is called where that is expected to pay (drafter_value.py). And a brake bounds what a request can
lose, whatever is believed: once drafting has taken longer than it has saved, by a share of the time that
plain decoding of the same text takes, one pass, and a part of what all drafts have saved so far, the request
is decoded plainly until that is made good. Drafters that take no time are still called meanwhile, and judged
by the text that comes; where the rule's own work is what takes too long, nobody is.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter
from weakref import WeakKeyDictionary

from paceline.speculative.interfaces import NO_BUDGET, Budget
from paceline.speculative.policy.acceptance_model import AcceptanceModel
from paceline.speculative.policy.cost_model import DecodingCosts
from paceline.speculative.policy.drafter_value import DrafterValue, certainty
from paceline.speculative.policy.drafting_summary import FEW, SHOWN, DraftingSummary, reason
from paceline.speculative.policy.goodput_budget import GoodputBudget, LossLedger
from paceline.speculative.policy.interface import fitting, likeliest
from paceline.speculative.request import ActiveRequest
from paceline.speculative.stats import Step
from paceline.speculative.tree import ROOT, DraftTree

BRAKE, CREDIT = 0.02, 1.0  # what a request may lose: a share of its plain time, and plain passes
STAKE = 0.1  # and of what drafts have saved so far, in all requests
CAUTION = 0.95  # what was reached in a few steps flatters what the next ones will reach
LATELY = 0.88  # what is left of a step's weight after the next one: a memory of some eight steps
FURTHER = 8  # levels that a drafter which computes looks ahead, for the next edge of the curve
CAUGHT_UP = 32  # tokens that a drafter may have to read for a call that counts like any other
EARNED = 4  # tokens of a process's first drafts; later ones may have twice what was accepted so far
NEGLIGIBLE = 0.002  # of a plain pass: a drafter that takes less is called without asking whether it pays
# Passes that would pay if they took half of what was measured long ago: rows, and a share of the time.
RETRIED, RETRYING = 8, 0.01
SHARED = 8  # requests beyond which a pass that they share is not looked at over more rows


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
        self._gains: dict[str, DrafterValue] = {}
        self._tracks: WeakKeyDictionary[ActiveRequest, LossLedger] = WeakKeyDictionary()
        self.rate = 0.0  # tokens that a second has to bring
        self._tokens = self._seconds = 0.0  # of late
        self._saved = 0.0  # seconds, by drafts in all
        self._spare = 0.0  # seconds for passes that are made for the sake of their costs
        self._steps = self._silent = self._declined = self._refusals = self._brakings = 0
        self._sampling: set[str] = set()  # drafters whose drafts cannot be left out
        self._earned = EARNED
        self._left_out = self._was_right = 0  # likeliest guesses at steps at which none was verified
        # Of the pass in the making:
        self._refused: set[int] = set()  # tracks of requests that a drafter was not called for
        self._braked: set[int] = set()  # and of those that may lose nothing
        self._deepest = 1  # tokens of the longest text
        self._called: Counter[str] = Counter()  # for how many requests a drafter was called
        self._reading, self._rows, self._end = 0, 1, 1  # rows: of prompts; without drafts; with all
        self._tails = 0  # rows of prompts that those who decode still have to read
        self._pace, self._curve = 1.0, list[float]()  # what passes take, as Cost.paced has it
        self._alone = 0.0  # seconds of a pass without drafts
        self._least = 0.0

    def track(self, request: ActiveRequest) -> LossLedger:
        try:
            return self._tracks[request]
        except KeyError:
            return self._tracks.setdefault(request, LossLedger(plain=request.stats.reading_seconds))

    # What the loop asks.

    def budget(self, requests: Sequence[ActiveRequest], reading: int = 0) -> Sequence[Budget]:
        depth, nodes, width = self._most
        depth = min(depth, self._earned)
        n = len(requests)
        self._refused.clear()
        self._called.clear()
        self._reading, self._tails = reading, sum([request.session.pending_tokens for request in requests])
        self._rows = n + reading + self._tails
        self._end = self._rows + nodes * min(n, SHARED)
        self._deepest = max([len(request.session.tokens) for request in requests])
        self._pace, self._curve = self.costs.target.paced(self._end, self._deepest)
        self._alone = self._pace * self._curve[n + reading]
        # Of plain decoding, with no prompt in between. More requests bring no less than fewer would: some
        # number of rows in between may not be known, or have been measured in a bad moment.
        self.rate = max([m / self._curve[m] for m in range(1, n + 1)]) / self._pace
        if self._seconds > 0.0:
            self.rate = max(self.rate, CAUTION * self._tokens / self._seconds)
        self._least = 0.0
        credit = CREDIT * self._alone / n + STAKE * max(0.0, self._saved)
        tracks = [self.track(request) for request in requests]
        self._braked = {id(track) for track in tracks if track.brakes(BRAKE, credit)}
        return [
            NO_BUDGET
            if track.brakes(BRAKE, 2.0 * credit)
            else GoodputBudget(
                depth,
                nodes,
                width,
                p_split=self._p_split,
                rule=self,
                track=track,
                brake=id(track) in self._braked,
            )
            for track in tracks
        ]

    def select(
        self, requests: Sequence[ActiveRequest], budgets: Sequence[Budget], drafts: Sequence[DraftTree]
    ) -> list[DraftTree]:
        reach_probabilities = [
            self.belief.reach_probabilities(self.track(request).recent, draft) if draft.tokens else []
            for request, draft in zip(requests, drafts, strict=True)
        ]
        now, rows = self._clock(), self._rows
        queue: list[tuple[float, int, int]] = []
        for at, (draft, reach_probability, budget) in enumerate(
            zip(drafts, reach_probabilities, budgets, strict=True)
        ):
            if isinstance(budget, GoodputBudget) and budget.call.drafter:
                self._settle(budget, now, self._worth(reach_probability))
            if draft.q is not None:
                rows += len(draft)  # verified whatever it is worth
                self._sampling.update(draft.source)
            elif not (isinstance(budget, GoodputBudget) and budget.brake):
                kept = fitting(likeliest(draft, reach_probability), draft, budget)
                queue += [(-reach_probability[node], at, node) for node in kept]
        if len(drafts) > 1:
            queue.sort()
        rows = min(rows, self._end)  # many requests may have drawn more than the curve shows
        likely = [entry[0] for entry in queue]
        n = self._best(likely, rows)[0] or self._retried(likely, rows)
        taken: list[list[int]] = [[] for _ in drafts]
        for _, at, node in queue[:n]:
            taken[at].append(node)
        return [
            draft if draft.q is not None else draft.chosen(sorted(nodes), reach_probability)
            for draft, nodes, reach_probability in zip(drafts, taken, reach_probabilities, strict=True)
        ]

    def update(self, requests: Sequence[ActiveRequest], steps: Sequence[Step]) -> None:
        n, cost, tracks = len(steps), self.costs.target, [self.track(request) for request in requests]
        for request, track, step in zip(requests, tracks, steps, strict=True):
            self.belief.learn(track.recent, step.proposal, step.tokens)
            self._earned = max(self._earned, 2 * len(step.path))
            if not request.n_draft:  # it asked for plain decoding: that says nothing of drafts
                continue
            self._steps += 1
            if len(step.tree) == 0:
                self._record_skipped(track, step)
        rows = sum([step.rows for step in steps])
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
            track.plain += len(step.tokens) * plain
            saved = (len(step.tokens) - 1) * plain
            self._lose(track, extra * len(step.tree) + min(times.other, plain) - saved)
        if self._reading or self._tails:  # what such a pass took is the prompt's matter
            return
        if all(request.stats.steps > 1 for request in requests):  # the first one builds what others reuse
            cost.update(rows, deepest, sum([step.times.forward for step in steps]))
            counted = min(beside, pass_) / n  # of one request; drafts have costs of their own
            self.costs.step += 0.02 * (counted - self.costs.step) if self.costs.step else counted
        took = pass_ + min(drafting + beside, pass_)
        self._spare = min(self._spare + RETRYING * took, RETRIED * self._alone)
        self._tokens = LATELY * self._tokens + tokens
        self._seconds = LATELY * self._seconds + took
        for gain in self._gains.values():
            gain.save(took)

    def _lose(self, track: LossLedger, seconds: float) -> None:
        """By a draft of one request; below zero where it has saved time."""
        track.lost += seconds
        self._saved -= seconds

    def _record_skipped(self, track: LossLedger, step: Step) -> None:
        """Nothing was verified: was there a guess, and would it have been right?"""
        proposal = step.proposal
        guesses = proposal.children(ROOT)
        if guesses:
            guess = guesses[0]
            if len(guesses) > 1:
                guess = max(guesses, key=self.belief.reach_probabilities(track.recent, proposal).__getitem__)
            self._left_out += 1
            self._was_right += proposal.tokens[guess] == step.tokens[0]
        braked, refused = id(track) in self._braked, id(track) in self._refused
        declined = bool(guesses) or refused or braked or track.brakes(BRAKE, 0.0)
        self._brakings += braked
        self._refusals += refused and not braked
        self._declined += declined
        self._silent += not declined

    @property
    def account(self) -> DraftingSummary:
        measured = self._was_right / self._left_out if self._left_out >= FEW else None
        why = reason(self.costs.target.curve(SHOWN, self._deepest), measured)
        return DraftingSummary(
            self._steps,
            self._silent,
            self._declined,
            why,
            self.belief.calibration(),
            refused=self._refusals,
            braked=self._brakings,
        )

    # What a budget asks.

    def should_call(
        self, budget: GoodputBudget, drafter: str, draft: Callable[[], DraftTree], behind: int
    ) -> bool:
        """By what calls have gained at steps like this one."""
        now, gain = self._clock(), self._gains.get(drafter)
        if gain is None:
            gain = self._gains[drafter] = DrafterValue()
        negligible = NEGLIGIBLE * self._alone
        worth, kind = 0.0, 0
        last = self._gains.get(budget.call.drafter, gain)
        reads = behind > CAUGHT_UP
        if reads or max(gain.seconds, last.seconds) > negligible:
            reach_probability = self.belief.reach_probabilities(budget.track.recent, draft())
            worth, kind = self._worth(reach_probability), certainty(max(reach_probability, default=0.0))
        self._settle(budget, now, worth)
        dear = gain.seconds > negligible or (budget.brake and (not gain.calls or drafter in self._sampling))
        if (dear and (budget.brake or not gain.should_call(kind, self.rate))) or (
            reads and not self._is_worth_reading(budget.track, gain.tokens[kind], gain.seconds, behind)
        ):
            self._refused.add(id(budget.track))
            return False
        self._called[drafter] += 1
        budget.call.begin(drafter, self._clock(), worth, kind, reads)
        return True

    def reach(self, track: LossLedger, drafter: str, likely: float, depth: int, parent: float) -> float:
        """The chance that a guess is reached and accepted. parent: that of the node above it."""
        recent = track.recent.get(drafter, 0.0)
        return parent * self.belief.of(drafter).probability(likely, depth, recent)

    def _is_worth_reading(self, track: LossLedger, tokens: float, seconds: float, behind: int) -> bool:
        """Once calls would have saved what reading takes, had the text been read from the start: twice what
        the best choice in hindsight costs, at most (the ski rental of Karlin et al., 1988). tokens, seconds:
        of a call."""
        if (cost := self.costs.draft) is None:
            return True
        track.missed += max(0.0, tokens / self.rate - seconds)
        if track.missed < behind * cost.seconds(cost.most, behind) / cost.most:
            return False
        track.missed = 0.0
        return True

    def _settle(self, budget: GoodputBudget, now: float, worth: float) -> None:
        """The drafter that was called has answered. worth: of the draft now."""
        call = budget.call
        if call.drafter:
            seconds = (now - call.since) / self._called[call.drafter]
            gain = self._gains[call.drafter]
            won = worth - call.before
            counted = gain.update(call.kind, won, seconds, call.levels, reads=call.reads)
            self._lose(budget.track, counted)
            call.drafter = ""

    def deepens(self, budget: GoodputBudget, depth: int, reach_probability: float) -> bool:
        """Whether a path goes on: what the draft would be worth with the nodes behind this one, guessed to be
        as likely as those before, against what it is worth now and what they take to compute."""
        call = budget.call
        gain = self._gains.get(call.drafter)
        level = 0.0 if gain is None else self.rate * gain.level
        call.levels = max(call.levels, depth)
        nodes = call.nodes
        insort(nodes, -reach_probability)
        now = self._best(nodes, self._rows)[1]
        each, last = reach_probability ** (1 / depth), min(FURTHER, budget.depth - depth)
        further = nodes
        for m in range(1, last + 1):
            reach_probability *= each
            further = sorted([*further, -reach_probability])
            # Only as far as the next edges: what lies between costs as much and brings less.
            if (m & (m - 1) == 0 or m == last) and self._best(further, self._rows)[1] - m * level > now:
                return True
        return False

    @property
    def least(self) -> float:
        """The reach probability of a guess that could not pay for a row were it twice as likely, and the row
        the best bargain on the curve."""
        if not self._least:
            curve, rows = self._curve, self._rows
            row = min((curve[n] - curve[rows]) / (n - rows) for n in range(rows + 1, self._end + 1))
            self._least = max(0.01, 0.5 * self.rate * self._pace * row)
        return self._least

    def _worth(self, reach_probability: Sequence[float]) -> float:
        """Of a draft, in tokens."""
        return self._best(sorted([-s for s in reach_probability]), self._rows)[1]

    def _retried(self, reach_probability: Sequence[float], rows: int) -> int:
        """How many of them are verified where none is worth it, to see what that takes: a cell that was
        measured too dear is avoided, and would stay so."""
        if self._reading or self._tails:  # such a pass is not observed
            return 0
        gained = 0.0
        for n, s in enumerate(reach_probability[: min(RETRIED, self._end - rows)], 1):
            gained -= s
            extra = self._pace * (self._curve[rows + n] - self._curve[rows])
            pays = gained > 0.5 * self.rate * extra
            if pays and self.costs.target.is_overdue(rows + n, self._deepest):
                if extra > self._spare:
                    return 0
                self._spare -= extra
                return n
        return 0

    def _best(self, reach_probability: Sequence[float], rows: int) -> tuple[int, float]:
        """How many of the reach probabilities (here below zero, so that the likeliest are the least and come
        first) are worth their rows beside `rows` others, and what they are worth in tokens."""
        curve, price = self._curve, self.rate * self._pace  # tokens that 1.0 of the curve has to bring
        best, most, gained, base = 0, 0.0, 0.0, price * curve[rows]
        for n, s in enumerate(reach_probability[: self._end - rows], 1):
            gained -= s
            worth = gained + base - price * curve[rows + n]
            if worth > most:
                best, most = n, worth
        return best, most
