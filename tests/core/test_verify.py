"""Verification proved by enumeration: whatever is drafted, the output distribution is plain sampling's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enumeration import Tape, distance, drafted_distribution, outcomes, plain_distribution
from paceline.core.errors import ContractError
from paceline.core.ports import Budget, Drafter, Features, Want
from paceline.core.record import Step
from paceline.core.sampling import Sampling
from paceline.core.tree import EMPTY, ROOT, DraftTree, Probabilities, chain
from paceline.core.verify import fit, residual, verify
from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.engines.toy import ToyTarget

EXACT = 1e-12
V = 3
PROMPT = [0, 1, 2, 0, 1]
SAMPLINGS = {
    "temperature": Sampling(temperature=0.7),
    "top-k": Sampling(temperature=1.0, top_k=2),
    "top-p": Sampling(temperature=1.3, top_p=0.8),
    "min-p": Sampling(temperature=1.0, min_p=0.3),
    "penalties": Sampling(temperature=1.0, repeat_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2),
    "logit bias": Sampling(temperature=1.0, logit_bias={0: 1.5, 2: -0.5}),
}


def target() -> ToyTarget:
    return ToyTarget(V, seed=5)


def model(temperature: float) -> ModelDrafter:
    return ModelDrafter(ToyTarget(V, seed=5, noise=0.5), V, temperature=temperature, top_k=10)


DRAFTERS: dict[str, tuple[Drafter, Budget]] = {
    "lookup": (LookupDrafter(), Budget(3, 3)),
    "greedy chain": (model(0.0), Budget(2, 2)),
    "sampled chain": (model(1.0), Budget(2, 2)),
    "sampled chain, p_min": (model(0.8), Budget(2, 2, p_min=0.5)),
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
    """Proposes the given tree at the first step and nothing after it."""

    name = "scripted"
    wants = Want()

    def __init__(self, tree: DraftTree) -> None:
        self._tree = tree

    def open(self, prompt: Sequence[int], seed: int) -> ScriptedMemory:
        return ScriptedMemory(self._tree)

    def propose(self, batch: Sequence[tuple[ScriptedMemory, Budget]]) -> list[DraftTree]:
        return [memory.tree if len(memory.tree) <= budget.nodes else EMPTY for memory, budget in batch]

    def close(self) -> None: ...


class ScriptedMemory:
    def __init__(self, tree: DraftTree) -> None:
        self.tree = tree

    def observe(self, step: Step, features: Features) -> None:
        self.tree = EMPTY

    def close(self) -> None: ...


@st.composite
def trees(draw: st.DrawFn, n_vocab: int = V, depth: int = 2) -> DraftTree:
    """Any deterministic tree: duplicate siblings, dead ends and probes included."""
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


@st.composite
def distributions(draw: st.DrawFn, n_vocab: int = V) -> Probabilities:
    weights = np.array(draw(st.lists(st.integers(0, 5), min_size=n_vocab, max_size=n_vocab).filter(any)))
    out: Probabilities = weights / weights.sum()
    return out


@given(q1=distributions(), q2=distributions(), seed=st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_any_q_leaves_the_distribution_unchanged_when_it_is_what_was_drawn_from(
    q1: Probabilities, q2: Probabilities, seed: int
) -> None:
    """Even a q of zeros almost everywhere, or one that has nothing to do with the target."""
    toy, sampling = ToyTarget(V, seed=seed), Sampling(temperature=1.0)
    total: dict[tuple[int, ...], float] = {}
    for probability, (x1, x2) in outcomes(lambda tape: (tape.draw(q1), tape.draw(q2))):
        tree = chain([x1, x2], "scripted", q=[q1, q2])
        given_tree = drafted_distribution(toy, Scripted(tree), PROMPT, Budget(2, 2), sampling, n=3)
        for output, p in given_tree.items():
            total[output] = total.get(output, 0.0) + probability * p
    assert distance(total, plain_distribution(toy, PROMPT, sampling, n=3)) < EXACT


def test_the_proof_notices_a_wrong_q() -> None:
    """An argmax draft recorded with its softmax q, the usual mistake, is biased: the enumeration sees it."""
    toy, sampling = ToyTarget(V, seed=5), Sampling(temperature=1.0)
    wrong = chain([1], "scripted", q=[np.array([0.2, 0.5, 0.3])])
    drafted = drafted_distribution(toy, Scripted(wrong), PROMPT, Budget(1, 1), sampling, n=2)
    assert distance(drafted, plain_distribution(toy, PROMPT, sampling, n=2)) > 0.01


@given(tree=trees(depth=3), seed=st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_greedy_emits_the_argmax_path_whatever_the_tree(tree: DraftTree, seed: int) -> None:
    toy = ToyTarget(V, seed=seed)
    drafted = drafted_distribution(toy, Scripted(tree), PROMPT, Budget(3, 8, width=8), Sampling(), n=5)
    assert drafted == plain_distribution(toy, PROMPT, Sampling(), n=5)


class FixedRows:
    """A Forward with the same logits in every row."""

    features = Features()

    def __init__(self, logits: Sequence[float]) -> None:
        self._logits = np.array(logits)

    def argmax(self, row: int) -> int:
        return int(self._logits.argmax())

    def logits(self, row: int) -> np.ndarray:
        return self._logits


def test_greedy_with_edited_logits_follows_the_edited_argmax() -> None:
    sampling = Sampling(logit_bias={2: 100.0})
    verdict = verify(chain([2, 2], "x"), FixedRows([5.0, 1.0, 0.0]), sampling, [0], Tape([]))
    assert (verdict.path, verdict.token) == ((0, 1), 2)


def test_penalties_see_the_drafted_prefix_of_each_row() -> None:
    """Token 0 wins until it has been drafted twice; then its own penalty hands the row to token 1."""
    sampling = Sampling(frequency_penalty=1.0)
    verdict = verify(chain([0, 0, 0], "x"), FixedRows([2.5, 1.0]), sampling, [], Tape([]))
    assert (verdict.path, verdict.token) == ((0, 1), 1)


def test_sampled_siblings_are_refused_until_there_is_a_rule_for_them() -> None:
    q = np.array([0.5, 0.5])
    tree = DraftTree((0, 1), (ROOT, ROOT), (0.5, 0.5), ("x", "x"), q=(q, q))
    with pytest.raises(ContractError, match="sampled siblings"):
        verify(tree, FixedRows([0.0, 0.0]), Sampling(temperature=1.0), [0], Tape([]))


@pytest.mark.parametrize("q", [[0.0, 1.0], [np.nan, 0.5], [0.5, 0.7], [0.2, 0.2]])
def test_a_q_the_token_cannot_have_been_drawn_from_is_refused(q: list[float]) -> None:
    tree = chain([0], "x", q=[np.array(q)])
    with pytest.raises(ContractError, match="cannot have been drawn"):
        verify(tree, FixedRows([0.0, 0.0]), Sampling(temperature=1.0), [0], Tape([]))


def test_a_q_shorter_than_the_vocabulary_is_padded_and_a_longer_one_refused() -> None:
    assert fit(np.array([1.0]), 3).tolist() == [1.0, 0.0, 0.0]
    with pytest.raises(ContractError, match="q covers 3 tokens"):
        fit(np.array([0.5, 0.5, 0.0]), 2)


def test_an_empty_residual_falls_back_to_p() -> None:
    p = np.array([0.25, 0.75])
    assert residual(p, p).tolist() == p.tolist()
