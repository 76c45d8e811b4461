"""What a policy says for itself, word for word; and the acceptance that a draft needs, by brute force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.speculative.policy.drafting_summary import DraftingSummary, reason
from paceline.speculative.policy.speedup_formulas import expected_tokens

# Seconds by rows: the least acceptance is asked for by four rows.
TILE = [0.0, 1.0, 1.79, 2.42, 1.83, 2.42]
ANEW = " (paceline doctor -m MODEL --again measures that anew)"


def test_a_reason_names_the_rows_that_ask_for_the_least() -> None:
    why = reason(TILE, 0.41)
    assert (why.rows, why.ratio, why.measured) == (4, 1.83, 0.41)
    assert why.break_even == pytest.approx(0.4834, abs=0.0001)
    assert str(why) == "4 rows cost 1.8x one here; break-even acceptance 0.48, measured there 0.41"
    assert str(reason(TILE, None)) == "4 rows cost 1.8x one here; break-even acceptance 0.48"


def test_where_no_acceptance_is_enough_it_says_so() -> None:
    why = reason([0.0, 1.0, 2.5, 4.0], 0.99)
    assert why.break_even is None
    assert str(why) == "2 rows cost 2.5x one here, more than so many tokens decoded singly" + ANEW


def test_guesses_that_would_have_paid_are_not_called_too_bad() -> None:
    said = str(reason([0.0, 1.0, 1.04], 0.9))
    assert said.startswith(
        "2 rows cost 1.0x one here; break-even acceptance 0.04; the first guesses were right"
    )
    assert said.endswith("0.90 of the time, and drafts too short or not believed")


@given(st.lists(st.floats(0.1, 9.0), min_size=2, max_size=8), st.integers(0, 1000))
def test_no_smaller_acceptance_breaks_even_at_any_length(seconds: list[float], per_mille: int) -> None:
    """By trying: at acceptance a the best draft that is free emits as much per second as plain decoding does,
    or more, exactly if a is above what the reason names."""
    why = reason([0.0, *seconds], None)
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
        (DraftingSummary(10, 2, 2, reason(TILE, None)), ""),  # drafted for most of the time
        (
            DraftingSummary(100, 10, 40, reason(TILE, 0.3)),
            "drafting was off at 50% of the steps: 4 rows cost 1.8x one here; break-even acceptance 0.48, "
            "measured there 0.30",
        ),
        (
            DraftingSummary(100, 60, 20, reason(TILE, 0.3)),
            "drafting was off at 80% of the steps: no drafter had a guess at 60%",
        ),
        (
            DraftingSummary(100, 0, 96, reason([0.0, 1.0, 1.04], None), braked=80, refused=16),
            "drafting was off at 96% of the steps: drafting had taken longer than it saved, and waits until "
            "that is made good",
        ),
        (
            DraftingSummary(100, 0, 96, reason(TILE, None), refused=80),
            "drafting was off at 96% of the steps: calling the drafter takes longer than its guesses save",
        ),
    ],
)
def test_an_account_is_one_line_where_most_steps_were_not_drafted_for(
    account: DraftingSummary, why: str
) -> None:
    assert account.why == why
