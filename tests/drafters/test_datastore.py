"""The datastore drafter: by example and against brute force."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters.datastore import HALF_TRUST_LENGTH, DatastoreDrafter
from paceline.drafters.suffix_array import INDEX, SuffixArray
from paceline.drafters.suffix_sort import build
from paceline.speculative.interfaces import Budget
from paceline.speculative.tree import EMPTY, ROOT, DraftTree

V = 6
Make = Callable[..., DatastoreDrafter]
TEXT = [[1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 2], [1, 2, 3, 0, 0], [3, 3, 3, 1, 1, 2]]
FOUR = Budget(depth=4, nodes=4)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[DatastoreDrafter] = []

    def maker(*corpora: Sequence[Sequence[int]], **options: int) -> DatastoreDrafter:
        stores: list[SuffixArray] = []
        for documents in corpora:
            folder = tmp_path / f"{len(made)}-{len(stores)}"
            folder.mkdir()
            build(folder, documents, V)
            stores.append(SuffixArray(folder))
        made.append(DatastoreDrafter(stores, **options))
        return made[-1]

    yield maker
    for drafter in made:
        drafter.close()


def draft(drafter: DatastoreDrafter, prompt: Sequence[int], budget: Budget = FOUR) -> DraftTree:
    (tree,) = drafter.propose([(drafter.open(prompt, 0), budget)])
    return tree


def test_no_more_than_the_longest_match_is_looked_at(make: Make) -> None:
    drafter = make([[5, 1, 2, 3, 0], [4, 1, 2, 3, 4, 4], [4, 1, 2, 3, 4, 4]], match_max=3)
    assert draft(drafter, [5, 1, 2, 3]).tokens == (4, 4)


def test_all_corpora_are_asked(make: Make) -> None:
    two = make([[0, 1, 2, 3, 4]], [[5, 1, 2, 3, 0], [5, 1, 2, 3, 0]])
    assert draft(two, [0, 1, 2, 3]).tokens == (4,)
    assert draft(two, [5, 1, 2, 3]).tokens == (0,)
    assert draft(two, [4, 1, 2, 3]).tokens == (0,)  # two of three


def test_it_stops_where_the_budget_wants_more_confidence(make: Make) -> None:
    drafter = make([[1, 2, 3, 4, 5]] * 20 + [[1, 2, 3, 4, 0]] * 20)
    assert draft(drafter, [1, 2, 3], Budget(4, 4, p_min=0.6)).tokens == (4,)
    assert draft(drafter, [1, 2, 3], Budget(4, 4, p_min=0.3)).tokens in ((4, 0), (4, 5))


def test_a_tree_branches_where_alternatives_are_likely_enough(make: Make) -> None:
    corpus = [[1, 2, 3, 4, 5]] * 8 + [[1, 2, 3, 0, 0]] * 6 + [[1, 2, 3, 5, 5]] * 2
    drafter = make(corpus)
    assert draft(drafter, [1, 2, 3], Budget(2, 8, width=2, p_split=0.2)).tokens == (4, 5, 0, 0)
    three = draft(drafter, [1, 2, 3], Budget(2, 8, width=3, p_split=0.05))
    assert (three.tokens, three.parents) == ((4, 5, 0, 0, 5, 5), (ROOT, 0, ROOT, 2, ROOT, 4))
    assert draft(drafter, [1, 2, 3], Budget(2, 8, width=3, p_split=0.2)).tokens == (4, 5, 0, 0)
    assert draft(drafter, [1, 2, 3], Budget(2, 3, width=3)).tokens == (4, 5, 0)  # likeliest first


def brute_force(documents: Sequence[Sequence[int]], context: Sequence[int]) -> tuple[int, list[list[int]]]:
    for n in range(min(16, len(context)), 2, -1):
        found = [
            list(document[i + n :])
            for document in documents
            for i in range(len(document) - n + 1)
            if list(document[i : i + n]) == list(context[-n:])
        ]
        if found:
            return n, found
    return 0, []


tokens = st.integers(0, 2)
documents = st.lists(st.lists(tokens, min_size=1, max_size=20), min_size=1, max_size=4)


@given(documents=documents, context=st.lists(tokens, min_size=1, max_size=20), width=st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_every_node_is_scored_by_all_that_followed(
    documents: Sequence[Sequence[int]], context: Sequence[int], width: int
) -> None:
    with TemporaryDirectory() as folder:
        build(Path(folder), documents, 3)
        drafter = DatastoreDrafter([SuffixArray(folder)], samples=1000)
        tree = draft(drafter, context, Budget(3, 9, width=width, p_split=0.0))
        drafter.close()
    length, followed = brute_force(documents, context)
    firsts = Counter(rest[0] for rest in followed if rest)
    assert bool(len(tree)) == bool(firsts)
    if width == 1 and firsts:
        assert firsts[tree.tokens[0]] == max(firsts.values())
    for node in range(len(tree)):
        path = tree.path_tokens(node)
        depth = len(path) - 1
        alive = [rest for rest in followed if rest[:depth] == path[:-1]]
        agreeing = sum(rest[depth : depth + 1] == path[-1:] for rest in alive)
        assert agreeing > 0
        assert tree.score[node] == pytest.approx(
            agreeing / (len(alive) + (HALF_TRUST_LENGTH / (length + depth)) ** 2)
        )


def test_a_corpus_of_damaged_text_drafts_nothing_that_is_no_token(tmp_path: Path) -> None:
    build(tmp_path, TEXT, V)
    index = json.loads((tmp_path / INDEX).read_text())
    (tmp_path / INDEX).write_text(json.dumps(index | {"n_vocab": 4}))
    drafter = DatastoreDrafter([SuffixArray(tmp_path)])
    assert draft(drafter, [0, 1, 2, 3]) == EMPTY  # 4 would follow
    drafter.close()
