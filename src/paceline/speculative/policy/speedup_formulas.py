"""What speculative decoding should gain, on paper.

The letters of Leviathan et al. (arXiv:2211.17192), with K for their gamma:
  a   acceptance: the chance that a drafted token is kept, given that all before it were (0 to 1)
  K   n_draft: drafted tokens a step (at least 1)
  c   cost: of drafting one token, over that of a pass of the target over one row
  v   verify: cost of a pass over K + 1 rows, over that of a pass over one row
Speedups are over plain decoding, 1 meaning as fast. All assume chains whose tokens are accepted independently
with the same a, which no text does; how far off that is, measurement has to say.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

FINE = 2**40  # steps from 0 to 1 in which a root is looked for


def acceptance(accepted: int, rejected: int) -> float | None:
    """The maximum likelihood estimate of `a` from chains that end at their first rejection.

    accepted: drafted tokens that were kept. rejected: chains that were not kept whole, one rejection each.
    What was drafted behind a rejection was never judged and does not count: accepted / drafted is lower.
    None where nothing was judged.
    """
    judged = accepted + rejected
    return accepted / judged if judged else None


def expected_tokens(acceptance: float, n_draft: int) -> float:
    """Tokens that a step emits: 1 + a + ... + a^K = (1 - a^(K+1)) / (1 - a); Leviathan et al., equation 1.
    Added up, since the sum has no pole at a = 1."""
    return sum(acceptance**i for i in range(n_draft + 1))


def leviathan(acceptance: float, n_draft: int, cost: float) -> float:
    """(1 - a^(K+1)) / ((1 - a)(cK + 1)); Leviathan et al., theorem 3.8. A pass over K + 1 rows is taken to
    cost what one over a single row does, which holds where memory bandwidth is all that counts."""
    return with_verification_cost(acceptance, n_draft, cost, 1.0)


def lab(acceptance: float, n_draft: int) -> float:
    """1 / (1 - a + a/K), the rule of thumb of tutorials: Amdahl's law for a share `a` of the text that is
    done K tokens at a time. Neither drafting nor verifying costs anything, and the token that every step
    adds is left out."""
    return 1.0 / (1.0 - acceptance + acceptance / n_draft)


def with_verification_cost(acceptance: float, n_draft: int, cost: float, verify: float) -> float:
    """(1 - a^(K+1)) / ((1 - a)(cK + v)): theorem 3.8 with the real cost of the pass in place of 1. On
    CPUs v is far above 1, and theorem 3.8 promises too much."""
    return timing(expected_tokens(acceptance, n_draft), 1.0, cost * n_draft, verify)


def timing(n_tokens: float, t_target: float, t_draft: float, t_verify: float, t_over: float = 0.0) -> float:
    """N T_target / (T_draft + T_verify + T_over): no model of acceptance, only of time.

    n_tokens: emitted a step. t_target: seconds of a pass over one row. t_draft, t_verify, t_over: seconds a
    step for the draft, the pass that verifies it, and all the rest.
    """
    return n_tokens * t_target / (t_draft + t_verify + t_over)


def best_n_draft(
    acceptance: float, cost: float, verify: Callable[[int], float] | None = None, longest: int = 64
) -> int:
    """The K, up to `longest`, that gains most; 0 where none is faster than plain decoding.

    verify: cost of a pass over so many rows, over that of one row. None: all passes cost the same, and
    drafting pays exactly where a > c (Leviathan et al., corollary 3.9).
    """
    gains = {0: 1.0}
    for k in range(1, longest + 1):
        v = 1.0 if verify is None else verify(k + 1)
        gains[k] = with_verification_cost(acceptance, k, cost, v)
    return max(gains, key=gains.__getitem__)  # of equals the first: the shortest draft


def break_even(verify: float, n_draft: int) -> float | None:
    """The acceptance at which drafts of K tokens, which cost nothing to make, neither gain nor lose: the root
    of 1 + a + ... + a^K = v. None where none does, the pass being dearer than K + 1 single ones."""
    if verify > n_draft + 1:
        return None
    return bisect_left(range(FINE), verify, key=lambda i: expected_tokens(i / FINE, n_draft)) / FINE


def distinct_experts(experts: int, used: int, rows: int) -> float:
    """Experts of a mixture that a pass over B rows is expected to read, were they chosen at random:
    E (1 - (1 - k/E)^B)."""
    return experts * (1.0 - (1.0 - min(1.0, used / experts)) ** rows)
