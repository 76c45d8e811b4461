"""Draft trees."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groves import closed, trees
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain

FORK = DraftTree(
    tokens=(7, 8, 9, 8),
    parents=(ROOT, 0, 0, ROOT),
    score=(0.5, 0.5, 0.25, 0.125),
    source=("a", "a", "b", "b"),
)


def test_a_chain_is_a_narrow_tree() -> None:
    tree = chain([4, 5, 6], "a", score=[0.5, 0.5, 0.5])
    assert tree.parents == (ROOT, 0, 1)
    assert tree.depths() == [1, 2, 3]
    assert tree.reach_probability == (0.5, 0.25, 0.125)
    assert tree.q is None
    assert chain([], "a") is EMPTY


def test_survival_is_the_product_along_the_path_unless_given() -> None:
    assert FORK.reach_probability == (0.5, 0.25, 0.125, 0.125)
    known = DraftTree((1,), (ROOT,), (0.9,), ("a",), reach_probability=(0.4,))
    assert known.reach_probability == (0.4,)


def test_a_path_leads_from_the_root_down() -> None:
    FORK.check_path([])
    FORK.check_path([0, 2])
    for wrong in ([1], [0, 3], [0, 0]):
        with pytest.raises(AssertionError, match="does not follow"):
            FORK.check_path(wrong)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"tokens": (1, 2)}, "lengths differ"),
        ({"parents": (0,)}, "parents come first"),
        ({"parents": (-2,)}, "parents come first"),
        ({"q": ()}, "one entry per node"),
    ],
)
def test_arrays_that_are_no_tree_are_refused(fields: dict[str, tuple[int, ...]], complaint: str) -> None:
    valid = {"tokens": (1,), "parents": (ROOT,), "score": (1.0,), "source": ("a",)}
    with pytest.raises(AssertionError, match=complaint):
        DraftTree(**(valid | fields))  # type: ignore[arg-type]  # wrong on purpose


def test_a_path_over_a_probe_is_refused() -> None:
    tree = DraftTree((1, 2), (ROOT, ROOT), (1.0, 1.0), ("a", "a"), probe=frozenset({0}))
    tree.check_path([1])
    with pytest.raises(AssertionError, match="probe"):
        tree.check_path([0])


@given(tree=trees(), tokens=st.lists(st.integers(0, 3), max_size=5))
def test_a_tree_is_followed_along_given_tokens_as_far_as_it_has_them(
    tree: DraftTree, tokens: list[int]
) -> None:
    path = tree.path_of(tokens)
    tree.check_path(path)
    assert [tree.tokens[node] for node in path] == tokens[: len(path)]
    if len(path) < len(tokens):
        last = path[-1] if path else ROOT
        assert tokens[len(path)] not in [tree.tokens[node] for node in tree.children(last)]


@given(tree=trees(), data=st.data())
def test_what_is_chosen_of_a_tree_are_its_own_paths(tree: DraftTree, data: st.DataObject) -> None:
    nodes = sorted(data.draw(st.sampled_from(list(closed(tree)))))
    some = tree.subset(nodes, [0.5] * len(tree))
    paths = [tree.path_tokens(node) for node in nodes]
    assert [some.path_tokens(node) for node in range(len(some))] == paths
    assert some.depths() == [len(path) for path in paths]
    assert [some.tokens[child] for child in some.children(ROOT)] == [
        path[0] for path in paths if len(path) == 1
    ]
    assert some.score == tuple(tree.score[node] for node in nodes)


def test_probes_and_q_follow_the_nodes_that_are_kept() -> None:
    q = np.array([0.5, 0.5])
    tree = DraftTree(
        (1, 2, 3), (ROOT, ROOT, 1), (1.0,) * 3, ("a",) * 3, q=(None, q, None), probe=frozenset({2})
    )
    kept = tree.filter([False, True, True])
    assert (kept.parents, kept.q, kept.probe) == ((ROOT, 0), (q, None), frozenset({1}))
