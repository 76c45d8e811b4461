"""The goodput policy, proved by enumeration: the output distribution is plain sampling's.

All draws of target and draft are enumerated through several steps, with what the policy learns. The proof can
fail: a policy that decides by what was drawn is detected.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from automaton import Automaton, Blind
from enumeration import decided_distribution, distance, plain_distribution, separately
from paceline.backends.toy import ToyTarget
from paceline.drafters.compose import PortfolioDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.speculative.interfaces import Budget, Drafter
from paceline.speculative.loop import ActiveRequest, Clock
from paceline.speculative.policy.costs import MIN_CONTEXT_BUCKET, DecodingCosts, PassCosts
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.speculative.policy.ledger import DrafterValue, LossLedger
from paceline.speculative.sampling import Sampling
from paceline.speculative.tree import EMPTY, DraftTree

EXACT, VISIBLE = 1e-12, 1e-3
PROMPT = [0, 1, 2, 0, 1]
TEMPERATURE = Sampling(temperature=1.0)
PENALTIES = Sampling(temperature=0.9, repeat_penalty=1.3, presence_penalty=0.5, top_k=2)

# Rows that cost nothing, rows that cost a little each, and a tile: a third row that is dearer than a fourth.
FREE = {1: 1.0, 8: 1.0}
LINE = {n: 1.0 + 0.35 * (n - 1) for n in range(1, 9)}
TILE = {1: 1.0, 2: 1.3, 3: 1.9, 4: 1.4, 8: 2.6}


def toy(n_vocab: int = 3, noise: float = 0.0, **more: Any) -> ToyTarget:
    return ToyTarget(n_vocab, seed=3, sharpness=0.6, noise=noise, **more)


def model(temperature: float = 0.0, n_vocab: int = 3) -> ModelDrafter:
    draft = toy(n_vocab, noise=0.5)
    return ModelDrafter(draft, n_vocab, temperature=temperature)


class Ranked(NoDrafter):
    """A drafter that always proposes one tree."""

    name = "ranked"
    tree = DraftTree((2, 0, 1, 1), (-1, -1, 0, 1), (0.5, 0.4, 0.6, 0.2), ("ranked",) * 4)

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> list[DraftTree]:
        return [self.tree if budget.depth > 1 and budget.nodes > 3 else EMPTY for _, budget in batch]


@dataclass
class Seen:
    """Counts over all paths: nodes proposed, kept and sampled, and calls by drafter."""

    proposed: int = 0
    kept: int = 0
    drawn: int = 0
    called: Counter[tuple[str, ...]] = field(default_factory=Counter)


class Watched(GoodputPolicy):
    """A policy that records its decisions."""

    def __init__(self, costs: DecodingCosts, seen: Seen, **most: Any) -> None:
        super().__init__(costs, **most)
        self._seen = seen

    def select(
        self, requests: Sequence[ActiveRequest], budgets: Sequence[Budget], drafts: Sequence[DraftTree]
    ) -> list[DraftTree]:
        out = super().select(requests, budgets, drafts)
        for draft, kept in zip(drafts, out, strict=True):
            self._seen.proposed += len(draft)
            self._seen.kept += len(kept)
            self._seen.drawn += len(draft) if draft.q is not None else 0
            self._seen.called[draft.called] += 1
        return out


Most = dict[str, int]
CHAIN: Most = {"depth": 2, "nodes": 2, "width": 1}
TREE: Most = {"depth": 2, "nodes": 3, "width": 2}


def decider(
    curve: dict[int, float],
    most: Most,
    seen: Seen,
    experience: Callable[[GoodputPolicy], None] = lambda rate: None,
    kind: type[Watched] = Watched,
) -> Callable[[Clock], GoodputPolicy]:
    def make(clock: Clock) -> GoodputPolicy:
        rate = kind(DecodingCosts(PassCosts({MIN_CONTEXT_BUCKET: curve})), seen, clock=clock, **most)
        experience(rate)
        return rate

    return make


PORTFOLIOS: dict[str, tuple[Callable[[], Sequence[Drafter]], Most, str]] = {
    "lookup": (lambda: [LookupDrafter(1, 3)], CHAIN, "auto"),
    "three that disagree": (
        lambda: [SuffixDrafter(max_tokens=0), LookupDrafter(1, 1), Ranked()],
        TREE,
        "auto",
    ),
    "trees for a chain's room": (lambda: [Ranked(), model()], CHAIN, "auto"),
    "sampled chain, token": (lambda: [model(1.0)], CHAIN, "token"),
    "sampled chain, block": (lambda: [model(1.0)], CHAIN, "block"),
    "sampled tree, recursive": (lambda: [model(1.0)], TREE, "recursive"),
    "sampled tree, traversal": (lambda: [model(1.0)], TREE, "traversal"),
    "lookup, then sampled": (lambda: [LookupDrafter(1, 3), model(1.0)], CHAIN, "auto"),
    "sampled, then lookup": (lambda: [model(1.0), LookupDrafter(1, 3)], TREE, "auto"),
    "all, sampled": (lambda: [SuffixDrafter(max_tokens=0), Ranked(), model(1.0)], TREE, "auto"),
}
SAMPLED = [name for name in PORTFOLIOS if "sampled" in name]
SAMPLINGS = {"greedy": Sampling(), "temperature": TEMPERATURE, "penalties": PENALTIES}
CURVES = {"free": FREE, "line": LINE, "tile": TILE}


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("name", PORTFOLIOS)
def test_the_output_distribution_is_that_of_plain_decoding(
    name: str, sampling: Sampling, curve: dict[int, float]
) -> None:
    drafters, most, rule = PORTFOLIOS[name]
    seen = Seen()
    decided = decided_distribution(
        toy(), PortfolioDrafter(drafters()), [PROMPT], decider(curve, most, seen), sampling, 3, rule
    )
    plain = plain_distribution(toy(), PROMPT, sampling, 3)
    assert distance(decided, separately(plain)) < EXACT
    assert seen.proposed > 0
    assert name not in SAMPLED or seen.drawn > 0


def taught(rate: GoodputPolicy) -> None:
    """Teach that the draft model is right half of the time, and lookup more often."""
    for i in range(60):
        rate.acceptance.of("model").update(1.0 - i % 3, 1 + i % 2, 0.0, i % 2 == 0)
        rate.acceptance.of("lookup").update(2.0, 1, 0.0, i % 3 > 0)


def dear(rate: GoodputPolicy) -> None:
    """Teach that the draft model pays only where others are unsure, far from the loss limit."""
    taught(rate)
    rate._ledgers = defaultdict(lambda: LossLedger(rate._drafters, lost_seconds=-9.0))  # type: ignore[assignment]
    rate._drafters.values["model"] = DrafterValue(
        [1.0, 1.0, *[0.0] * 5], seconds=0.3, level_seconds=0.1, calls=9
    )


@pytest.mark.parametrize("experience", [taught, dear])
@pytest.mark.parametrize("name", SAMPLED)
def test_it_is_whatever_was_learned_before_and_whatever_asking_takes(
    name: str, experience: Callable[[GoodputPolicy], None]
) -> None:
    """A ticking clock makes calls and depths depend on elapsed time."""
    drafters, most, rule = PORTFOLIOS[name]
    seen, n = Seen(), 4
    policy = decider(TILE, most, seen, experience)
    decided = decided_distribution(
        toy(), PortfolioDrafter(drafters()), [PROMPT], policy, TEMPERATURE, n, rule, tick=0.05
    )
    assert distance(decided, separately(plain_distribution(toy(), PROMPT, TEMPERATURE, n))) < EXACT
    assert seen.drawn > 0


@pytest.mark.parametrize(
    ("rule", "most"),
    [
        ("block", {"depth": 3, "nodes": 3, "width": 1}),
        ("recursive", {"depth": 2, "nodes": 4, "width": 2}),
        ("traversal", {"depth": 2, "nodes": 4, "width": 2}),
    ],
)
def test_it_is_where_one_branch_leaves_less_room_for_another(rule: str, most: Most) -> None:
    """The depth of a sampled path depends on tokens drawn before."""
    n, shapes = most["depth"] + 1, set[tuple[int, ...]]()

    class Sized(Watched):
        def select(self, requests: Any, budgets: Any, drafts: Sequence[DraftTree]) -> list[DraftTree]:
            shapes.update(draft.parents for draft in drafts)
            return super().select(requests, budgets, drafts)

    policy = decider(TILE, most, Seen(), taught, Sized)
    decided = decided_distribution(
        toy(), PortfolioDrafter([model(1.0)]), [[0, 1]], policy, TEMPERATURE, n, rule, tick=0.03
    )
    assert distance(decided, separately(plain_distribution(toy(), [0, 1], TEMPERATURE, n))) < EXACT
    assert len(shapes) > 2


def test_some_of_it_was_asked_and_some_was_not() -> None:
    """The proofs above cover partial calls and partial choices."""
    seen = Seen()
    drafter = PortfolioDrafter([LookupDrafter(1, 3), model(1.0)])
    decided_distribution(toy(), drafter, [PROMPT], decider(TILE, TREE, seen, dear), TEMPERATURE, 4, tick=0.05)
    assert seen.called[("lookup",)] > 0
    assert seen.called["lookup", "model"] > 0
    seen = Seen()
    decided_distribution(
        toy(), PortfolioDrafter([Ranked(), model()]), [PROMPT], decider(LINE, TREE, seen), TEMPERATURE, 3
    )
    assert 0 < seen.kept < seen.proposed


@pytest.mark.parametrize("curve", [LINE, TILE], ids=["line", "tile"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_requests_that_share_a_pass_do_not_tell_on_each_other(
    temperature: float, curve: dict[int, float]
) -> None:
    """The joint distribution is the product, although sampled drafts take rows from the other request."""
    prompts = [PROMPT, [2, 2]]
    seen = Seen()
    drafter = PortfolioDrafter([LookupDrafter(1, 3), model(temperature)])
    together = decided_distribution(
        toy(), drafter, prompts, decider(curve, CHAIN, seen), TEMPERATURE, 2, tick=0.01
    )
    plain = [plain_distribution(toy(), prompt, TEMPERATURE, 2) for prompt in prompts]
    assert distance(together, separately(*plain)) < EXACT
    assert seen.proposed > 0


class OnlyFirst(PortfolioDrafter):
    """A draft model for the first request of a batch, and lookup for the others."""

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> list[DraftTree]:
        lookup, drawn = self.drafters
        first, *others = batch
        (tree,) = drawn.propose([(first[0].parts[1], first[1])])
        return [tree, *lookup.propose([(memory.parts[0], budget) for memory, budget in others])]


def test_a_sampled_draft_beside_deterministic_ones_takes_its_rows_first() -> None:
    prompts = [PROMPT, [2, 1, 0, 2, 1]]
    seen = Seen()
    drafter = OnlyFirst([LookupDrafter(1, 3), model(1.0)])
    together = decided_distribution(toy(), drafter, prompts, decider(LINE, TREE, seen), TEMPERATURE, 2)
    plain = [plain_distribution(toy(), prompt, TEMPERATURE, 2) for prompt in prompts]
    assert distance(together, separately(*plain)) < EXACT
    assert 0 < seen.drawn < seen.proposed


def test_it_is_where_the_target_verifies_chains_only() -> None:
    class Chains(Watched):
        def select(self, requests: Any, budgets: Any, drafts: Sequence[DraftTree]) -> list[DraftTree]:
            assert all(draft.is_chain for draft in drafts)
            return super().select(requests, budgets, drafts)

    target, drafter, seen = toy(branch=1), PortfolioDrafter([LookupDrafter(1, 3), model(1.0)]), Seen()
    policy = decider(FREE, TREE, seen, kind=Chains)
    decided = decided_distribution(target, drafter, [PROMPT], policy, TEMPERATURE, 3)
    assert distance(decided, separately(plain_distribution(target, PROMPT, TEMPERATURE, 3))) < EXACT
    assert seen.drawn > 0


@pytest.mark.parametrize("blind", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("most", [CHAIN, TREE], ids=["chain", "tree"])
def test_under_a_grammar_too(most: Most, temperature: float, blind: bool) -> None:
    drafts: Drafter = model(temperature, n_vocab=4)
    drafter = PortfolioDrafter([LookupDrafter(1, 3), Blind(drafts) if blind else drafts])
    target, seen = toy(4), Seen()
    policy = decider(LINE, most, seen)
    decided = decided_distribution(target, drafter, [PROMPT], policy, TEMPERATURE, 3, "auto", Automaton)
    plain = plain_distribution(target, PROMPT, TEMPERATURE, 3, Automaton)
    assert distance(decided, separately(plain)) < EXACT
    assert seen.proposed > 0


# Policies that cheat, each in a way that looks like a saving.


class DropsUnlikely(Watched):
    """A policy that drops sampled tokens which turn out to be unlikely."""

    def select(
        self, requests: Sequence[ActiveRequest], budgets: Sequence[Budget], drafts: Sequence[DraftTree]
    ) -> list[DraftTree]:
        blank = [replace(draft, q=None) for draft in drafts]
        out = super().select(requests, budgets, blank)
        trees = []
        for draft, kept in zip(drafts, out, strict=True):
            if draft.q is None:
                trees.append(kept)
                continue
            trees.append(draft.filter([node < len(kept) for node in range(len(draft))]))  # a chain
        return trees


class Fickle(PortfolioDrafter):
    """A composition that replaces unlikely sampled drafts."""

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> list[DraftTree]:
        lookup = self.drafters[0]
        trees = super().propose(batch)
        others = lookup.propose([(memory.parts[0], budget) for memory, budget in batch])
        return [b if a.q is not None and a.score[0] < 0.4 else a for a, b in zip(trees, others, strict=True)]


@pytest.mark.parametrize(("policy", "portfolio"), [(DropsUnlikely, PortfolioDrafter), (Watched, Fickle)])
def test_whoever_drops_what_was_drawn_is_seen(
    policy: type[Watched], portfolio: type[PortfolioDrafter]
) -> None:
    plain = separately(plain_distribution(toy(), PROMPT, TEMPERATURE, 3))

    def bias(policy: type[Watched], portfolio: type[PortfolioDrafter]) -> float:
        make = decider(LINE, CHAIN, Seen(), kind=policy)
        drafter = portfolio([LookupDrafter(1, 3), model(2.0)])
        return distance(decided_distribution(toy(), drafter, [PROMPT], make, TEMPERATURE, 3, "token"), plain)

    assert bias(Watched, PortfolioDrafter) < EXACT
    assert bias(policy, portfolio) > VISIBLE
