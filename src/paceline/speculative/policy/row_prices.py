"""What rows of the next pass cost in tokens, and how many draft nodes are worth them."""

from __future__ import annotations

from collections.abc import Sequence


class RowPrices:
    """The prices of one pass.

    pace, curve: what passes take (PassCosts.paced).
    rows: those of the pass without drafts; end: with the longest drafts.
    rate: tokens that a second has to bring."""

    __slots__ = ("_least", "curve", "end", "pace", "rate", "rows")

    def __init__(
        self, pace: float = 1.0, curve: Sequence[float] = (), rows: int = 1, end: int = 1, rate: float = 0.0
    ) -> None:
        self.pace, self.curve, self.rows, self.end, self.rate = pace, curve, rows, end, rate
        self._least = 0.0

    @property
    def least(self) -> float:
        """The reach probability of a guess that could not pay for a row were it twice as likely, and the row
        the best bargain on the curve."""
        if not self._least:
            curve, rows = self.curve, self.rows
            row = min((curve[n] - curve[rows]) / (n - rows) for n in range(rows + 1, self.end + 1))
            self._least = max(0.01, 0.5 * self.rate * self.pace * row)
        return self._least

    def worth(self, reach_probability: Sequence[float]) -> float:
        """Return the worth of a draft in tokens."""
        return self.best(sorted([-s for s in reach_probability]), self.rows)[1]

    def best(self, minus_reach: Sequence[float], rows: int) -> tuple[int, float]:
        """Return how many nodes are worth their rows beside `rows` others, and their worth in tokens. Each
        number is tried, since the curve has steps.

        minus_reach: minus the reach probabilities, ascending, so that the likeliest come first."""
        curve, price = self.curve, self.rate * self.pace  # tokens that 1.0 of the curve has to bring
        best, most, gained, base = 0, 0.0, 0.0, price * curve[rows]
        for n, s in enumerate(minus_reach[: self.end - rows], 1):
            gained -= s
            worth = gained + base - price * curve[rows + n]
            if worth > most:
                best, most = n, worth
        return best, most
