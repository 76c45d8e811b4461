"""Flash attention and none take turns, and the faster at decoding is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from paceline.core.tree import DraftTree
from paceline.engines.toy import ToyTarget
from paceline.lab.attention_trial import DEPTH, ROUNDS, ROWS, TURN, Attention, best, tried

V, CONTEXT = 6, 2048


class Timed:
    """A toy's passes take what `row` and `pass_` say; all passes of the test go by one clock."""

    now = 0.0

    def __init__(self, pass_: float, row: float, log: list[str], name: str) -> None:
        self._toy = ToyTarget(V, n_ctx=CONTEXT)
        self._pass, self._row, self._log, self._name = pass_, row, log, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._toy, name)

    def forward(self, batch: Sequence[tuple[Any, DraftTree]], want: Any) -> Any:
        Timed.now += self._pass + self._row * len(batch[0][1])
        self._log.append(self._name)
        return self._toy.forward(batch, want)


def test_they_take_turns_and_the_medians_are_told() -> None:
    log: list[str] = []
    ticks: list[str] = []
    targets: dict[bool, Any] = {True: Timed(2.0, 1.0, log, "on"), False: Timed(1.0, 0.5, log, "off")}
    found = tried(targets, ticks.append, lambda: Timed.now)
    assert [(one.flash, one.depth, one.rows) for one in found] == [(True, DEPTH, ROWS), (False, DEPTH, ROWS)]
    assert [(one.token, one.draft) for one in found] == [(2.0, 2.0 + ROWS - 1), (1.0, 1.0 + (ROWS - 1) / 2)]
    assert found[0].prompt == pytest.approx(DEPTH / 2.0)
    assert best(found).flash is False
    assert ticks == [TURN] * 2 * ROUNDS
    turns = [log[i] for i in range(0, len(log), 3)]  # of three passes each
    assert turns == ["on", "off", "off", "on", "on", "off"]


@pytest.mark.parametrize(
    ("on", "off", "flash"),
    [
        ((1.0, 4.0), (0.7, 2.0), False),
        ((1.0, 4.0), (1.0, 3.95), True),  # alike
        ((1.0, 2.0), (1.1, 3.0), True),
        ((1.0, 4.0), (1.1, 2.0), False),  # drafted for it gains more than it loses plainly
    ],
)
def test_the_faster_at_decoding_is_named_and_of_equals_flash_attention(
    on: tuple[float, float], off: tuple[float, float], flash: bool
) -> None:
    found = [Attention(True, 512, 8, 100.0, *on), Attention(False, 512, 8, 90.0, *off)]
    assert best(found).flash is flash
    assert best(found[::-1]).flash is flash
