"""Verification proved by enumeration: the output distribution is plain sampling's for any draft.

First the rules alone, over tables (worlds.py); then the whole loop with the toy target and real drafters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enumeration import Tape, distance, drafted_distribution, outcomes, plain_distribution
from paceline.backends.toy import ToyTarget
from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.settings import CHAIN_ONLY_RULES
from paceline.speculative.errors import ContractError
from paceline.speculative.forward_output import LogitsOutput
from paceline.speculative.interfaces import Budget, Drafter, Features, RequiredOutputs
from paceline.speculative.sampling import Probabilities, Sampling
from paceline.speculative.stats import Step
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain
from paceline.speculative.verify import VERIFICATION_RULES, draft_distribution, verify
from worlds import FIXED, SAMPLED, Plant, World, induced, plant
from worlds import INDEPENDENT as DRAWN_INDEPENDENTLY

EXACT = 1e-12
V = 3
PROMPT = [0, 1, 2, 0, 1]
SAMPLINGS = {
    "temperature": Sampling(temperature=0.7),
    "top-k": Sampling(temperature=1.0, top_k=2),
    "top-n-sigma": Sampling(temperature=1.1, top_n_sigma=0.9),
    "typical-p": Sampling(temperature=0.9, typical_p=0.6),
    "top-p": Sampling(temperature=1.3, top_p=0.8),
    "min-p": Sampling(temperature=1.0, min_p=0.3),
    "XTC": Sampling(temperature=1.2, xtc_probability=0.4, xtc_threshold=0.2),
    "penalties": Sampling(temperature=1.0, repeat_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2),
    "dynamic temperature": Sampling(temperature=0.8, dynatemp_range=0.7, dynatemp_exponent=1.5, top_k=2),
    "DRY": Sampling(temperature=1.0, dry_multiplier=0.6, dry_allowed_length=1, dry_breakers={2: ((), (0,))}),
    "logit bias": Sampling(temperature=1.0, logit_bias={0: 1.5, 2: -0.5}),
    "everything": Sampling(
        temperature=1.5,
        top_k=3,
        typical_p=0.98,
        top_p=0.99,
        min_p=0.02,
        xtc_probability=0.3,
        xtc_threshold=0.3,
        top_n_sigma=2.0,
        dynatemp_range=0.4,
        repeat_penalty=1.2,
        presence_penalty=0.2,
        repeat_last_n=2,
        dry_multiplier=0.6,
        dry_allowed_length=1,
        logit_bias={1: -2.0},
    ),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("rule", VERIFICATION_RULES)
def test_every_rule_is_exact_with_every_sampler(rule: str, sampling: Sampling) -> None:
    shape = plant(1, 1, kind=SAMPLED) if rule in CHAIN_ONLY_RULES else plant(2, 1, kind=SAMPLED)
    result = induced(World(3, seed=7, sampling=sampling), shape, 2, rule)
    assert result.mass == pytest.approx(1.0, abs=EXACT)
    assert result.distance < EXACT


SHAPES = {
    "chain of 4": (3, (1, 1, 1, 1)),
    "chain of 2, five tokens": (5, (1, 1)),
    "three siblings, five tokens": (5, (3,)),
    "two and two": (2, (2, 2)),
    "two, then chains": (2, (2, 1, 1)),
    "more siblings than tokens": (2, (3, 1)),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("rule", VERIFICATION_RULES)
def test_every_rule_is_exact_at_every_shape(rule: str, shape: tuple[int, tuple[int, ...]]) -> None:
    n_vocab, widths = shape
    if rule in CHAIN_ONLY_RULES and max(widths) > 1:
        pytest.skip("a rule for chains")
    drafted = plant(*widths, kind=SAMPLED)
    assert induced(World(n_vocab, seed=3, zeros=0.2), drafted, len(widths), rule).distance < EXACT


@st.composite
def plants(draw: st.DrawFn) -> Plant:
    """Draw a small tree with nodes sampled, drawn independently or fixed."""
    parents: list[int] = []
    depths: list[int] = []
    for i in range(draw(st.integers(1, 4))):
        parents.append(draw(st.sampled_from([ROOT, *(j for j in range(i) if depths[j] < 3)])))
        depths.append(1 if parents[-1] == ROOT else depths[parents[-1]] + 1)
    kinds = draw(
        st.lists(
            st.sampled_from([SAMPLED, DRAWN_INDEPENDENTLY, FIXED]),
            min_size=len(parents),
            max_size=len(parents),
        )
    )
    return Plant(tuple(parents), tuple(kinds))


worlds = st.builds(
    World,
    n_vocab=st.integers(2, 3),
    seed=st.integers(0, 10_000),
    sampling=st.sampled_from(list(SAMPLINGS.values())),
    zeros=st.sampled_from([0.0, 0.3, 0.7]),
    likeness=st.sampled_from([0.0, 0.5, 1.0]),
)


@given(world=worlds, shape=plants(), rule=st.sampled_from(["recursive", "traversal"]))
@settings(max_examples=150, deadline=None)
def test_any_tree_of_any_nodes_is_exact(world: World, shape: Plant, rule: str) -> None:
    """Mixed siblings, dead ends and duplicates included."""
    assert induced(world, shape, shape.depth, rule).distance < EXACT


@given(world=worlds, widths=st.sampled_from([(1, 1, 1), (2,), (2, 1), (1, 2), (3,)]))
@settings(max_examples=40, deadline=None)
def test_traversal_accepts_at_least_what_recursive_rejection_does(
    world: World, widths: tuple[int, ...]
) -> None:
    """On chains: block accepts at least as much as token."""
    shape = plant(*widths)
    recursive = induced(world, shape, shape.depth, "recursive")
    traversal = induced(world, shape, shape.depth, "traversal")
    assert traversal.accepted >= recursive.accepted - EXACT


@given(world=worlds, widths=st.sampled_from([(1, 1, 1), (2, 1), (3,)]))
@settings(max_examples=40, deadline=None)
def test_where_drafts_are_certain_all_rules_accept_alike(world: World, widths: tuple[int, ...]) -> None:
    """Each rule with one-hot q accepts the target's mass on the drafted set, as `match` does."""
    fixed = plant(*widths, kind=FIXED)
    accepted = [induced(world, fixed, fixed.depth, rule).accepted for rule in ("recursive", "traversal")]
    without_q = induced(world, lambda w, tape: replace(fixed(w, tape), q=None), fixed.depth).accepted
    assert accepted == pytest.approx([without_q] * 2, abs=EXACT)


@pytest.mark.parametrize("rule", ["auto", "token", "block"])
@pytest.mark.parametrize("kinds", [(FIXED, SAMPLED), (SAMPLED, FIXED)])
def test_a_sampled_node_is_judged_by_its_q_whatever_kind_the_first_node_is(
    kinds: tuple[str, str], rule: str
) -> None:
    """A token drawn from p itself is always accepted; drawing again would be exact too, but accept less."""
    world, shape = World(3, seed=7, likeness=1.0), Plant(plant(1, 1).parents, kinds)
    expected = 0.0
    for probability, tree in outcomes(lambda tape: shape(world, tape)):
        first, second = tree.tokens
        below = float(world.p((first,))[second]) if kinds[1] == FIXED else 1.0
        expected += probability * (1.0 + below) * (float(world.p(())[first]) if kinds[0] == FIXED else 1.0)
    result = induced(world, shape, 2, rule)
    assert result.accepted == pytest.approx(expected, abs=EXACT)
    assert result.distance < EXACT


def target() -> ToyTarget:
    return ToyTarget(V, seed=5)


def model(temperature: float) -> ModelDrafter:
    draft = ToyTarget(V, seed=5, noise=0.5)
    return ModelDrafter(draft, V, temperature=temperature, top_k=10)


DRAFTERS: dict[str, tuple[Drafter, Budget]] = {
    "lookup": (LookupDrafter(), Budget(3, 3)),
    "greedy chain": (model(0.0), Budget(2, 2)),
    "sampled chain": (model(1.0), Budget(2, 2)),
    "sampled chain, p_min": (model(0.8), Budget(2, 2, p_min=0.5)),
    "sampled tree": (model(1.0), Budget(2, 3, width=2, p_split=0.2)),
    "tree": (model(0.0), Budget(2, 6, width=3, p_split=0.05)),
    "lookup then sampled": (ComposedDrafter([LookupDrafter(3, 3), model(1.0)]), Budget(2, 2)),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize(("drafter", "budget"), DRAFTERS.values(), ids=DRAFTERS)
def test_the_loop_emits_exactly_the_plain_distribution(
    drafter: Drafter, budget: Budget, sampling: Sampling
) -> None:
    drafted = drafted_distribution(target(), drafter, PROMPT, budget, sampling, n=3)
    plain = plain_distribution(target(), PROMPT, sampling, n=3)
    assert sum(drafted.values()) == pytest.approx(1.0, abs=EXACT)
    assert distance(drafted, plain) < EXACT


class Scripted:
    """A drafter that proposes the given tree at the first step only."""

    name = "scripted"
    required_outputs = RequiredOutputs()

    def __init__(self, tree: DraftTree) -> None:
        self._tree = tree

    def open(self, prompt: Sequence[int], *_: Any, **__: Any) -> ScriptedMemory:
        return ScriptedMemory(self._tree)

    def propose(self, batch: Sequence[tuple[ScriptedMemory, Budget]]) -> list[DraftTree]:
        return [memory.tree if len(memory.tree) <= budget.nodes else EMPTY for memory, budget in batch]

    def close(self) -> None: ...


class ScriptedMemory:
    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree

    def update(self, step: Step, features: Features) -> None:
        self.tree = EMPTY

    def close(self) -> None: ...


@st.composite
def trees(draw: st.DrawFn, n_vocab: int = V, depth: int = 2) -> DraftTree:
    """Draw a deterministic tree: duplicate siblings, dead ends and probes included."""
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    for i in range(draw(st.integers(0, 7))):
        open_nodes = [j for j in range(i) if depths[j] < depth]
        parents.append(draw(st.sampled_from([ROOT, *open_nodes])))
        depths.append(1 if parents[-1] == ROOT else depths[parents[-1]] + 1)
        tokens.append(draw(st.integers(0, n_vocab - 1)))
    probes = draw(st.sets(st.sampled_from(range(len(tokens))))) if tokens else set()
    n = len(tokens)
    return DraftTree(tuple(tokens), tuple(parents), (0.5,) * n, ("scripted",) * n, probe=frozenset(probes))


@given(tree=trees(), seed=st.integers(0, 50), sampling=st.sampled_from(list(SAMPLINGS.values())))
@settings(max_examples=60, deadline=None)
def test_any_deterministic_tree_leaves_the_distribution_unchanged(
    tree: DraftTree, seed: int, sampling: Sampling
) -> None:
    toy = ToyTarget(V, seed=seed)
    drafted = drafted_distribution(toy, Scripted(tree), PROMPT, Budget(2, 8, width=8), sampling, n=3)
    assert distance(drafted, plain_distribution(toy, PROMPT, sampling, n=3)) < EXACT


class FixedRows(LogitsOutput):
    """The same logits in every row."""

    def __init__(self, logits: Sequence[float]) -> None:
        self._logits = np.array(logits)

    def logits(self, row: int) -> np.ndarray:
        return self._logits


def test_penalties_see_the_drafted_prefix_of_each_row() -> None:
    """Token 0 wins until it is drafted twice; then its penalty lets token 1 win."""
    sampling = Sampling(frequency_penalty=1.0)
    verdict = verify(chain([0, 0, 0], "x"), FixedRows([2.5, 1.0]), sampling, [], Tape([]))
    assert (verdict.path, verdict.token) == ((0, 1), 1)


@pytest.mark.parametrize("q", [[0.0, 1.0], [np.nan, 0.5], [0.5, 0.7], [0.2, 0.2]])
def test_a_q_the_token_cannot_have_been_drawn_from_is_refused(q: list[float]) -> None:
    tree = chain([0], "x", q=[np.array(q)])
    with pytest.raises(ContractError, match="cannot have been drawn"):
        verify(tree, FixedRows([0.0, 0.0]), Sampling(temperature=1.0), [0], Tape([]))


def test_a_q_shorter_than_the_vocabulary_is_padded_and_a_longer_one_refused() -> None:
    short = chain([0], "x", q=[np.array([1.0])])
    assert draft_distribution(short, 0, 3).tolist() == [1.0, 0.0, 0.0]  # type: ignore[union-attr]
    with pytest.raises(ContractError, match="q covers 3 tokens"):
        draft_distribution(chain([0], "x", q=[np.array([0.5, 0.5, 0.0])]), 0, 2)


@pytest.mark.parametrize("rule", VERIFICATION_RULES)
def test_a_token_that_is_drafted_once_in_a_million_times_is_exact_too(rule: str) -> None:
    class Sharp(World):
        def _weights(self, what: int, path: tuple[int, ...]) -> Probabilities:
            seldom = (1e-5, 1e-6)[what]
            return np.array([1.0 - 2 * seldom, seldom, seldom])

    shape = plant(1, 1, kind=SAMPLED) if rule in CHAIN_ONLY_RULES else plant(2, 1, kind=SAMPLED)
    assert induced(Sharp(3, seed=2, likeness=0.0), shape, shape.depth, rule).distance < EXACT


def test_a_draft_vocabulary_that_is_a_part_of_the_target_s_is_exact() -> None:
    """Some of the target's tokens can never be drafted."""

    class Narrow(World):
        def q(self, path: tuple[int, ...]) -> Probabilities:
            q = super().q(path)
            q[[1, 3]] = 0.0
            q /= q.sum()
            return q

    for rule in VERIFICATION_RULES:
        shape = plant(1, 1, kind=SAMPLED) if rule in CHAIN_ONLY_RULES else plant(2, kind=SAMPLED)
        assert induced(Narrow(4, seed=2), shape, shape.depth, rule).distance < EXACT


@pytest.mark.parametrize("widths", [(1, 1, 1), (2, 1)], ids=["chain", "tree"])
def test_traversal_accepts_more_than_recursive_rejection(widths: tuple[int, ...]) -> None:
    world, shape = World(3, seed=7, likeness=0.3), plant(*widths)
    rules = ("recursive", "traversal", "block")[: 3 if max(widths) == 1 else 2]
    recursive, *others = (induced(world, shape, shape.depth, rule).accepted for rule in rules)
    assert min(others) > recursive + 0.005
