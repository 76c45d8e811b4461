"""Contract of every drafter. Each row of the table in drafter_table.py is covered by the drafter that its
name makes; further drafters are made by hand. The layers of a target's own file have a test of their own
(backends/test_llama_mtp.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import drafter_factory as makers
from paceline.backends.toy import ToyTarget
from paceline.backends.translated import CrossVocabTarget
from paceline.drafter_table import DRAFTERS, HEADS
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.compose import ComposedDrafter, ComposedState, PortfolioDrafter
from paceline.drafters.datastore import DatastoreDrafter
from paceline.drafters.lookahead import LookaheadDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.ngram_cache import NgramCache
from paceline.drafters.parts import DrafterInputs
from paceline.drafters.slem import SlemDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.drafters.suffix_array import SuffixArray
from paceline.drafters.suffix_sort import build
from paceline.settings import Drafting
from paceline.speculative.interfaces import Budget, Drafter, DrafterState, LearningDrafter, Target
from paceline.speculative.loop import advance_requests, start_request
from paceline.speculative.policy.costs import PassCosts
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.speculative.stats import Step, StepTimes
from paceline.speculative.tree import EMPTY, ROOT, DraftTree
from parrot import LookupCopier
from tiny_heads import tiny_drafter, tiny_head, tiny_parallel_draft, toy
from tongues import speaking, translation
from toy_head import HeadDrafter

V = 6
_FOLDER = TemporaryDirectory()
STORE = Path(_FOLDER.name)
build(STORE, [[0, 1, 2, 3, 4, 5, 1, 2] * 4], V)
CACHE = STORE / "cache"
SEEN = toy(V)  # the target of heads, which see its hidden states
NgramCache.build([[1, 2, 3, 1, 2, 3, 4, 5, 0, 0, 0]]).write(CACHE)


def model(temperature: float = 0.0, n_ctx: int = 4096, branch: int = 64) -> ModelDrafter:
    draft = ToyTarget(V, seed=1, noise=0.3, n_ctx=n_ctx, branch=branch)
    return ModelDrafter(draft, V, temperature=temperature)


def foreign(words: str = "30x51", n_ctx: int = 4096) -> ToyTarget:
    """A draft that has some of the target's tokens, which say 0 to 5, and others."""
    return speaking(ToyTarget(len(words), seed=2, n_ctx=n_ctx), words)


def view(**draft: Any) -> CrossVocabTarget:
    """The same draft, in the tokens that the target has too."""
    theirs = foreign(**draft)
    return CrossVocabTarget(theirs, translation(ToyTarget(V).vocab, theirs.vocab))


def tli(temperature: float = 0.0, **draft: Any) -> ModelDrafter:
    return ModelDrafter(view(**draft), V, temperature=temperature)


def slem(**draft: Any) -> SlemDrafter:
    theirs = foreign(**draft)
    return SlemDrafter(theirs, translation(ToyTarget(V).vocab, theirs.vocab))


def cascade(draft: Target | None = None, **settings: Any) -> CascadeDrafter:
    draft = draft or ToyTarget(V, seed=1, noise=0.3)
    return CascadeDrafter(draft, V, LookupCopier(1, 3), **settings)


def taught(drafter: Any) -> Drafter:
    """It has seen past outputs."""
    for tokens in ([1, 2, 3, 4, 5, 0, 1, 2, 3], [3, 3, 3], [2, 3, 4, 1, 2, 3, 4]):
        drafter.learn(tokens)
    assert isinstance(drafter, LearningDrafter)
    return drafter  # type: ignore[return-value]  # the same object: a drafter that learns


def datastore() -> DatastoreDrafter:
    return DatastoreDrafter([SuffixArray(STORE)])


class Chosen(PortfolioDrafter):
    """Together they may say more than a budget holds: what the policy leaves of it."""

    def propose(self, batch: Sequence[tuple[ComposedState, Budget]]) -> list[DraftTree]:
        budgets = [budget for _, budget in batch]
        return FixedPolicy(Budget(0, 0)).select([], budgets, super().propose(batch))


def auto(*more: Drafter) -> PortfolioDrafter:
    return Chosen([SuffixDrafter(), LookupDrafter(), *more])


def named(name: str) -> Drafter:
    """Make a drafter as `--draft` does, with every input that a drafter can use."""
    is_head = name in HEADS and name != "pard"
    target = SEEN if is_head else ToyTarget(V)
    draft: Target = tiny_head(name, SEEN) if is_head else ToyTarget(V, seed=1, noise=0.3)
    if name == "pard":
        draft = tiny_parallel_draft(V)
    return makers.make(
        name, DrafterInputs(Drafting((name,)), target, draft, caches=(CACHE,), stores=(STORE,))
    )


SOME = [0, 2, 5]  # the tokens that a head of a reduced vocabulary drafts


MAKERS: dict[str, Callable[[], Drafter]] = {
    **{name: partial(named, name) for name in DRAFTERS if name not in ("auto", "mtp")},
    "lookup, up to three tokens": LookupDrafter,
    "lookup, short n-grams": lambda: LookupDrafter(1, 1),
    "lookahead, small window": lambda: LookaheadDrafter(2, 3, 2),
    "lookahead, bigrams": lambda: LookaheadDrafter(3, 2, 2),
    "lookahead, no window": lambda: LookaheadDrafter(0, 3, 2),
    "lookup,lookahead": lambda: ComposedDrafter([LookupDrafter(2, 3), LookaheadDrafter(2, 3, 2)]),
    "suffix, taught": lambda: taught(SuffixDrafter()),
    "suffix,model": lambda: ComposedDrafter([SuffixDrafter(), model()], min_tokens=3),
    "ngram, without a corpus": NgramDrafter,
    "ngram, taught": lambda: taught(NgramDrafter()),
    "lookup,datastore": lambda: ComposedDrafter([LookupDrafter(2, 3), datastore()]),
    "model, sampled": lambda: model(0.9),
    "model, short context": lambda: model(n_ctx=9),
    "model, chains only": lambda: model(branch=1),
    "model, recurrent": lambda: ModelDrafter(ToyTarget(V, seed=1, noise=0.3, rollback="restore"), V),
    "model, early exit": lambda: ModelDrafter(ToyTarget(V, seed=1, layers=3).view(exits=1), V),
    "head": lambda: HeadDrafter(ToyTarget(V)),
    **{
        f"{kind}, sampled": partial(tiny_drafter, kind, SEEN, 0.9, draft_ids=SOME)
        for kind in HEADS
        if kind != "mtp"
    },
    "eagle3, short context": lambda: tiny_drafter("eagle3", toy(V, n_ctx=9)),
    "block, short context": lambda: tiny_drafter("block", toy(V, n_ctx=9), markov="rnn", markov_rank=2),
    "eagle3, some tokens": lambda: tiny_drafter("eagle3", SEEN, draft_ids=SOME),
    "lookup,block": lambda: ComposedDrafter([LookupDrafter(2, 3), tiny_drafter("block", SEEN)]),
    "auto, eagle3": lambda: auto(tiny_drafter("eagle3", SEEN)),
    "auto, medusa, sampled": lambda: auto(tiny_drafter("medusa", SEEN, 0.9)),
    "lookup,model": lambda: ComposedDrafter([LookupDrafter(2, 3), model()]),
    "cascade, free rows": lambda: cascade(cost=PassCosts.flat(1.0, per_row=0.0)),
    "cascade, sampled": lambda: cascade(temperature=0.9),
    "cascade, short context": lambda: cascade(ToyTarget(V, seed=1, n_ctx=9)),
    "cascade, tli": lambda: cascade(view()),
    "cascade, early exit": lambda: cascade(tiny_head("exits", SEEN)),
    "cascade, early exit, sampled": lambda: cascade(
        tiny_head("exits", SEEN, draft_ids=SOME), temperature=0.9
    ),
    "model, tli": tli,
    "model, tli, sampled": lambda: tli(0.9),
    "model, tli, short context": lambda: tli(n_ctx=9),
    "model, slem": slem,
    "model, slem, every word": lambda: slem(words="504321"),
    "model, slem, short context": lambda: slem(n_ctx=9),
    "lookup,model, slem": lambda: ComposedDrafter([LookupDrafter(2, 3), slem()]),
    "model,lookup": lambda: ComposedDrafter([model(), LookupDrafter()]),
    "auto": auto,
    "auto, taught": lambda: taught(auto(NgramDrafter())),
    "auto, corpora": lambda: auto(NgramDrafter(), datastore()),
    "auto, model": lambda: auto(model()),
    "auto, model, sampled": lambda: auto(model(0.9)),
    "auto, model, slem": lambda: auto(slem()),
}

prompts = st.lists(st.integers(0, V - 1), min_size=1, max_size=20)
budgets = st.builds(
    Budget,
    depth=st.integers(0, 6),
    nodes=st.integers(0, 12),
    width=st.integers(1, 4),
    p_min=st.sampled_from([0.0, 0.3, 0.9]),
    p_split=st.sampled_from([0.01, 0.2]),
)


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[], Drafter]:
    return MAKERS[request.param]


def opened(drafter: Drafter, prompt: Sequence[int], seed: int) -> DrafterState:
    """Open a request's state, and show it the hidden states of the tokens before the root."""
    memory, layers = drafter.open(prompt, seed), drafter.required_outputs.layers
    if layers and len(prompt) > 1:
        session = SEEN.open()
        session.extend(prompt)
        (out,) = SEEN.forward([(session, len(prompt) - 1)], drafter.required_outputs)
        memory.update(Step((), (), (), {}, {}, None, StepTimes()), out.features)
    return memory


def propose(drafter: Drafter, prompt: Sequence[int], budget: Budget, seed: int = 0) -> DraftTree:
    memory = opened(drafter, prompt, seed)
    (tree,) = drafter.propose([(memory, budget)])
    memory.close()
    return tree


def same(a: DraftTree, b: DraftTree) -> bool:
    if (a.q is None) != (b.q is None) or a.tokens != b.tokens or a.parents != b.parents:
        return False
    pairs = zip(a.q or (), b.q or (), strict=True)
    return all(x is y or (x is not None and y is not None and np.array_equal(x, y)) for x, y in pairs)


def leaves(tree: DraftTree) -> int:
    return len(tree) - len(set(tree.parents) - {ROOT})


@given(prompt=prompts, budget=budgets)
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("name", MAKERS)
def test_a_proposal_stays_within_its_budget_and_the_vocabulary(
    name: str, prompt: list[int], budget: Budget
) -> None:
    tree = propose(MAKERS[name](), prompt, budget)
    assert len(tree) <= budget.nodes
    assert max(tree.depths(), default=0) <= budget.depth
    assert leaves(tree) <= budget.width
    assert all(0 <= token < V for token in tree.tokens)
    assert all(0.0 <= score <= 1.0 for score in tree.score)
    assert all(tree.source)
    for parent in [ROOT, *range(len(tree))]:
        tokens = [tree.tokens[child] for child in tree.children(parent)]
        assert len(set(tokens)) == len(tokens)


@given(prompt=prompts, budget=budgets)
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("name", MAKERS)
def test_q_is_a_distribution_that_gave_the_token(name: str, prompt: list[int], budget: Budget) -> None:
    """The first child's score is its q; siblings drawn after it have a q without those before them."""
    tree = propose(MAKERS[name](), prompt, budget)
    for node, (token, score, q) in enumerate(zip(tree.tokens, tree.score, tree.q or (), strict=False)):
        assert q is not None
        assert q.sum() == pytest.approx(1.0, abs=1e-12)
        assert q[token] >= score - 1e-12 > 0.0
        before = [c for c in tree.children(tree.parents[node]) if c < node]
        if not before:
            assert q[token] == score
        else:
            assert not q[[tree.tokens[c] for c in before]].any()


def test_no_budget_means_no_draft(make: Callable[[], Drafter]) -> None:
    assert len(propose(make(), [1, 2, 1, 2], Budget(depth=0, nodes=5))) == 0
    assert len(propose(make(), [1, 2, 1, 2], Budget(depth=5, nodes=0))) == 0


def test_the_same_request_and_seed_get_the_same_proposal(make: Callable[[], Drafter]) -> None:
    budget, prompt = Budget(4, 8, width=2), [1, 2, 3, 1, 2]
    drafter = make()
    first = propose(drafter, prompt, budget, seed=3)
    assert same(first, propose(drafter, prompt, budget, seed=3))
    assert same(first, propose(make(), prompt, budget, seed=3))


@pytest.mark.parametrize("name", MAKERS)
def test_a_batch_proposes_what_each_request_alone_would(name: str) -> None:
    """And the same again, where nothing is drawn."""
    requests = [([1, 2, 3, 1, 2], Budget(4, 4)), ([5], Budget(2, 6, width=3)), ([0, 0, 0], Budget(0, 0))]
    drafter = MAKERS[name]()
    batch = [(opened(drafter, prompt, 7), budget) for prompt, budget in requests]
    for _ in range(1 if "sampled" in name else 2):
        for tree, (prompt, budget) in zip(drafter.propose(batch), requests, strict=True):
            assert same(tree, propose(MAKERS[name](), prompt, budget, seed=7))


@given(prompt=prompts, seed=st.integers(0, 20), width=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
@pytest.mark.parametrize(
    "name",
    [name for name, make in MAKERS.items() if "sampled" not in name and make().required_outputs.top_k == 0],
)
def test_memory_after_acceptances_and_rejections_is_that_of_the_text(
    name: str, prompt: list[int], seed: int, width: int
) -> None:
    """After every step the drafter proposes what a fresh one would for the same text; but for those that
    read the target's logits, which a fresh one has not seen."""
    drafter = MAKERS[name]()
    target = SEEN if drafter.required_outputs.layers else ToyTarget(V, seed=seed)
    budget = Budget(4, 4 * width, width=width, p_split=0.05)
    request = start_request(
        target, drafter, GenerationRequest(prompt=prompt, max_tokens=50, sampling=Sampling(temperature=0.6))
    )
    for _ in range(5):
        advance_requests(target, drafter, FixedPolicy(budget), [request])
        (proposed,) = drafter.propose([(request.drafter_state, budget)])
        assert same(proposed, propose(MAKERS[name](), list(request.session.tokens), budget))


def test_a_name_says_which_drafters_there_are(make: Callable[[], Drafter]) -> None:
    drafter = make()
    assert set(propose(drafter, [1, 1, 1, 1], Budget(3, 3)).source) <= set(drafter.name.split(","))
    assert EMPTY.source == ()
