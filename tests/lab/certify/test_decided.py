"""Ends of texts and ties, on held answers: right ones pass, and wrong ones are counted."""

from __future__ import annotations

import pytest

from paceline.core.settings import Drafting
from paceline.lab.certify.decided import misjudged_ties, overrun
from planted import CHAIN, GREEDY, Mistake, V, mistakes, toy_loop

MISTAKES = mistakes(V)


@pytest.mark.parametrize("drafting", [CHAIN, GREEDY], ids=["sampled", "greedy"])
def test_a_right_loop_ends_its_texts_and_breaks_ties_as_plain_decoding_does(drafting: Drafting) -> None:
    loop, places = toy_loop(drafting)
    assert overrun(loop, places[:8], 0) == 0
    assert misjudged_ties(loop, places) == 0


def wrong(name: str) -> tuple[int, int]:
    mistake: Mistake = MISTAKES[name]
    loop, places = toy_loop(mistake.drafting, mistake.change)
    with mistake.plant():
        return overrun(loop, places[:8], 0), misjudged_ties(loop, places)


def test_texts_that_go_on_behind_their_end_are_counted() -> None:
    overruns, ties = wrong("an end of text inside a draft that is not cut there")
    assert overruns > 0
    assert ties == 0


def test_ties_broken_towards_the_highest_id_are_counted() -> None:
    overruns, ties = wrong("ties broken towards the highest id")
    assert overruns == 0
    assert ties > 0
