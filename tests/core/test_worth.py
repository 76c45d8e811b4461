"""What asking a drafter is worth: dear ones that bring nothing are left alone, and found again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.worth import FIRST, LONGEST, PROBING, SHORTEST, SURE, WELCOME, Worth, kind
from stage import Prompter, stage

LINE = {n: 1 + 0.15 * (n - 1) for n in range(1, 65)}
TOKENS = 8000


def test_kinds_of_steps_are_told_apart_by_how_sure_the_draft_is() -> None:
    assert [kind(s) for s in (0.0, 0.3, 0.31, 0.6, 0.75, 0.85, 0.92, 1.0)] == [0, 0, 1, 2, 3, 4, 5, 6]
    assert len(Worth().gain) == 1 + len(SURE)


def test_a_drafter_is_asked_a_few_times_before_it_is_judged() -> None:
    worth = Worth()
    for _ in range(WELCOME):
        assert worth.pays(0, 100.0)
        worth.took(1.0, 2)
        worth.brought(0, 0.0, 100.0, False)
    assert not worth.pays(0, 100.0)
    assert (worth.seconds, worth.level) == (1.0, 0.5)


def test_it_is_judged_by_the_kind_of_step() -> None:
    worth = Worth(asked=WELCOME, seconds=0.3)
    for _ in range(40):
        worth.brought(2, 0.0, 1.0, False)
    assert worth.pays(0, 1.0)
    assert not worth.pays(2, 1.0)


def test_a_row_of_nothing_does_not_put_off_who_has_brought_something() -> None:
    worth = Worth(asked=WELCOME, seconds=0.05)
    for gain in [0.5, 0.0, 0.0, 0.0] * 20 + [0.0] * 40:
        worth.brought(0, gain, 1.0, False)
        assert worth.pays(0, 1.0)
    for _ in range(200):  # but for good it does
        worth.brought(0, 0.0, 1.0, False)
    assert not worth.pays(0, 1.0)


def test_of_the_first_outcomes_it_is_the_mean_with_the_welcome() -> None:
    worth = Worth()
    for gain in (0.0, 0.0, 0.0, 2.0):
        worth.brought(3, gain, 1.0, False)
    assert worth.gain[3] == pytest.approx((FIRST * 1.0 + 2.0) / (FIRST + 4))


def test_a_hiccup_does_not_put_it_off_for_long() -> None:
    """Four times what it usually takes is the most that is believed."""
    worth = Worth()
    for _ in range(20):
        worth.took(1.0, 1)
    worth.took(1000.0, 1)
    assert worth.seconds == pytest.approx(1.0 + 3 / 8)


def test_pauses_grow_with_every_probe_in_vain_and_shrink_with_luck() -> None:
    worth = Worth(asked=WELCOME, seconds=1.0)
    pauses = []
    for _ in range(8):
        worth.brought(0, 0.0, 1.0, True)
        pauses.append(worth.pause)
    assert pauses == [16, 32, 64, 128, 256, 512, 512, 512]
    assert LONGEST == 512
    worth.knew()
    assert worth.pause == 128
    worth.brought(0, 0.0, 1.0, False)  # no probe: it was thought to pay
    assert worth.pause == 128
    worth.brought(0, 2.0, 1.0, True)  # more than it took
    assert worth.pause == SHORTEST
    worth.knew()
    assert worth.pause == SHORTEST


@given(seconds=st.floats(0.01, 10.0), probing=st.floats(0.0, 10.0), spent=st.floats(0.0, 1000.0))
def test_a_probe_is_due_after_its_pause_and_within_its_share_of_time(
    seconds: float, probing: float, spent: float
) -> None:
    worth = Worth(seconds=seconds)
    assert not worth.due(0.0, 1e9)
    worth.waited = SHORTEST
    assert worth.due(probing, spent) == (probing + seconds <= PROBING * spent)


@pytest.mark.parametrize("seconds", [0.05, 0.3, 1.0, 5.0])
def test_a_dear_drafter_that_is_never_right_costs_a_hundredth_of_the_time(seconds: float) -> None:
    """In passes of the target over one row. Beside its welcome, and what it takes to see that it is of no
    use: the token that is hoped for at first counts as FIRST outcomes."""
    useless = Prompter("useless", lambda at: 0.0, seconds, score=0.7)
    play = stage(LINE, [useless], TOKENS).perform()
    first = max(WELCOME, 32 if seconds < 0.1 else 20 if seconds < 1.0 else 0)
    assert useless.spent - first * seconds <= PROBING * play.clock.now
    assert play.clock.now <= TOKENS * (1 + PROBING) + first * seconds
    gaps = [b - a for a, b in pairwise(useless.asked)]
    assert gaps[-4:] == [LONGEST] * 4


def test_one_that_is_cheap_is_asked_at_every_step() -> None:
    cheap = Prompter("cheap", lambda at: 0.0, 0.001, score=0.7)
    stage(LINE, [cheap], 500).perform()
    assert cheap.asked == list(range(499))  # the last token leaves no room for a draft


@pytest.mark.parametrize(("seconds", "within"), [(0.05, 600), (0.3, 800), (1.0, 1200)])
def test_one_that_has_become_useful_is_found_again(seconds: float, within: int) -> None:
    """After 6000 tokens at which it was never right it is so 9 times of 10; from `within` tokens later it is
    asked at four steps in five at least."""
    change = 6000
    late = Prompter("late", lambda at: 0.9 * (at >= change), seconds, score=0.7)
    play = stage(LINE, [late], change + within + 1000)
    steps = [request.n_tokens for request, _ in play.steps()]
    after = [n for n in steps if n > change + within]
    assert sum(at > change + within for at in late.asked) >= 0.8 * len(after)
    assert len(after) <= 400  # 1000 tokens


def test_of_two_the_dear_one_is_asked_where_the_cheap_one_is_unsure() -> None:
    """The cheap one knows half of the text, and says which."""
    knows = [at // 50 % 2 == 0 for at in range(20_000)]
    cheap = Prompter("cheap", lambda at: 0.97 if knows[at] else 0.1, 0.0)
    dear = Prompter("dear", lambda at: 0.9, 1.0, score=0.9)
    stage(LINE, [cheap, dear], 6000).perform()
    late = [at for at in dear.asked if at > 2000]
    where_sure = sum(knows[at] for at in late)
    assert where_sure <= 0.05 * len(late)
    assert len(late) > 300
