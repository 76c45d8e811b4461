"""The best draft on a curve: against brute force, laws, and what was counted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core import theory
from paceline.core.cost import LEAST_SECONDS, Cost, Costs
from paceline.lab.advice import speed
from paceline.lab.advice.speed import PLAIN, SECOND, SURE, UNSURE, Best, Kind, of_a_copier, of_a_model

ROWS, DEPTH = 64, 256
acceptances = st.floats(0.02, 0.98)
# Jagged, as kernels are: no law about how rows follow each other.
steps = st.lists(st.floats(0.0, 1.5), min_size=ROWS - 1, max_size=ROWS - 1)


def costing(passes: Sequence[float], token: float = 0.0, other: float = 0.0) -> Costs:
    """passes: seconds by rows, from 0 on. token: of a drafted one."""
    draft = Cost.flat(token) if token > LEAST_SECONDS else None
    return Costs(Cost({DEPTH: dict(enumerate(passes[1:], 1))}), draft, other)


def best(kinds: list[Kind], costs: Costs) -> Best:
    return speed.best(kinds, costs, DEPTH)


def curve(steps: list[float]) -> tuple[float, ...]:
    """The sums of the steps, but every third row costs no more than the one before it, and no number of them
    more than one by one."""
    out = [0.0, 1.0]
    for i, step in enumerate(steps):
        out.append(min(out[-1] + (0.0 if i % 3 == 2 else step), float(len(out))))
    return tuple(out)


@given(a=acceptances, token=st.floats(0.0, 1.0))
def test_where_every_row_costs_what_a_pass_does_nothing_is_drafted(a: float, token: float) -> None:
    linear = costing([float(n) for n in range(ROWS + 1)], token)
    assert best(of_a_model(a), linear) == PLAIN
    assert best(of_a_copier(a, a), linear) == PLAIN
    assert speed.needed(linear, DEPTH) is None


@settings(max_examples=40)
@given(a=acceptances, steps=steps, token=st.floats(0.0, 0.5), other=st.floats(0.0, 0.3))
def test_no_draft_of_any_shape_is_faster(a: float, steps: list[float], token: float, other: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speed, "LONGEST", 3)
        passes = curve(steps)
        found = best(of_a_model(a), costing(passes, token, other))
    assert found.speedup == pytest.approx(max(1.0, fastest(a, passes, token, other)), rel=1e-6)


def fastest(a: float, passes: tuple[float, ...], token: float, other: float) -> float:
    """Every set of nodes for a sure first token, with every one for an unsure."""
    sure, unsure = max(SURE, a), min(UNSURE, a)
    share = 1.0 if a >= SURE else (a - unsure) / (sure - unsure)
    tables = []
    for first in (sure, unsure):
        shapes = []
        for k in range(4):
            for m in range(k + 1):
                for beside in combinations(range(k), m):
                    tokens, reached = 1.0, 1.0
                    for depth in range(k):
                        right = first if depth == 0 else a
                        if depth in beside:
                            tokens += reached * (1 - right) * SECOND * min(1.0, right / UNSURE)
                        reached *= right
                        tokens += reached
                    shapes.append((tokens, passes[1 + k + m] + max(k, 1) * token + other))
        tables.append(shapes)
    plain = passes[1] + other
    return max(
        plain * (share * x + (1 - share) * y) / (share * s + (1 - share) * t)
        for (x, s), (y, t) in product(*tables)
    )


@settings(max_examples=40)
@given(low=acceptances, more=st.floats(0.0, 0.5), steps=steps, token=st.floats(0.0, 0.5))
def test_a_higher_acceptance_never_lowers_the_speed(
    low: float, more: float, steps: list[float], token: float
) -> None:
    costs, high = costing(curve(steps), token), min(0.98, low + more)
    assert best(of_a_model(high), costs).speedup >= best(of_a_model(low), costs).speedup - 1e-9
    assert best(of_a_copier(0.5, high), costs).speedup >= best(of_a_copier(0.5, low), costs).speedup - 1e-9
    assert best(of_a_copier(high, 0.7), costs).speedup >= best(of_a_copier(low, 0.7), costs).speedup - 1e-9


@settings(max_examples=40)
@given(a=acceptances, steps=steps, token=st.floats(0.0, 0.5), more=st.floats(0.0, 0.5))
def test_a_dearer_draft_is_never_faster(a: float, steps: list[float], token: float, more: float) -> None:
    passes, kinds = curve(steps), of_a_model(a)
    dear, cheap = best(kinds, costing(passes, token + more)), best(kinds, costing(passes, token))
    assert dear.speedup <= cheap.speedup + 1e-9


@given(a=acceptances)
def test_first_tokens_are_right_as_often_as_all_tokens(a: float) -> None:
    kinds = of_a_model(a)
    assert sum(kind.share for kind in kinds) == pytest.approx(1.0)
    assert sum(kind.share * kind.survival[0] for kind in kinds) == pytest.approx(a)


@pytest.mark.parametrize(("n_draft", "counted"), [(2, 1.34), (3, 1.76), (4, 2.07), (8, 2.84), (16, 3.32)])
def test_the_embedded_pair_keeps_as_many_tokens_as_were_counted(n_draft: int, counted: float) -> None:
    """docs/log/peers.md: drafts of a fixed length, 300M."""
    kept = sum(kind.share * kind.survival[:n_draft].sum() for kind in of_a_model(0.77))
    assert kept == pytest.approx(counted, rel=0.05)


def test_drafts_end_at_the_edges_of_the_curve() -> None:
    passes = (0.0, *(1.0 if n <= 4 else 5.0 if n <= 8 else 20.0 for n in range(1, ROWS + 1)))
    assert best(of_a_model(0.9, tree=False), costing(passes)).n_draft == 3
    # Where the tile has room and nothing is left that is likely, the second guess fills it.
    assert best(of_a_model(0.5), costing(passes)).width == 2


@pytest.mark.parametrize("per_row", [0.05, 0.2, 0.4])
def test_what_is_needed_is_where_drafting_begins_to_pay(per_row: float) -> None:
    costs = costing([0.0, *(1.0 + per_row * n for n in range(ROWS))], 0.02)
    needed = speed.needed(costs, DEPTH)
    assert needed is not None
    assert best(of_a_model(needed + 0.01), costs).n_draft > 0
    assert best(of_a_model(needed - 0.01), costs) == PLAIN


def test_break_even_is_where_drafts_of_that_length_neither_gain_nor_lose() -> None:
    costs = costing([0.0, *(1.0 + 0.1 * n for n in range(ROWS))], 0.05, 0.01)
    for k, a in speed.break_evens(costs, DEPTH).items():
        assert a is not None
        took = costs.target.seconds(1 + k, DEPTH) + k * 0.05 + 0.01
        assert theory.expected_tokens(a, k) * (1.0 + 0.01) / took == pytest.approx(1.0)


def test_passes_over_several_rows_that_were_faster_than_one_were_measured_badly() -> None:
    passes, token = speed.seconds(Costs(Cost({DEPTH: {1: 2.0, 2: 1.0, 4: 3.0}}), Cost.flat(0.25)), DEPTH)
    assert (passes[:5].tolist(), token) == ([0.0, 2.0, 2.0, 3.0, 3.0], 0.25)
