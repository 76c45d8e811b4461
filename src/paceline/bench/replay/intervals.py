"""How sure a ratio of sums over requests is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.bench.record import Interval

RESAMPLES = 2000
AT_ONCE = 1 << 20  # numbers drawn in one piece; all at once would take gigabytes for a day's traffic


def ratios(
    columns: Sequence[Sequence[float]], groups: Sequence[int], pairs: Sequence[tuple[int, int]], seed: int = 0
) -> list[Interval]:
    """For each of `pairs` the sum of one column over that of another, with its 95% interval.

    columns: each with one number a request. groups: which requests belong together. A percentile bootstrap
    that draws requests anew, those of a conversation together: they are about one text. All ratios are of the
    same draws. With one conversation each is that one value.
    """
    numbers = {group: i for i, group in enumerate(dict.fromkeys(groups))}
    table = np.zeros((len(numbers), len(columns)))
    np.add.at(table, [numbers[group] for group in groups], np.array(columns, dtype=np.float64).T)
    sums, drawn = table.sum(axis=0), _drawn(table, seed)
    out = []
    for over, under in pairs:
        low, high = np.quantile(drawn[:, over] / drawn[:, under], [0.025, 0.975])
        out.append(Interval(float(sums[over] / sums[under]), float(low), float(high)))
    return out


def _drawn(table: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """[resamples, columns]: the sums of rows drawn anew."""
    rng, n = np.random.default_rng(seed), len(table)
    most = max(1, AT_ONCE // n)
    sizes = [min(most, RESAMPLES - done) for done in range(0, RESAMPLES, most)]
    return np.concatenate([table[rng.integers(n, size=(size, n))].sum(axis=1) for size in sizes])
