"""The oracle bound: the least of all choices, and not beaten by any policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Chances, Oracle, seconds

from paceline.backends.recorded import Recording, numeric_vocab
from paceline.backends.toy import ToyTarget
from paceline.bench.method import Method
from paceline.bench.replay import replay as module
from paceline.bench.replay.replay import MethodReplay, ReplayContext
from paceline.drafters.compose import ComposedDrafter, PortfolioDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.settings import Drafting
from paceline.speculative.interfaces import Drafter
from paceline.speculative.policy.costs import DecodingCosts, PassCosts
from paceline.speculative.tree import chain

V = 4


def costs(*target: float, draft: Sequence[float] = (), step: float = 0.0) -> DecodingCosts:
    """Return the costs with the seconds of 1, 2, ... rows."""
    small = PassCosts({256: dict(enumerate(draft, 1))}) if draft else None
    return DecodingCosts(PassCosts({256: dict(enumerate(target, 1))}), small, step)


def known(tokens: Sequence[int], *longest: int) -> Chances:
    """Return free proposals with so many right tokens at each position."""
    chances = Chances(tuple(tokens))
    for at, n in enumerate(longest):
        chances.add(at, chain(tokens[at : at + n], "free"))
    return chances


# By brute force.


def least(longest: Sequence[int], curve: Sequence[float], step: float, left: int, at: int = 0) -> float:
    """Return the minimum over all choices."""
    if left == 0:
        return 0.0
    ways = []
    for n in range(min(longest[at], left - 1) + 1):
        for rows in range(1 + n, len(curve) + 1):
            ways.append(step + curve[rows - 1] + least(longest, curve, step, left - n - 1, at + n + 1))
    return min(ways)


# No rows cost more than they do one by one, and none less than a single row.
jagged = st.lists(st.floats(0.1, 9.0), min_size=5, max_size=5).map(
    lambda s: [max(s[0], min(seconds, n * s[0])) for n, seconds in enumerate(s, 1)]
)


@given(longest=st.lists(st.integers(0, 3), min_size=1, max_size=5), curve=jagged, step=st.floats(0.0, 2.0))
@settings(max_examples=100, deadline=None)
def test_it_is_the_least_of_all_choices(longest: list[int], curve: list[float], step: float) -> None:
    tokens = list(range(len(longest)))
    found = seconds(known(tokens, *longest), 3, costs(*curve, step=step))
    assert found == pytest.approx(least(longest, curve, step, len(longest)))


# No policy beats it.


def holds(drafter: Any, recordings: Sequence[Recording], price: DecodingCosts, drafting: Drafting) -> bool:
    """Return whether every request takes at least the bound. drafter: makes drafters."""
    with pytest.MonkeyPatch.context() as patch:
        for where in (module, oracle):
            patch.setattr(where, "make_drafter", lambda one, target, draft, *more: (drafter(draft), one))
        draft = ToyTarget(V, seed=1, noise=0.2)
        lane = MethodReplay(
            Method("test", drafting), recordings, ReplayContext(numeric_vocab(V), draft=draft, costs=price)
        )
        bounds = Oracle(lane, recordings)
        return all(
            took >= least * (1 - 1e-9) for took, least in [bounds.play(recording) for recording in recordings]
        )


texts = st.lists(st.integers(0, V - 1), min_size=1, max_size=24).map(tuple)


@pytest.mark.slow
@given(
    answers=st.lists(texts, min_size=1, max_size=3),
    curve=st.lists(st.floats(0.5, 5.0), min_size=9, max_size=9),
    small=st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3),
    names=st.sampled_from(["model", "lookup model", "suffix model", "lookup suffix"]),
    rule=st.sampled_from(["p_min", "fixed", "goodput"]),
    width=st.integers(1, 3),
)
@settings(max_examples=100, deadline=None)
def test_no_policy_is_faster_with_real_drafters(
    answers: list[tuple[int, ...]], curve: list[float], small: list[float], names: str, rule: str, width: int
) -> None:
    """The drafters include a draft model and one that learns from requests."""
    settled = Drafting(("lookup",), policy=rule, n_draft=4, width=width, p_split=0.05, p_min=0.2)

    def drafter(draft: Any) -> Drafter:
        made: dict[str, Callable[[], Drafter]] = {
            "lookup": lambda: LookupDrafter(1, 2),
            "suffix": lambda: SuffixDrafter(1024),
            "model": lambda: ModelDrafter(draft, V),
        }
        parts = [made[name]() for name in names.split()]
        return PortfolioDrafter(parts) if rule == "goodput" else ComposedDrafter(parts)

    recordings = [Recording((1, 2), answer) for answer in answers]
    price = costs(*curve, draft=small, step=0.1)
    assert holds(drafter, recordings, price, settled)
