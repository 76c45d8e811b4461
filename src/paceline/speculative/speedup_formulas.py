"""Expected speedup of speculative decoding if tokens are accepted independently with equal probability.

The letters are those of Leviathan et al. (arXiv:2211.17192), with K for their gamma:
  a   acceptance: the probability that a drafted token is accepted if all before it were
  K   n_draft: drafted tokens per step (at least 1)
  c   cost: of drafting one token, relative to a target pass over one row
  v   verify: cost of a pass over K + 1 rows, relative to a pass over one row
Speedups are relative to plain decoding.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

# Quartiles of the acceptance of MTP layers in 70 public runs of one model (llama.cpp's draft-mtp, 2026).
MTP_ACCEPTANCE = 0.70, 0.85
BISECTION_RESOLUTION = 2**40  # resolution between 0 and 1


def acceptance(accepted: int, rejected: int) -> float | None:
    """Return the maximum likelihood estimate of `a`, None without any verified draft.
    accepted: accepted tokens. rejected: chains that were not accepted whole."""
    judged = accepted + rejected
    return accepted / judged if judged else None


def expected_tokens(acceptance: float, n_draft: int) -> float:
    """Return the tokens a step emits: 1 + a + ... + a^K (Leviathan et al., equation 1)."""
    return sum(acceptance**i for i in range(n_draft + 1))


def speedup(acceptance: float, n_draft: int, cost: float, verify: float = 1.0) -> float:
    """Return (1 - a^(K+1)) / ((1 - a)(cK + v)): theorem 3.8 with the real cost of verification."""
    return expected_tokens(acceptance, n_draft) / (cost * n_draft + verify)


def best_n_draft(
    acceptance: float, cost: float, verify: Callable[[int], float] | None = None, longest: int = 64
) -> int:
    """Return the K up to `longest` with the largest speedup; 0 if plain decoding is fastest.
    verify: relative cost of a pass by rows; None if all passes cost the same."""
    gains = {0: 1.0}
    for k in range(1, longest + 1):
        v = 1.0 if verify is None else verify(k + 1)
        gains[k] = speedup(acceptance, k, cost, v)
    return max(gains, key=gains.__getitem__)  # of ties the shortest draft


def expected_gains(cost: float, verify: Callable[[int], float], longest: int) -> tuple[float, float]:
    """Return the speedups by MTP layers that nobody has run yet, at MTP_ACCEPTANCE and the best length."""
    gains = []
    for a in MTP_ACCEPTANCE:
        k = best_n_draft(a, cost, verify, longest)
        gains.append(speedup(a, k, cost, verify(k + 1)) if k else 1.0)
    low, high = gains
    return low, high


def break_even(verify: float, n_draft: int) -> float | None:
    """Return the acceptance at which free drafts neither gain nor lose: the root of 1 + a + ... + a^K = v.
    Returns None if the pass costs more than K + 1 single passes."""
    if verify > n_draft + 1:
        return None
    steps = range(BISECTION_RESOLUTION)
    return bisect_left(steps, verify, key=lambda i: expected_tokens(i / len(steps), n_draft)) / len(steps)


def distinct_experts(experts: int, used: int, rows: int) -> float:
    """Return the expected number of experts that a pass over B rows reads: E (1 - (1 - k/E)^B)."""
    return experts * (1.0 - (1.0 - min(1.0, used / experts)) ** rows)
