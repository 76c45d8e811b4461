"""The price of a rejection where the state returns to a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from paceline.backends.toy import ToyTarget
from paceline.drafters.compose import PortfolioDrafter
from paceline.drafters.model import ModelDrafter
from paceline.speculative.interfaces import Rollback
from paceline.speculative.loop import decode, start_request
from paceline.speculative.policy.costs import DecodingCosts, PassCosts
from paceline.speculative.policy.goodput import GoodputPolicy, PassPrices
from paceline.speculative.request import GenerationRequest

CURVE = [0.0, *(1.0 + 0.1 * (n - 1) for n in range(1, 40))]


def recomputed(reach: Sequence[float], pending: int) -> float:
    """The expected rows of a later pass: `pending + n` if node n is the first to be wrong."""
    first_wrong = -np.diff([1.0, *reach])
    return float(sum(p * (pending + n) for n, p in enumerate(first_wrong, 1)))


@pytest.mark.parametrize("pending", [0, 3])
def test_nodes_pay_for_the_rows_that_they_are_expected_to_repeat(pending: int) -> None:
    prices = PassPrices(2.0, CURVE, 1, 30, rate=1.5)
    prices.charge_recomputed()
    assert prices.recompute == pytest.approx(1.5 * 2.0 * 0.1)  # tokens of a row
    reach = [0.9, 0.7, 0.6, 0.1]
    minus_reach = [-s for s in reach]
    net = prices.expected_gain(minus_reach, pending)
    for n in range(1, len(reach) + 1):
        expected = sum(reach[:n]) - prices.recompute * recomputed(reach[:n], pending)
        assert -sum(net[:n]) == pytest.approx(expected)
    free = PassPrices(2.0, CURVE, 1, 30, rate=1.5)
    assert free.best_gain(minus_reach, pending) > prices.best_gain(minus_reach, pending)
    full = PassPrices(2.0, CURVE, 30, 30, rate=1.5)
    full.charge_recomputed()
    assert full.recompute == 0.0


@pytest.mark.parametrize("rollback", ["free", "restore"])
def test_it_is_learned_from_the_first_rejection(rollback: Rollback) -> None:
    target = ToyTarget(6, seed=1, rollback=rollback)
    policy = GoodputPolicy(DecodingCosts(PassCosts.flat(1.0, 0.05)), clock=lambda: 0.0)
    drafter = PortfolioDrafter([ModelDrafter(ToyTarget(6, seed=1, noise=0.4), 6)])
    request = start_request(
        target, drafter, GenerationRequest(prompt=(1, 2, 3), max_tokens=60, ignore_eos=True)
    )
    steps = [step for _, step in decode(target, drafter, policy, [request])]
    request.close()
    assert any(len(step.path) < len(step.tree) for step in steps)
    assert policy._recomputes == (rollback == "restore")
    assert (policy._prices.recompute > 0) == (rollback == "restore")
