"""Continuous batching: each request gets the text it would get alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoding import decoded
from paceline.backends.toy import ToyForward, ToySession, ToyTarget
from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.speculative.errors import BusyError
from paceline.speculative.interfaces import Budget, Drafter, RequiredOutputs, Session
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.sampling import Sampling
from paceline.speculative.scheduler import ScheduledRequest, Scheduler
from paceline.speculative.tree import DraftTree
from stage import add_to
from toy_head import HeadDrafter

V = 6
POLICY = FixedPolicy(Budget(4, 8, width=2))


class Watched(ToyTarget):
    """A target with limited sessions, which counts open sessions and prefilled tokens."""

    def __init__(self, *args: Any, most: int = 64, **more: Any) -> None:
        super().__init__(*args, **more)
        self.most, self.opened = most, list[ToySession]()
        self.reads: list[int] = []

    @property
    def n_open(self) -> int:
        return sum(len(session.tokens) > 0 for session in self.opened)

    def open(self, beside: Session | None = None) -> ToySession:
        if self.n_open >= self.most:
            raise BusyError("no session is free")
        self.opened.append(super().open(beside))
        return self.opened[-1]

    def forward(
        self, batch: Sequence[tuple[ToySession, DraftTree | int]], want: RequiredOutputs
    ) -> list[ToyForward]:
        pending_tokens = [s.pending_tokens if isinstance(tree, DraftTree) else tree for s, tree in batch]
        self.reads.append(sum(pending_tokens))
        return super().forward(batch, want)


TARGETS: dict[str, Callable[..., Watched]] = {
    "one layer": lambda **more: Watched(V, seed=1, **more),
    "that cannot rewind": lambda **more: Watched(V, seed=1, rollback="restore", **more),
}
DRAFTERS: dict[str, Callable[[ToyTarget], Drafter]] = {
    "none": lambda _: NoDrafter(),
    "lookup": lambda _: LookupDrafter(1, 3),
    "model": lambda _: ModelDrafter(Watched(V, seed=1, noise=0.3), V),
    "a model that cannot rewind": lambda _: ModelDrafter(
        Watched(V, seed=1, noise=0.3, rollback="restore"), V
    ),
    "head": HeadDrafter,
    "lookup,model": lambda _: ComposedDrafter(
        [LookupDrafter(2, 3), ModelDrafter(Watched(V, seed=2), V)], min_tokens=2
    ),
}


def alone(prompt: Sequence[int], **how: Any) -> list[int]:
    return decoded(ToyTarget(V, seed=1), NoDrafter(), prompt, how.pop("max_tokens"), **how)[0]


arrivals = st.lists(
    st.fixed_dictionaries(
        {
            "at": st.integers(0, 25),
            "prompt": st.lists(st.integers(0, V - 1), min_size=1, max_size=60),
            "max_tokens": st.integers(1, 12),
            "temperature": st.sampled_from([0.0, 0.8]),
            "seed": st.integers(0, 3),
            "cancel": st.one_of(st.none(), st.integers(0, 30)),
        }
    ),
    min_size=1,
    max_size=7,
)


def request_of(arrival: dict[str, Any]) -> dict[str, Any]:
    fields = {name: arrival[name] for name in ("prompt", "max_tokens", "seed")}
    return fields | {"sampling": Sampling(temperature=arrival["temperature"])}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("kind", TARGETS)
@given(arrivals=arrivals, chunk=st.integers(1, 50), most=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_every_request_gets_what_it_gets_alone_whoever_comes_and_goes(
    kind: str, drafter: str, arrivals: list[dict[str, Any]], chunk: int, most: int
) -> None:
    target = TARGETS[kind](most=most)
    scheduler = Scheduler(target, DRAFTERS[drafter](target), POLICY, chunk=chunk)
    jobs: list[tuple[ScheduledRequest, dict[str, Any]]] = []
    said: dict[ScheduledRequest, list[int]] = {}
    now = 0
    while not scheduler.idle or any(arrival["at"] >= now for arrival in arrivals):
        for one in arrivals:
            if one["at"] == now:
                job = add_to(scheduler, **request_of(one))
                jobs.append((job, one))
                said[job] = []
        for job, one in jobs:
            if one["cancel"] is not None and one["at"] + one["cancel"] == now:
                scheduler.cancel(job)
        for job, step in scheduler.step():
            assert job.state != "cancelled"
            said[job] += step.tokens
        assert target.reads[-1:] == [] or target.reads[-1] <= chunk
        now += 1
        assert now < 5000
    for job, one in jobs:
        expected = alone(**request_of(one))
        assert said[job] == expected[: len(said[job])]
        assert job.state in ("done", "cancelled")
        if job.state == "done":
            assert said[job] == expected
    assert target.n_open == 0


@pytest.mark.parametrize("chunk", [1, 7, 40])
def test_a_long_prompt_holds_nobody_up_for_more_than_one_chunk(chunk: int) -> None:
    """During its prefill another request emits at every pass, and a third soon starts."""
    target, draft = Watched(V, seed=1), Watched(V, seed=1, noise=0.3)
    scheduler = Scheduler(target, ModelDrafter(draft, V), POLICY, chunk=chunk)
    first = add_to(scheduler, [1], max_tokens=500)
    scheduler.step()
    long = add_to(scheduler, [1, 2, 3, 4] * 150, max_tokens=5)
    scheduler.step()
    short = add_to(scheduler, [3, 2, 1], max_tokens=2)
    waited = 0
    while long.active is None or long.active.n_tokens == 0:
        emitted = {job for job, step in scheduler.step() if step.tokens}
        if first.state == "running":
            assert first in emitted
        waited += short.state == "running" and short.active is not None and short.active.n_tokens == 0
        if first.state == "done":
            break
    assert waited <= 4
    assert max(target.reads) <= chunk
    assert max(draft.reads) <= max(chunk, 6)  # of its own draft it reads what the target has kept
    scheduler.close()


@pytest.mark.parametrize("where", ["open", "stop"])
def test_a_request_that_fails_ends_alone_and_says_why(where: str) -> None:
    class Shy(NoDrafter):
        def open(
            self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
        ) -> Any:
            if seed == 1 and where == "open":
                raise RuntimeError("no room")
            return super().open(prompt, seed, session)

    def broken(_: int) -> bool:
        raise RuntimeError("no room")

    target = Watched(V, seed=1)
    scheduler = Scheduler(target, Shy(), POLICY)
    bad = add_to(scheduler, [1, 2], max_tokens=5, seed=1, should_stop=broken)
    good = add_to(scheduler, [1, 2], max_tokens=5)
    tokens = list[int]()
    while not scheduler.idle:
        tokens += [token for job, step in scheduler.step() if job is good for token in step.tokens]
    assert (bad.state, str(bad.error)) == ("failed", "no room")
    assert (good.state, tokens) == ("done", alone([1, 2], max_tokens=5))
    assert target.n_open == 0


def test_a_session_that_cannot_be_closed_is_not_decoded_on() -> None:
    target = Watched(V, seed=1)
    scheduler = Scheduler(target, NoDrafter(), POLICY)
    broken, good = add_to(scheduler, [1], max_tokens=1), add_to(scheduler, [1], max_tokens=3)
    scheduler.admit()
    assert broken.active is not None

    def fails() -> None:
        raise MemoryError("the cache is gone")

    broken.active.close = fails  # type: ignore[method-assign]
    with pytest.raises(MemoryError, match="the cache is gone"):
        scheduler.step()
    while not scheduler.idle:
        scheduler.step()
    assert good.state == "done"


def test_where_others_have_all_sessions_it_waits() -> None:
    target = Watched(V, seed=1, most=1)
    other = target.open()
    other.extend([1])
    scheduler = Scheduler(target, NoDrafter(), POLICY)
    job = add_to(scheduler, [1], max_tokens=1)
    assert scheduler.step() == []
    assert job.state == "waiting"
    other.close()
    assert [step.tokens for _, step in scheduler.step()] == [tuple(alone([1], max_tokens=1))]


def test_cancelling_is_harmless_at_any_time() -> None:
    target = Watched(V, seed=1, most=1)
    scheduler = Scheduler(target, NoDrafter(), POLICY)
    first, second, third = (add_to(scheduler, [1], max_tokens=2) for _ in range(3))
    scheduler.step()
    for job in (second, second, first, first):
        scheduler.cancel(job)
    assert target.n_open == 0
    while not scheduler.idle:
        scheduler.step()
    scheduler.cancel(third)
    assert [job.state for job in (first, second, third)] == ["cancelled", "cancelled", "done"]


def test_a_long_prompt_is_read_in_small_pieces_beside_one_that_decodes_and_in_large_ones_alone() -> None:
    now = 0.0

    class Slow(Watched):
        def forward(
            self, batch: Sequence[tuple[ToySession, DraftTree | int]], want: RequiredOutputs
        ) -> list[ToyForward]:
            nonlocal now
            out = super().forward(batch, want)
            now += 0.01 + 0.005 * self.reads[-1]
            return out

    target = Slow(V, seed=1)
    scheduler = Scheduler(target, NoDrafter(), POLICY, chunk=200, clock=lambda: now)
    add_to(scheduler, [1, 2, 3], max_tokens=40)
    for _ in range(5):
        scheduler.step()
    add_to(scheduler, [1, 2] * 150, max_tokens=1)
    took = []
    while not scheduler.idle:
        before = now
        scheduler.step()
        took.append(now - before)
    assert max(took) < 0.25
    assert max(target.reads) < 40
    add_to(scheduler, [1, 2] * 150, max_tokens=1)
    scheduler.step()
    assert target.reads[-1] == 200


def test_a_request_that_does_not_fit_fails_before_it_gets_a_session() -> None:
    scheduler = Scheduler(Watched(V, n_ctx=8), NoDrafter(), POLICY)
    failed = add_to(scheduler, [1] * 9, max_tokens=1)
    assert scheduler.step() == []
    assert scheduler.idle
    assert "the context 8" in str(failed.error)
