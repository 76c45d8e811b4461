"""What is wrong with measured costs: a curve that no machine can have comes from a bad minute."""

from __future__ import annotations

from paceline.speculative.policy.cost_model import Table

# Times what the rows take one by one: some engines have a faster way for the single row, but none so much
# faster.
SINGLES = 3.0
STEEP = 3.0  # times what more rows take: kernels that take rows by eights make seven dearer, not by so much


def fault(table: Table) -> str:
    """Return what no machine can have of these costs, in words; "" where they may be true. (Times that are no
    numbers above 0 are refused by PassCosts.)"""
    for depth, cells in table.items():
        one = cells.get(1)
        for n, seconds in cells.items():
            if one is not None and seconds > SINGLES * n * one:
                return f"after {depth} tokens {_passes(n)} {seconds / one:.0f} times what one row does"
            m = min((m for m in cells if m > n), key=cells.__getitem__, default=n)
            if seconds > STEEP * cells[m]:
                return f"after {depth} tokens {_passes(n)} {seconds / cells[m]:.0f} times what {m} rows do"
    return ""


def _passes(rows: int) -> str:
    return "one row takes" if rows == 1 else f"{rows} rows take"
