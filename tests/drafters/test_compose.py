"""Several drafters in order."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from paceline.core.ports import Budget
from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookup import LookupDrafter, LookupMemory
from paceline.drafters.model import ModelDrafter
from paceline.engines.toy import ToyTarget

V = 6


def test_each_request_is_drafted_for_by_the_first_that_has_something_to_say() -> None:
    drafter = ComposedDrafter([LookupDrafter(2, 3), ModelDrafter(ToyTarget(V), V)])
    repeated, fresh = drafter.open([1, 2, 5, 1, 2], 0), drafter.open([1, 2, 3], 0)
    first, second = drafter.propose([(repeated, Budget(3, 3)), (fresh, Budget(3, 3))])
    assert set(first.source) == {"lookup"}
    assert set(second.source) == {"model"}
    assert drafter.name == "lookup,model"


def test_a_later_drafter_that_cannot_open_leaves_the_earlier_closed() -> None:
    opened: list[LookupMemory] = []

    class Noting(LookupDrafter):
        def open(self, prompt: Sequence[int], seed: int) -> LookupMemory:
            opened.append(super().open(prompt, seed))
            return opened[-1]

    class Full(LookupDrafter):
        def open(self, prompt: Sequence[int], seed: int) -> LookupMemory:
            raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        ComposedDrafter([Noting(), Full()]).open([1, 2], 0)
    assert opened[0].tokens == []
