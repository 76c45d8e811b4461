"""The n-gram drafter: llama.cpp's recorded drafts, its rules, trees, and learning."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.ngram_cache import NgramCache
from paceline.speculative.errors import VocabError
from paceline.speculative.interfaces import Budget, Features, LearningDrafter
from paceline.speculative.stats import Step, StepTimes
from paceline.speculative.tree import ROOT, DraftTree

DRAFTS = Path(__file__).parent.parent / "data" / "ngram" / "drafts.jsonl"
V = 6
FOUR = Budget(depth=4, nodes=4)
Texts = Sequence[Sequence[int]]


def drafter_of(static: Texts = (), dynamic: Texts = (), **settings: Any) -> NgramDrafter:
    drafter = NgramDrafter(NgramCache.build(static) if static else None, **settings)
    for text in dynamic:
        drafter.learn(text)
    return drafter


def draft(prompt: Sequence[int], budget: Budget = FOUR, static: Texts = (), dynamic: Texts = ()) -> DraftTree:
    drafter = drafter_of(static, dynamic)
    return drafter.propose([(drafter.open(prompt, 0), budget)])[0]


def observed(tokens: Sequence[int]) -> Step:
    return Step(tuple(tokens), ("target",) * len(tokens), (), {}, {}, None, StepTimes())


def followers(texts: Texts, ngram: tuple[int, ...]) -> Counter[int]:
    n = len(ngram)
    return Counter(t[i + n] for t in texts for i in range(len(t) - n) if tuple(t[i : i + n]) == ngram)


def could_follow(prompt: list[int], chain: list[int], dynamic: Texts, static: Texts) -> set[int | None]:
    """Return the tokens that llama.cpp's rules may choose next; several for ties, None for no choice."""
    lax, strict = [(2, 66), (2, 50), (1, 50), (1, 50)], [(4, 75), (3, 66), (2, 66), (2, 66)]
    text = prompt + chain
    judge = followers(static, tuple(text[-2:]))
    choices: set[int | None] = set()
    for texts, rules in (([prompt], lax), (dynamic, strict)):
        for n in range(min(4, len(text)), 0, -1):
            found, (fewest, percent) = followers(texts, tuple(text[-n:])), rules[n - 1]
            rank = {t: c * 100 * judge[t] if judge[t] else c for t, c in found.items()}
            total = found.total()
            best = {t for t in found if rank[t] == max(rank.values())}
            passed = {t for t in best if total >= fewest and 100 * found[t] >= percent * total}
            choices |= passed
            if best and passed == best:
                return choices  # whichever is chosen of equals: it is the answer
    if judge.total() >= 2 and 2 * max(judge.values()) >= judge.total():
        return choices | {t for t in judge if judge[t] == max(judge.values())}
    return choices | {None}


@pytest.mark.parametrize("line", DRAFTS.read_text().splitlines())
def test_a_chain_is_what_llama_cpps_own_functions_draft(line: str) -> None:
    case = json.loads(line)
    budget = Budget(case["n_draft"], case["n_draft"])
    tree = draft(case["context"], budget, case["static"], case["dynamic"])
    assert list(tree.tokens) == case["draft"]
    assert tree.parents == tuple(range(-1, len(tree) - 1))


texts = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=25), max_size=3)


@given(prompt=st.lists(st.integers(0, 3), min_size=2, max_size=25), dynamic=texts, static=texts)
@example(prompt=[2, 1, 0, 2, 1, 0, 2, 1, 2], dynamic=[], static=[[2, 1, 0, 2, 1, 2, 1, 2]])  # a tie
@settings(max_examples=150, deadline=None)
def test_every_token_is_one_that_the_rules_choose_and_a_chain_ends_where_they_have_none(
    prompt: list[int], dynamic: list[list[int]], static: list[list[int]]
) -> None:
    static = [text for text in static if len(text) > 2]
    tree = draft(prompt, Budget(5, 5), static, dynamic)
    chain: list[int] = []
    for token in tree.tokens:
        assert token in could_follow(prompt, chain, dynamic, static)
        chain.append(token)
    assert len(tree) == 5 or None in could_follow(prompt, chain, dynamic, static)


@pytest.mark.parametrize(
    ("prompt", "score"),
    [
        ([1, 2, 3, 4, 5, 1, 2, 3, 4], 1 / 1.5),
        ([2, 3, 4, 5, 2, 3, 4], 1 / 2),
        ([3, 4, 5, 9, 3, 4, 5, 8, 3, 4], 2 / 4),
        ([4, 5, 9, 4, 5, 8, 4], 2 / 6),
        ([7, 1, 2, 3, 8, 1, 2, 3, 6, 1, 2, 4, 9, 1, 2], 2 / 5),
    ],
)
def test_scores_grow_with_the_count_its_share_and_the_ngrams_length(prompt: list[int], score: float) -> None:
    tree = draft(prompt, Budget(1, 1))
    assert tree.score == (score,)
    assert tree.source == ("ngram",)
    assert tree.q is None


def test_a_step_below_p_min_is_not_taken() -> None:
    prompt = [1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2]
    assert draft(prompt, Budget(2, 2, p_min=0.67)).tokens == ()
    assert draft(prompt, Budget(2, 2, p_min=0.66)).tokens == (3, 1)


SPLIT = [1, 2, 3, 5, 1, 2, 3, 5, 1, 2, 4, 6, 1, 2, 3, 5, 1, 2, 4, 6, 9, 1, 2]


def test_with_width_the_others_that_followed_the_same_ngram_are_siblings() -> None:
    tree = draft(SPLIT, Budget(depth=2, nodes=8, width=2))
    assert tree.tokens == (3, 5, 4, 6)
    assert tree.parents == (ROOT, 0, ROOT, 2)
    assert tree.score == (3 / 7, 3 / 4, 2 / 7, 2 / 3)


prompts = st.lists(st.integers(0, 3), min_size=1, max_size=25)


@given(prompt=prompts, dynamic=texts, static=texts, depth=st.integers(1, 5), nodes=st.integers(1, 9))
@settings(max_examples=80, deadline=None)
def test_the_first_children_of_a_tree_are_the_chain(
    prompt: list[int], dynamic: list[list[int]], static: list[list[int]], depth: int, nodes: int
) -> None:
    static = [text for text in static if len(text) > 2]
    tree = draft(prompt, Budget(depth, nodes, width=3), static, dynamic)
    first, node = [], ROOT
    while below := tree.children(node):
        node = below[0]
        first.append(tree.tokens[node])
        assert len({tree.tokens[child] for child in below}) == len(below)
        assert sum(tree.score[child] for child in below) <= 1 + 1e-12
    chain = draft(prompt, Budget(depth, depth), static, dynamic).tokens
    assert tuple(first) == chain[: len(first)]


def test_it_learns_what_was_emitted_when_a_request_ends_and_nothing_of_the_prompt() -> None:
    drafter = drafter_of()
    assert isinstance(drafter, LearningDrafter)
    for _ in range(2):
        memory = drafter.open([1, 2, 3, 4, 5, 6], 0)
        memory.update(observed([7, 8]), Features())
        assert drafter._common.continuations((6, 7)) == drafter._common.continuations((5, 6, 7))
        memory.close()
        memory.close()
    assert drafter._common.continuations((3, 4, 5, 6)) == ((7,), (2,))
    assert drafter._common.continuations((6, 7)) == ((8,), (2,))
    assert drafter._common.continuations((1, 2)) == ((), ())
    assert drafter.propose([(drafter.open([3, 4, 5, 6], 0), FOUR)])[0].tokens == (7, 8)
    drafter.forget()
    assert drafter.propose([(drafter.open([3, 4, 5, 6], 0), FOUR)])[0].tokens == ()


def test_what_is_learned_is_bounded_and_the_rarest_go_first() -> None:
    drafter = drafter_of(limit=200)
    for n in range(100):
        drafter.learn([1, 2, 3, 4, 5])
        drafter.learn([1000 + 5 * n + i for i in range(5)])
        assert len(drafter._common) <= 200
    assert drafter._common.continuations((1, 2, 3, 4)) == ((5,), (100,))


def test_a_cache_of_another_tokenizer_is_refused() -> None:
    cache = NgramCache.build([[1, 2, 7]])
    with pytest.raises(VocabError, match="static n-gram cache holds token 7, the target has 7"):
        NgramDrafter(cache, n_vocab=7)
    NgramDrafter(cache, n_vocab=8)
