"""Drafting under a grammar, proved by enumeration: the output distribution is the masked plain one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from automaton import Automaton, Blind
from decoding import begin, decoded
from enumeration import Tape, distance, drafted_distribution, plain_distribution
from paceline.backends.toy import ToyTarget
from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.speculative import loop as decode_module
from paceline.speculative.forward_output import LogitsOutput
from paceline.speculative.grammar_pruning import NoEarlyEnd, prune_tree
from paceline.speculative.interfaces import Budget, Drafter, Grammar
from paceline.speculative.loop import advance_requests, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain
from paceline.speculative.verify import verify

EXACT = 1e-12
V = 4
PROMPT = [0, 1, 2, 0, 1]
SAMPLINGS = {
    "temperature": Sampling(temperature=0.9),
    "filters": Sampling(temperature=1.2, top_k=3, top_p=0.9, min_p=0.05),
    "XTC": Sampling(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.2),
    "penalties and bias": Sampling(temperature=1.0, frequency_penalty=0.5, logit_bias={2: 1.0}),
}


def toy(seed: int = 5, noise: float = 0.0) -> ToyTarget:
    return ToyTarget(V, seed=seed, noise=noise, sharpness=0.7)


def model(temperature: float) -> ModelDrafter:
    return ModelDrafter(toy(noise=0.5), V, temperature=temperature, top_k=3)


CHAIN, TREE = Budget(2, 2), Budget(2, 3, width=2, p_split=0.2)
DRAFTERS: dict[str, tuple[Drafter, Budget, str]] = {
    "lookup": (LookupDrafter(1, 3), Budget(3, 3), "auto"),
    "greedy chain": (model(0.0), CHAIN, "auto"),
    "greedy tree": (model(0.0), Budget(2, 6, width=3, p_split=0.05), "auto"),
    "sampled chain, token rule": (model(1.0), CHAIN, "token"),
    "sampled chain, block rule": (model(1.0), CHAIN, "block"),
    "sampled tree, recursive": (model(1.0), TREE, "recursive"),
    "sampled tree, traversal": (model(1.0), TREE, "traversal"),
    "lookup then sampled": (ComposedDrafter([LookupDrafter(3, 3), model(1.0)]), CHAIN, "auto"),
    "blind greedy tree": (Blind(model(0.0)), TREE, "auto"),
    "blind chain, token rule": (Blind(model(3.0)), CHAIN, "token"),
    "blind chain, block rule": (Blind(model(3.0)), CHAIN, "block"),
    "blind tree, recursive": (Blind(model(3.0)), TREE, "recursive"),
    "blind tree, traversal": (Blind(model(3.0)), TREE, "traversal"),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize(("drafter", "budget", "rule"), DRAFTERS.values(), ids=DRAFTERS)
def test_under_a_grammar_the_loop_emits_exactly_the_plain_distribution(
    drafter: Drafter, budget: Budget, rule: str, sampling: Sampling
) -> None:
    drafted = drafted_distribution(toy(), drafter, PROMPT, budget, sampling, 3, rule, Automaton)
    plain = plain_distribution(toy(), PROMPT, sampling, 3, Automaton)
    assert sum(drafted.values()) == pytest.approx(1.0, abs=EXACT)
    assert distance(drafted, plain) < EXACT
    assert distance(plain, plain_distribution(toy(), PROMPT, sampling, 3)) > 0.01


@pytest.mark.parametrize("base", [None, Automaton], ids=["no grammar", "grammar"])
@pytest.mark.parametrize(("drafter", "budget", "rule"), DRAFTERS.values(), ids=DRAFTERS)
def test_before_the_least_tokens_the_loop_emits_the_plain_distribution_without_an_end(
    drafter: Drafter, budget: Budget, rule: str, base: type[Automaton] | None
) -> None:
    ending, sampling = replace(toy().vocab, eos=frozenset({3})), Sampling(temperature=0.9)

    def grammar() -> Grammar:
        return NoEarlyEnd(None if base is None else base(), ending, 2)

    drafted = drafted_distribution(toy(), drafter, PROMPT, budget, sampling, 3, rule, grammar)
    plain = plain_distribution(toy(), PROMPT, sampling, 3, grammar)
    assert distance(drafted, plain) < EXACT
    assert not any(3 in output[:2] for output in drafted)
    assert any(output[2] == 3 for output in drafted)


def test_grammar_that_leaves_nothing_but_the_end_ends_early() -> None:
    ends = NoEarlyEnd(Automaton({0: {3: 0}}), replace(toy().vocab, eos=frozenset({3})), 5)
    assert np.flatnonzero(ends.mask(())).tolist() == [3]
    assert not ends.is_slow
    ends.commit([3] * 5)
    assert isinstance(ends.following, Automaton)


def test_request_emits_no_end_before_its_least_tokens() -> None:
    target = toy()
    target.vocab = replace(target.vocab, eos=frozenset(range(3)))  # likely at every place
    for drafter, budget, _ in DRAFTERS.values():
        tokens, steps = decoded(target, drafter, PROMPT, 9, budget, min_tokens=4)
        assert tokens[:4] == [3] * 4
        with closing(begin(target, drafter, PROMPT, 9, min_tokens=4)) as request:
            for active, _ in decode_module.decode(target, drafter, FixedPolicy(budget), [request]):
                limited = active.n_tokens < 4
                assert (active.grammar is not None, active.safe_grammar is not None) == (limited, limited)
        assert steps[-1].stop_reason in ("eos", "length")
        ignored, _ = decoded(target, drafter, PROMPT, 9, budget, min_tokens=4, ignore_eos=True)
        assert len(ignored) == 9


@given(
    seed=st.integers(0, 1000),
    noise=st.sampled_from([0.1, 3.0]),
    budget=st.sampled_from([CHAIN, TREE, Budget(1, 3, width=3, p_split=0.0)]),
    blind=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_any_sampled_draft_is_exact_under_a_grammar(
    seed: int, noise: float, budget: Budget, blind: bool
) -> None:
    """Including drafts unrelated to the target."""
    sampling = Sampling(temperature=1.0)
    drafter: Drafter = ModelDrafter(toy(seed, noise), V, temperature=1.3)
    drafter = Blind(drafter) if blind else drafter
    drafted = drafted_distribution(toy(seed), drafter, PROMPT, budget, sampling, 2, grammar=Automaton)
    assert distance(drafted, plain_distribution(toy(seed), PROMPT, sampling, 2, Automaton)) < EXACT


@pytest.mark.parametrize("rule", ["token", "block"])
def test_to_prune_a_sampled_token_for_what_it_is_would_bias(
    monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """Why prune_tree keeps a forbidden token that was drawn."""

    def without_forbidden(tree: DraftTree, grammar: Grammar) -> DraftTree:
        kept: list[bool] = []
        for parent, token in zip(tree.parents, tree.tokens, strict=True):
            allowed = bool(grammar.mask(tree.path_tokens(parent))[token])
            kept.append(allowed and (parent == ROOT or kept[parent]))
        return tree.filter(kept)

    monkeypatch.setattr(decode_module, "prune_tree", without_forbidden)
    sampling = Sampling(temperature=1.0)
    drafted = drafted_distribution(toy(), Blind(model(3.0)), PROMPT, CHAIN, sampling, 3, rule, Automaton)
    assert distance(drafted, plain_distribution(toy(), PROMPT, sampling, 3, Automaton)) > 0.01


class Slow(Automaton):
    """An automaton that counts as slow from its second token on, or from the beginning."""

    def __init__(self, fast_tokens: int = 0) -> None:
        super().__init__()
        self._fast = fast_tokens

    @property
    def is_slow(self) -> bool:
        return len(self.emitted) >= self._fast


@pytest.mark.parametrize(
    "name", ["sampled chain, token rule", "sampled tree, traversal", "blind tree, recursive"]
)
def test_a_slow_grammar_leaves_the_distribution_exact(name: str) -> None:
    drafter, budget, rule = DRAFTERS[name]
    sampling = Sampling(temperature=1.0)
    drafted = drafted_distribution(toy(), drafter, PROMPT, budget, sampling, 3, rule, Slow)
    assert distance(drafted, plain_distribution(toy(), PROMPT, sampling, 3, Automaton)) < EXACT


def test_a_slow_grammar_ends_drafting_for_its_request() -> None:
    target, drafter = toy(), Blind(model(1.0))
    asked = GenerationRequest(prompt=PROMPT, max_tokens=12, sampling=Sampling(temperature=1.0))
    request = start_request(target, drafter, asked, grammar=Slow(4))
    sizes = []
    while request.stop_reason is None:
        ((_, step),) = advance_requests(target, drafter, FixedPolicy(TREE), [request])
        sizes.append((request.n_tokens - len(step.tokens), len(step.tree)))
    assert all(bool(size) == (before < 4) for before, size in sizes if before < 10)


def test_the_grammar_is_told_what_is_emitted_and_nothing_else() -> None:
    drafter, grammar, sampling = Blind(model(1.0)), Automaton(), Sampling(temperature=1.0)
    target = toy()
    request = start_request(
        target, drafter, GenerationRequest(prompt=PROMPT, max_tokens=9, sampling=sampling), grammar=grammar
    )
    emitted: list[int] = []
    while request.stop_reason is None:
        ((_, step),) = advance_requests(target, drafter, FixedPolicy(TREE), [request])
        emitted += step.tokens
        assert grammar.emitted == emitted
    assert len(emitted) == 9


def test_a_dead_end_below_a_draft_that_is_not_taken_is_no_error() -> None:
    """Traversal may read rows that plain decoding never reaches."""

    class DeadEnd(Grammar):
        def mask(self, path: Sequence[int]) -> np.ndarray:
            return np.array([not path or path[0] != 0] * V)

        def commit(self, tokens: Sequence[int]) -> None: ...

    q = np.full(V, 0.25)
    tree = DraftTree((0, 1), (ROOT, 0), (0.5, 0.5), ("x", "x"), q=(q, q))

    class Rejecting(Tape):
        def accept(self, probability: float) -> bool:
            return False

    class Rows(LogitsOutput):
        def logits(self, row: int) -> np.ndarray:
            return np.array([0.0, 1.0, 0.5, 0.2])

    sampling = Sampling(temperature=1.0)
    verdict = verify(tree, Rows(), sampling, [], Rejecting([]), "traversal", DeadEnd())
    assert verdict.path == ()
    assert verdict.token != 0


Q = np.array([0.25, 0.25, 0.25, 0.25])


def test_a_draft_that_is_allowed_throughout_is_left_as_it_is() -> None:
    tree = chain([0, 1, 2, 3, 0], "x")
    assert prune_tree(tree, Automaton()) is tree
    assert prune_tree(EMPTY, Automaton()) is EMPTY


def test_each_branch_is_judged_by_its_own_prefix() -> None:
    tree = DraftTree(
        tokens=(0, 1, 2, 1, 3, 0),
        parents=(ROOT, ROOT, ROOT, 0, 1, 4),
        score=(0.9, 0.8, 0.7, 0.6, 0.5, 0.4),
        source=("x",) * 6,
    )
    pruned = prune_tree(tree, Automaton())
    assert (pruned.tokens, pruned.parents) == ((0, 1, 1, 3, 0), (ROOT, ROOT, 0, 1, 3))
    assert pruned.score == (0.9, 0.8, 0.6, 0.5, 0.4)
    assert pruned.reach_probability == pytest.approx((0.9, 0.8, 0.54, 0.4, 0.16))


def test_a_sampled_token_that_is_forbidden_stays_as_a_leaf() -> None:
    tree = DraftTree((2, 0, 1, 1), (ROOT, 0, ROOT, 2), (0.5,) * 4, ("x",) * 4, q=(Q, Q, Q, Q))
    pruned = prune_tree(tree, Automaton())
    assert (pruned.tokens, pruned.parents) == ((2, 1, 1), (ROOT, ROOT, 1))
    assert pruned.q is not None
    assert all(q is Q for q in pruned.q)
    fixed = DraftTree((2, 3), (ROOT, ROOT), (0.5, 0.5), ("x", "x"), q=(None, Q))
    assert (prune_tree(fixed, Automaton()).tokens, prune_tree(fixed, Automaton()).q) == ((3,), (Q,))


def test_probes_are_never_emitted_and_stay_below_what_stays() -> None:
    tree = DraftTree(
        tokens=(3, 3, 0, 0, 2),
        parents=(ROOT, 0, ROOT, 2, 3),
        score=(0.5,) * 5,
        source=("x",) * 5,
        probe=frozenset({0, 1, 4}),
    )
    pruned = prune_tree(tree, Automaton())
    assert (pruned.tokens, pruned.parents) == ((3, 3, 0), (ROOT, 0, ROOT))
    assert pruned.probe == {0, 1}
