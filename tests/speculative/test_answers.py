"""`place`: which row of a forward is meant, and that nobody reads one that is gone."""

import pytest

from paceline.speculative.errors import ContractError
from paceline.speculative.forward_output import place


def test_a_row_is_placed_among_those_computed() -> None:
    assert [place(row, range(3, 6)) for row in (3, 4, 5)] == [0, 1, 2]


@pytest.mark.parametrize("row", [-1, 2, 6])
def test_a_row_that_was_not_computed_is_refused(row: int) -> None:
    with pytest.raises(ContractError, match=f"row {row} is not among"):
        place(row, range(3, 6))


def test_an_answer_is_refused_after_the_next_forward() -> None:
    with pytest.raises(ContractError, match="overwritten"):
        place(3, range(3, 6), is_last=False)
