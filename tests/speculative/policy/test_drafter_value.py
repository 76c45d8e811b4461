"""When drafters are called: costly useless ones are left out, and found again when useful."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.speculative.policy.ledger import (
    MAX_PROBING_SHARE,
    TRIAL_CALLS,
    BreakEvenReason,
    DrafterValue,
    DraftingSummary,
    break_even_reason,
)
from paceline.speculative.speedup_formulas import expected_tokens
from stage import Prompter, stage

LINE = {n: 1 + 0.15 * (n - 1) for n in range(1, 65)}
TOKENS = 8000


def test_a_drafter_is_called_before_it_is_judged() -> None:
    gain = DrafterValue()
    for _ in range(TRIAL_CALLS):
        assert gain.is_due(0, 100.0)
        gain.update(0, 0.0, 1.0, 2)
    assert not gain.is_due(0, 100.0)
    assert (gain.seconds, gain.level_seconds) == (1.0, 0.5)


def test_a_row_of_nothing_does_not_keep_out_who_has_gained_something() -> None:
    gain = DrafterValue(seconds=0.05, calls=9)
    for tokens in [0.5, 0.0, 0.0, 0.0] * 20 + [0.0] * 40:
        gain.update(0, tokens, 0.05, 1)
        assert gain.is_due(0, 1.0)
    for _ in range(200):  # but for good it does
        gain.update(0, 0.0, 0.05, 1)
    assert not gain.is_due(0, 1.0)


def test_a_hiccup_does_not_keep_it_out_for_long() -> None:
    """At most four times the usual time counts."""
    gain = DrafterValue()
    for _ in range(20):
        gain.update(0, 0.0, 1.0, 1)
    gain.update(0, 0.0, 1000.0, 1)
    assert gain.seconds == pytest.approx(1.0 + 3 / 8)


@given(seconds=st.floats(0.01, 10.0), passes=st.lists(st.floats(0.0, 20.0), max_size=60))
def test_one_that_does_not_pay_is_called_for_its_share_of_time(seconds: float, passes: list[float]) -> None:
    """Credit does not accumulate over a long time."""
    gain = DrafterValue(tokens=[0.0] * 7, seconds=seconds, calls=9)
    spent, called = 0.0, 0
    for pass_ in passes:
        gain.add_credit(pass_)
        spent += pass_
        if gain.is_due(0, 1.0):
            gain.begin_trial(0, 1.0)
            called += 1
    assert called * seconds <= MAX_PROBING_SHARE * spent + 1e-9
    gain.add_credit(1e9)
    assert gain.is_due(0, 1.0)
    gain.begin_trial(0, 1.0)
    assert not gain.is_due(0, 1.0)


@pytest.mark.parametrize("seconds", [0.05, 0.3, 1.0, 5.0])
def test_a_dear_drafter_that_is_never_right_costs_a_hundredth_of_the_time(seconds: float) -> None:
    """The limit excludes the first calls, which show no use (PRIOR_OUTCOMES optimistic outcomes)."""
    useless = Prompter("useless", lambda at: 0.0, seconds, score=0.7)
    play = stage(LINE, [useless], TOKENS).perform()
    first = max(TRIAL_CALLS, 40 if seconds < 0.1 else 20 if seconds < 1.0 else 0)
    assert useless.spent - first * seconds <= MAX_PROBING_SHARE * play.clock.now
    guesses = 4.0  # passes, until they are known to be wrong
    assert play.clock.now <= TOKENS * (1 + MAX_PROBING_SHARE) + first * seconds + guesses


def test_one_that_is_cheap_is_called_at_every_step() -> None:
    cheap = Prompter("cheap", lambda at: 0.0, 0.001, score=0.7)
    stage(LINE, [cheap], 500).perform()
    assert cheap.asked == list(range(499))  # the last token leaves no room for a draft


@pytest.mark.parametrize(("seconds", "within"), [(0.05, 600), (0.3, 800), (1.0, 2400)])
def test_one_that_has_become_useful_is_found_again(seconds: float, within: int) -> None:
    """It is right 9 times in 10 after 6000 tokens, and called at 4 steps in 5 `within` tokens later."""
    change = 6000
    late = Prompter("late", lambda at: 0.9 * (at >= change), seconds, score=0.7)
    play = stage(LINE, [late], change + within + 1000)
    steps = [request.n_tokens for request, _ in play.steps()]
    after = [n for n in steps if n > change + within]
    assert sum(at > change + within for at in late.asked) >= 0.8 * len(after)
    assert len(after) <= 400  # 1000 tokens


def test_of_two_the_dear_one_is_asked_where_the_cheap_one_is_unsure() -> None:
    """The cheap drafter knows half of the text and scores it well."""
    knows = [at // 50 % 2 == 0 for at in range(20_000)]
    cheap = Prompter("cheap", lambda at: 0.97 if knows[at] else 0.1, 0.0)
    dear = Prompter("dear", lambda at: 0.9, 1.0, score=0.9)
    stage(LINE, [cheap, dear], 6000).perform()
    late = [at for at in dear.asked if at > 2000]
    where_sure = sum(knows[at] for at in late)
    assert where_sure <= 0.05 * len(late)
    assert len(late) > 300


# Seconds by rows: the least acceptance is asked for by four rows.
TILE = [0.0, 1.0, 1.79, 2.42, 1.83, 2.42]
ANEW = " (paceline doctor -m MODEL --refresh measures that anew)"


def test_a_reason_names_the_rows_that_ask_for_the_least() -> None:
    why = break_even_reason(TILE, 0.41)
    assert (why.rows, why.ratio, why.measured) == (4, 1.83, 0.41)
    assert why.break_even == pytest.approx(0.4834, abs=0.0001)
    assert str(why) == "4 rows cost 1.8x one here; break-even acceptance 0.48, measured there 0.41"
    assert str(break_even_reason(TILE, None)) == "4 rows cost 1.8x one here; break-even acceptance 0.48"


def test_where_no_acceptance_is_enough_it_says_so() -> None:
    why = break_even_reason([0.0, 1.0, 2.5, 4.0], 0.99)
    assert why.break_even is None
    assert str(why) == "2 rows cost 2.5x one here, more than so many tokens decoded singly" + ANEW


@given(st.lists(st.floats(0.1, 9.0), min_size=2, max_size=8), st.integers(0, 1000))
def test_no_smaller_acceptance_breaks_even_at_any_length(seconds: list[float], per_mille: int) -> None:
    """The best free draft beats plain decoding exactly if the acceptance is above the reason's."""
    why = break_even_reason([0.0, *seconds], None)
    a = per_mille / 1000
    gains = [
        expected_tokens(a, rows - 1) * seconds[0] / seconds[rows - 1] for rows in range(2, len(seconds) + 1)
    ]
    if why.break_even is None:
        assert max(gains) < 1 + 1e-9
    elif abs(a - why.break_even) > 1e-6:
        assert (max(gains) >= 1) == (a > why.break_even)


@pytest.mark.parametrize(
    ("account", "why"),
    [
        (DraftingSummary(), ""),
        (DraftingSummary(10, 2, 2, break_even_reason(TILE, None)), ""),  # drafted for most of the time
        (
            DraftingSummary(100, 10, 40, break_even_reason(TILE, 0.3)),
            "50% of the steps: 4 rows cost 1.8x one here; break-even acceptance 0.48, measured there 0.30",
        ),
        (
            DraftingSummary(100, 60, 20, break_even_reason(TILE, 0.3)),
            "no drafter had a guess at 60%",
        ),
        (
            DraftingSummary(100, 0, 96, break_even_reason([0.0, 1.0, 1.04], None), braked=80, refused=16),
            "drafting has cost more time than it saved, and pauses to make up for it",
        ),
        (
            DraftingSummary(100, 0, 100, break_even_reason(TILE, None), braked=100),
            "looking for drafts has cost more time than it saved, and pauses to make up for it",
        ),
        (
            DraftingSummary(100, 0, 96, break_even_reason(TILE, None), refused=80),
            "calling the drafter costs more time than its guesses save",
        ),
    ],
)
def test_an_account_is_one_line_where_most_steps_were_not_drafted_for(
    account: DraftingSummary, why: str
) -> None:
    assert account.why.endswith(why)
    assert bool(account.why) == bool(why)


def test_a_summary_as_data() -> None:
    said = json.loads(json.dumps(DraftingSummary(4, 1, 3, BreakEvenReason(2, 1.5, 0.5, None)).as_dict()))
    assert (said["steps"], said["silent"], said["declined"]) == (4, 1, 3)
    assert said["reason"] == {"rows": 2, "ratio": 1.5, "break_even": 0.5, "measured": None}
    assert DraftingSummary().as_dict()["reason"] is None
