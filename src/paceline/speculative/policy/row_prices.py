"""The price of rows in the next pass, and the number of draft nodes worth it."""

from __future__ import annotations

from collections.abc import Sequence


class RowPrices:
    """The prices of one pass.
    pace, curve: pass costs (PassCosts.pace_factor).
    rows: rows of the pass without drafts; end: with the longest drafts.
    rate: tokens that a second has to bring."""

    __slots__ = ("_least", "curve", "end", "pace", "rate", "rows")

    def __init__(
        self, pace: float = 1.0, curve: Sequence[float] = (), rows: int = 1, end: int = 1, rate: float = 0.0
    ) -> None:
        self.pace, self.curve, self.rows, self.end, self.rate = pace, curve, rows, end, rate
        self._least = 0.0

    @property
    def least(self) -> float:
        """Half the reach probability that pays for the cheapest row: the limit for drafting a guess."""
        if not self._least:
            curve, rows = self.curve, self.rows
            row = min((curve[n] - curve[rows]) / (n - rows) for n in range(rows + 1, self.end + 1))
            self._least = max(0.01, 0.5 * self.rate * self.pace * row)
        return self._least

    def worth(self, reach_probability: Sequence[float]) -> float:
        """Return the worth of a draft in tokens."""
        return self.best(sorted([-s for s in reach_probability]), self.rows)[1]

    def best(self, minus_reach: Sequence[float], rows: int) -> tuple[int, float]:
        """Return how many nodes to verify beside `rows` other rows, and their worth in tokens.
        Every number is tried, as the curve has steps. minus_reach: negated reach probabilities, ascending."""
        curve, price = self.curve, self.rate * self.pace  # in tokens per unit of the curve
        best, most, gained, base = 0, 0.0, 0.0, price * curve[rows]
        for n, s in enumerate(minus_reach[: self.end - rows], 1):
            gained -= s
            worth = gained + base - price * curve[rows + n]
            if worth > most:
                best, most = n, worth
        return best, most
