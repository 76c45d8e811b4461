"""Shares of a hash ring, and the capacity of many replicas."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from fleet import Curve, capacity, shares

CURVE = Curve((1.0, 2.0, 4.0), (0.0, 0.0, 0.2))


def test_equal_replicas_take_as_many_times_what_one_does() -> None:
    one = capacity(CURVE, [1.0], 0.1)
    assert one == pytest.approx(3.0)
    for replicas in (2, 7, 1000):
        assert capacity(CURVE, [1 / replicas] * replicas, 0.1) == pytest.approx(3.0 * replicas)


def test_the_busiest_replica_is_late_first() -> None:
    """A replica has three quarters of the load: 3 of 4 a second, of which a tenth is late."""
    assert capacity(CURVE, [0.75, 0.25], 0.075) == pytest.approx(4.0)


def test_shares_are_those_of_a_ring_of_hashes() -> None:
    """Compare the spread of 1,000 replicas with a ring computed key by key."""
    ours = shares(1000, seed=1)
    assert ours.sum() == pytest.approx(1.0)
    assert len(ours) == 1000
    ring = sorted((int.from_bytes(sha256(f"{at}:{n}".encode()).digest()[:8], "big"), at)
                  for at in range(1000) for n in range(100))  # fmt: skip
    points = np.array([point for point, _ in ring], dtype=np.float64) / 2.0**64
    keys = np.random.default_rng(2).random(400_000)
    owners = np.array([at for _, at in ring])[np.searchsorted(points, keys, side="right") % len(ring)]
    walked = np.bincount(owners, minlength=1000) / len(keys)
    assert ours.std() * 1000 == pytest.approx(0.1, rel=0.15)  # 1 / sqrt(100)
    assert walked.std() * 1000 == pytest.approx(ours.std() * 1000, rel=0.2)
