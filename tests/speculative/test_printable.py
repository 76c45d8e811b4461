"""Nothing that a terminal would obey."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.speculative.printable import amount, printable, shortened


@given(st.text())
def test_it_is_one_line_of_what_can_be_printed_and_leaves_the_rest(text: str) -> None:
    said = printable(text)
    assert said.isprintable()
    assert printable(said) == said
    if text.isprintable():
        assert said == text


def test_a_quotation_is_cut_where_it_is_long() -> None:
    assert shortened("a\nb") == "a\\nb"
    assert shortened("x" * 300) == "x" * 300
    assert shortened("x" * 301) == "x" * 300 + "..."
    assert shortened("abc", 2) == "ab..."


def test_amounts_are_read_at_a_glance() -> None:
    assert [amount(n) for n in (0, 999, 1000, 4_700_000, 4_683_073_952)] == [
        "0 bytes", "999 bytes", "1.00 kB", "4.70 MB", "4.68 GB"
    ]  # fmt: skip
