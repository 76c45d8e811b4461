"""The one decision rule: draft what raises the rate.

At the best achievable rate (tokens a second) a set of draft nodes N is worth verifying where it maximises

    1 + sum of survivals  -  rate * (T_draft(N) + T_verify(1 + |N|, depth))

Survivals are calibrated (belief.py), costs measured (cost.py), and the rate is what has been reached
lately, at least that of plain decoding. A node's survival is at most its parent's, so that the best n nodes
are the n likeliest, and the best n is found by trying each: the curve of costs has steps, and a draft ends at
one of its edges. Requests that share a pass share its cost, and their nodes compete in one list.
(The goodput of TurboSpec, arXiv:2406.14066, for single nodes instead of lengths.)
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter
from weakref import WeakKeyDictionary

from paceline.core.account import FEW, Account, reason
from paceline.core.belief import Belief, Mood
from paceline.core.cost import Costs
from paceline.core.policy import fitting, likeliest
from paceline.core.ports import NO_BUDGET, Budget
from paceline.core.proposal import Proposal, RateBudget
from paceline.core.record import Step
from paceline.core.request import Request
from paceline.core.tree import ROOT, DraftTree
from paceline.core.worth import Worth, kind

CAUTION = 0.95  # what was reached in a few steps flatters what the next ones will reach
LATELY = 0.88  # what is left of a step's weight after the next one: a memory of some eight steps
STRICT, PATIENCE = 40.0, 50  # for each share of the time that was lost, of at least so many plain steps
FURTHER = 8  # levels that a drafter which computes looks ahead, for the next edge of the curve
SLIGHT = 0.002  # of a plain pass: a drafter that takes less is asked without asking what it is worth
FELT, LONGEST_NAP = 0.02, 63  # a share of a pass; steps
SHOWN = 16  # rows that a reason looks at
SHARED = 8  # requests beyond which a pass that they share is not looked at over more rows


def descending(survival: Sequence[float]) -> list[float]:
    """The likeliest first, below zero."""
    return sorted(-s for s in survival)


class Rate:
    """costs: what passes take here, kept up to date. nodes, depth, width: the most that a draft may have;
    p_split: see Budget."""

    learns = True

    def __init__(
        self,
        costs: Costs,
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
        self.belief = Belief()
        self._moods: WeakKeyDictionary[Request, Mood] = WeakKeyDictionary()
        self.rate = self.asking = 0.0  # tokens that a second has to bring: of a pass, of asking a drafter
        self._slightest = 0.0
        self._worth: dict[str, Worth] = {}
        self._tokens = self._seconds = 0.0  # of late
        self._spent = self._probing = 0.0  # seconds in all
        # Seconds of drafts and of passes, and of the passes that plain decoding would have made instead.
        self._staked = self._plainly = 0.0
        self._nap = self._naps = 0  # steps that are still let go by undecided, and how many it were
        self._steps = self._silent = self._declined = 0
        self._left_out = self._was_right = 0  # likeliest guesses at steps at which none was verified
        self._refused: set[int] = set()  # moods of requests for which some drafter was not worth asking
        self._asked: Counter[str] = Counter()  # for how many requests of this pass a drafter was asked
        self._requests, self._reading = 1, 0  # of this pass; and its rows of prompts
        self._rows = self._end = 1  # of a pass without drafts; with all that it may have
        self._pace, self._curve = 1.0, list[float]()  # what passes take, as Cost.paced has it
        self._alone = 0.0  # seconds of a pass without drafts

    # What the loop asks.

    def _mood(self, request: Request) -> Mood:
        mood = self._moods.get(request)
        if mood is None:
            mood = self._moods[request] = {}
        return mood

    def budgets(self, requests: Sequence[Request], reading: int = 0) -> Sequence[Budget]:
        depth, nodes, width = self._most
        self._requests, self._reading = n, _ = len(requests), reading
        self._rows = rows = n + reading
        self._refused.clear()
        self._asked.clear()
        if self._nap:
            self._alone = self.costs.target.seconds(rows, len(requests[0].session.tokens))
            return [NO_BUDGET] * n
        deepest = max([len(request.session.tokens) for request in requests])
        self._end = rows + nodes * min(n, SHARED)
        self._pace, self._curve = self.costs.target.paced(self._end, deepest)
        self._alone = self._pace * self._curve[rows]
        self.rate = n / (self._pace * self._curve[n])  # of plain decoding, with no prompt in between
        if self._seconds > 0.0:
            self.rate = max(self.rate, CAUTION * self._tokens / self._seconds)
        # Where drafting has cost more than it gave, a drafter that takes time has to bring more until that is
        # made good. A guess that is there already is verified for what it is worth: left out, it would make
        # nothing good.
        lost = (self._staked - self._plainly) / (self._plainly + PATIENCE * self._alone)
        self.asking = self.rate * (1.0 + STRICT * max(0.0, lost))
        self._slightest = 0.0
        return [
            RateBudget(
                depth,
                nodes,
                width,
                p_split=self._p_split,
                policy=self,
                mood=self._mood(request),
                proposal=Proposal(),
            )
            for request in requests
        ]

    def _rest(self, drafted: bool, deciding: float, pass_: float) -> None:
        """Where deciding takes a share of a pass that can be felt, and comes to nothing, steps go by without
        it, and more the longer that lasts, until it is felt no more."""
        if self._nap:
            self._nap -= 1
        elif drafted or deciding <= FELT * pass_:
            self._naps = 0
        else:
            enough = int(min(deciding / (FELT * pass_), LONGEST_NAP))
            self._nap = self._naps = min(2 * self._naps + 1, enough)

    @property
    def slightest(self) -> float:
        """The survival of a guess that could not pay for a row were it twice as likely, and the row the best
        bargain on the curve."""
        if not self._slightest:
            curve, rows = self._curve, self._rows
            least = min((curve[n] - curve[rows]) / (n - rows) for n in range(rows + 1, self._end + 1))
            self._slightest = max(0.01, 0.5 * self.rate * self._pace * least)
        return self._slightest

    def choose(
        self, requests: Sequence[Request], budgets: Sequence[Budget], drafts: Sequence[DraftTree]
    ) -> list[DraftTree]:
        if self._nap:
            return list(drafts)
        now = self._clock()
        if len(drafts) == 1 and drafts[0].q is None:
            return [self._chosen(requests[0], budgets[0], drafts[0], now)]
        survivals = [
            self.belief.survivals(self._mood(request), draft)
            for request, draft in zip(requests, drafts, strict=True)
        ]
        queue: list[tuple[float, int, int]] = []
        rows = self._rows
        for at, (draft, survival, budget) in enumerate(zip(drafts, survivals, budgets, strict=True)):
            if draft.q is not None:
                rows += len(draft)  # verified whatever it is worth
            else:
                kept = fitting(likeliest(draft, survival), draft, budget)
                queue += [(-survival[node], at, node) for node in kept]
        queue.sort()
        rows = min(rows, self._end)  # many requests may have drawn more than the curve shows
        n, _ = self._best([entry[0] for entry in queue], rows)
        taken: list[list[int]] = [[] for _ in drafts]
        for _, at, node in queue[:n]:
            taken[at].append(node)
        for budget, survival in zip(budgets, survivals, strict=True):
            if isinstance(budget, RateBudget) and budget.proposal.name:
                self._settle(budget.proposal, now, self._best(descending(survival), self._rows)[1])
        return [
            draft if draft.q is not None else draft.chosen(sorted(nodes), survival)
            for draft, nodes, survival in zip(drafts, taken, survivals, strict=True)
        ]

    def _chosen(self, request: Request, budget: Budget, draft: DraftTree, now: float) -> DraftTree:
        """What `choose` comes to for a single request, the commonest case, in two thirds of the time."""
        survival = self.belief.survivals(self._mood(request), draft)
        order = likeliest(draft, survival)
        kept = fitting(order, draft, budget)
        n, worth = self._best([-survival[node] for node in kept], self._rows)
        if isinstance(budget, RateBudget) and budget.proposal.name:
            if len(kept) < len(order):  # what it has brought is told by all of it
                worth = self._best([-survival[node] for node in order], self._rows)[1]
            self._settle(budget.proposal, now, worth)
        return draft.chosen(sorted(kept[:n]), survival)

    def observe(self, requests: Sequence[Request], steps: Sequence[Step]) -> None:
        cost = self.costs.target
        rows, tokens, forward, draft, beside, deepest, first = 0, 0, 0.0, 0.0, 0.0, 0, False
        deciding = 0.0
        for request, step in zip(requests, steps, strict=True):
            rows += step.rows
            tokens += len(step.tokens)
            forward += step.times.forward
            draft += step.times.draft
            beside += step.times.total - step.times.forward - step.times.draft
            deciding += step.times.other
            deepest = max(deepest, len(request.session.tokens) - len(step.tokens))
            first = first or request.stats.steps == 1
            for name in self.belief.learn(self._mood(request), step.tree.proposed, step.tokens):
                if name in self._worth:
                    self._worth[name].knew()
            self._steps += 1
            if len(step.tree) == 0:
                self._excuse(request, step)
        if self._reading:  # what such a pass takes is the prompt's matter
            return
        # A hiccup of the machine says nothing of what drafting is worth: a pass counts what such passes cost.
        pass_ = cost.seconds(rows, deepest)
        if not first:  # which may hold a prompt's end
            cost.observe(rows, deepest, forward)
            counted = min(beside, pass_) / len(steps)  # of one request; drafts have costs of their own
            self.costs.step += 0.02 * (counted - self.costs.step) if self.costs.step else counted
        took = pass_ + min(draft + beside, pass_)
        self._tokens = LATELY * self._tokens + tokens
        self._seconds = LATELY * self._seconds + took
        self._spent += took
        self._staked += pass_ + min(draft, pass_)
        self._plainly += tokens * self._alone / self._requests
        if not first:
            self._rest(any(step.tree.tokens for step in steps), deciding, pass_)
        for worth in self._worth.values():
            worth.waited += tokens

    def _excuse(self, request: Request, step: Step) -> None:
        """Nothing was verified: was there a guess, and would it have been right?"""
        proposed, mood = step.tree.proposed, self._mood(request)
        guesses = proposed.children(ROOT)
        if guesses:
            survival = self.belief.survivals(mood, proposed)
            guess = max(guesses, key=survival.__getitem__)
            self._left_out += 1
            self._was_right += proposed.tokens[guess] == step.tokens[0]
        declined = bool(guesses) or id(mood) in self._refused or self._nap > 0
        self._declined += declined
        self._silent += not declined

    @property
    def account(self) -> Account:
        measured = self._was_right / self._left_out if self._left_out >= FEW else None
        why = reason(self.costs.target.curve(SHOWN, 1), measured)
        return Account(self._steps, self._silent, self._declined, why, self.belief.calibration())

    # What a budget asks.

    def asks(self, budget: RateBudget, drafter: str, draft: Callable[[], DraftTree]) -> bool:
        """By what it has brought at steps like this one; now and then, to see whether that has changed."""
        proposal, now = budget.proposal, self._clock()
        worth = self._worth.get(drafter)
        if worth is None:
            worth = self._worth[drafter] = Worth()
        slight = SLIGHT * self._alone
        before, what, probe = 0.0, 0, False
        if worth.seconds > slight or (proposal.name and self._worth[proposal.name].seconds > slight):
            survival = descending(self.belief.survivals(budget.mood, draft()))
            before = self._best(survival, self._rows)[1]
            what = kind(-survival[0]) if survival else 0
        self._settle(proposal, now, before)
        if worth.seconds > slight and not worth.pays(what, self.asking):
            if not worth.due(self._probing, self._spent):
                self._refused.add(id(budget.mood))
                return False
            self._probing += worth.seconds
            probe = True
        worth.waited = 0
        self._asked[drafter] += 1
        proposal.asks(drafter, self._clock(), before, what, probe)
        return True

    def _settle(self, proposal: Proposal, now: float, after: float) -> None:
        """The drafter that was asked has answered. after: what the draft is worth now."""
        if proposal.name:
            worth = self._worth[proposal.name]
            worth.took((now - proposal.since) / self._asked[proposal.name], max(1, proposal.deepest))
            worth.brought(proposal.kind, after - proposal.before, self.rate, proposal.probe)
            proposal.name = ""

    def deepens(self, budget: RateBudget, depth: int, survival: float) -> bool:
        """Whether a path goes on: what the draft would be worth with the nodes behind this one, guessed to be
        as likely as those before, against what it is worth now and what they take to compute."""
        proposal = budget.proposal
        worth = self._worth.get(proposal.name)
        level = 0.0 if worth is None else self.rate * worth.level
        proposal.deepest = max(proposal.deepest, depth)
        nodes = proposal.nodes
        insort(nodes, -survival)
        now = self._best(nodes, self._rows)[1]
        each, last = survival ** (1 / depth), min(FURTHER, budget.depth - depth)
        further = nodes
        for m in range(1, last + 1):
            survival *= each
            further = sorted([*further, -survival])
            # Only as far as the next edges: what lies between costs as much and brings less.
            if (m & (m - 1) == 0 or m == last) and self._best(further, self._rows)[1] - m * level > now:
                return True
        return False

    def _best(self, survival: Sequence[float], rows: int) -> tuple[int, float]:
        """How many of the survivals (here below zero, so that the likeliest are the least and come first) are
        worth their rows beside `rows` others, and what they are worth in tokens."""
        curve, price = self._curve, self.rate * self._pace  # tokens that 1.0 of the curve has to bring
        best, most, gained, base = 0, 0.0, 0.0, price * curve[rows]
        for n, s in enumerate(survival[: self._end - rows], 1):
            gained -= s
            worth = gained + base - price * curve[rows + n]
            if worth > most:
                best, most = n, worth
        return best, most
