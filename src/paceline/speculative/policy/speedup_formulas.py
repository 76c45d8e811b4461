"""What speculative decoding should gain, were tokens accepted independently with the same chance.

The letters of Leviathan et al. (arXiv:2211.17192), with K for their gamma:
  a   acceptance: the chance that a drafted token is kept, given that all before it were (0 to 1)
  K   n_draft: drafted tokens a step (at least 1)
  c   cost: of drafting one token, over that of a pass of the target over one row
  v   verify: cost of a pass over K + 1 rows, over that of a pass over one row
Speedups are over plain decoding, 1 meaning as fast.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

BISECTION_STEPS = 2**40  # steps from 0 to 1 in which a root is looked for


def acceptance(accepted: int, rejected: int) -> float | None:
    """The maximum likelihood estimate of `a` from chains that end at their first rejection; None where
    nothing was judged. accepted: drafted tokens that were kept. rejected: chains that were not kept whole."""
    judged = accepted + rejected
    return accepted / judged if judged else None


def expected_tokens(acceptance: float, n_draft: int) -> float:
    """Tokens that a step emits: 1 + a + ... + a^K (Leviathan et al., equation 1)."""
    return sum(acceptance**i for i in range(n_draft + 1))


def chain_speedup(acceptance: float, n_draft: int, cost: float) -> float:
    """(1 - a^(K+1)) / ((1 - a)(cK + 1)), theorem 3.8: a pass over K + 1 rows costs what a single row does."""
    return with_verification_cost(acceptance, n_draft, cost, 1.0)


def with_verification_cost(acceptance: float, n_draft: int, cost: float, verify: float) -> float:
    """(1 - a^(K+1)) / ((1 - a)(cK + v)): theorem 3.8 with the real cost of the pass in place of 1."""
    return expected_tokens(acceptance, n_draft) / (cost * n_draft + verify)


def best_n_draft(
    acceptance: float, cost: float, verify: Callable[[int], float] | None = None, longest: int = 64
) -> int:
    """The K, up to `longest`, that gains most; 0 where none is faster than plain decoding. verify: cost of a
    pass over so many rows, over that of one row. None: all passes cost the same."""
    gains = {0: 1.0}
    for k in range(1, longest + 1):
        v = 1.0 if verify is None else verify(k + 1)
        gains[k] = with_verification_cost(acceptance, k, cost, v)
    return max(gains, key=gains.__getitem__)  # of equals the first: the shortest draft


def break_even(verify: float, n_draft: int) -> float | None:
    """The acceptance at which free drafts of K tokens neither gain nor lose: the root of 1 + a + ... + a^K =
    v. None where the pass is dearer than K + 1 single ones."""
    if verify > n_draft + 1:
        return None
    return (
        bisect_left(
            range(BISECTION_STEPS), verify, key=lambda i: expected_tokens(i / BISECTION_STEPS, n_draft)
        )
        / BISECTION_STEPS
    )


def distinct_experts(experts: int, used: int, rows: int) -> float:
    """Experts of a mixture that a pass over B rows reads, chosen at random: E (1 - (1 - k/E)^B)."""
    return experts * (1.0 - (1.0 - min(1.0, used / experts)) ** rows)
