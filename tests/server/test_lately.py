"""What the page is told of the last seconds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import paceline
from paceline.server.live_stats import LiveStats


@pytest.mark.parametrize("running", [1, 4])
def test_plain_decoding_is_told_of_all_and_of_each(running: int) -> None:
    costs = SimpleNamespace(target=SimpleNamespace(seconds=lambda rows, depth: 0.1 + 0.01 * rows), step=0.0)
    with paceline.load("toy:", drafters="lookup") as llm:
        llm.policy = SimpleNamespace(costs=costs, account=None)
        now = 0.0
        lately = LiveStats(llm, lambda: now)
        assert lately.state()["plain_tokens_per_second_each"] is None
        lately.look(running)
        now = 1.0
        state = lately.state()
        assert state["plain_tokens_per_second"] == pytest.approx(running / (0.1 + 0.01 * running))
        assert state["plain_tokens_per_second_each"] == pytest.approx(1 / (0.1 + 0.01 * running))
        now = 2.0
        lately.look(0)  # nobody is there: as it was
        now = 3.0
        assert lately.state()["plain_tokens_per_second_each"] == state["plain_tokens_per_second_each"]
