"""Curves that a machine can have, as some have; and those of a bad minute."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.speculative.policy.cost_cells import SINGLES, STEEP, fault

# Measured: AVX-512, where three rows cost more than four; a type that is not repacked; a draft on two cores.
TRUE = [
    {1: 1.0, 2: 1.79, 3: 2.42, 4: 1.83, 5: 2.42, 7: 3.64, 8: 2.82, 12: 4.0, 16: 4.2, 32: 8.0},
    {1: 13.2, 2: 23.1, 3: 32.0, 4: 36.5, 8: 61.6, 16: 107.1, 64: 393.0},
    {1: 1.24, 2: 1.79, 3: 1.66, 4: 1.73, 5: 1.95, 6: 2.91, 7: 1.81, 8: 2.4, 16: 3.01},
    {1: 0.3, 2: 0.9, 4: 1.0},  # a faster way for the single row alone
    {8: 3.0},
]


@pytest.mark.parametrize("cells", TRUE)
def test_what_machines_have_is_believed(cells: dict[int, float]) -> None:
    assert fault({256: cells}) == ""


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({1: 0.99, 2: 300.0, 3: 1.8}, "after 256 tokens 2 rows take 303 times what one row does"),
        ({1: 1.0, 2: 1.5, 4: 40.0}, "4 rows take 40 times what one row does"),
        ({1: 4.0, 2: 1.0, 8: 1.1}, "one row takes 4 times what 2 rows do"),
        ({1: 1.0, 6: 9.0, 7: 2.0, 8: 1.5}, "6 rows take 6 times what 8 rows do"),
    ],
)
def test_what_no_machine_has_is_told_in_words(cells: dict[int, float], words: str) -> None:
    assert words in fault({64: TRUE[0], 256: cells})


def test_one_row_takes_no_less_than_its_weights_take_to_be_read() -> None:
    assert fault({256: {1: 8e-5, 2: 1e-4}}) == ""
    said = fault({256: {1: 8e-5, 2: 1e-4}}, fastest=0.0018)
    assert said == "one row takes 0.08 ms, and to read the weights at least 1.8 ms"
    assert fault({256: {1: 0.002, 2: 0.003}}, fastest=0.0018) == ""


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20), st.integers(1, 64), st.floats(10.0, 1e6))
def test_rows_that_cost_up_to_a_pass_each_are_believed_and_one_that_is_far_off_never(
    steps: list[float], n: int, far: float
) -> None:
    seconds = [1.0]
    for step in steps:
        seconds.append(seconds[-1] + step)
    cells = dict(enumerate(seconds, 1))
    assert all(low <= high for low, high in pairwise(seconds))
    assert fault({256: cells}) == ""
    n = min(n, len(cells))
    dear = far * SINGLES * n if n > 1 else far * STEEP * len(cells)
    assert fault({256: cells | {n: dear}}) != ""
