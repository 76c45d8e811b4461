"""Requests of one pass share its rows and its failure, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding import begin
from paceline.backends.toy import ToyForward, ToySession, ToyTarget
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.speculative.chunked_prefill import ChunkSize, split_chunk
from paceline.speculative.fair_queue import FairQueue
from paceline.speculative.interfaces import Budget, Grammar, RequiredOutputs
from paceline.speculative.loop import ActiveRequest, advance_requests
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.scheduler import Scheduler
from paceline.speculative.stats import Step
from paceline.speculative.tree import DraftTree
from stage import add_to

V, ROWS = 6, 8


class Narrow(ToyTarget):
    """A target with few rows per pass, which counts them and can fail."""

    def __init__(self, rows: int) -> None:
        super().__init__(V, seed=1)
        self.caps = replace(self.caps, max_batch_tokens=rows)
        self.asked: list[int] = []
        self.fails = False

    def forward(
        self, batch: Sequence[tuple[ToySession, DraftTree | int]], want: RequiredOutputs
    ) -> list[ToyForward]:
        if self.fails:
            raise RuntimeError("in the pass")
        self.asked.append(sum(1 + len(tree) for _, tree in batch if isinstance(tree, DraftTree)))
        return super().forward(batch, want)


class Watching(FixedPolicy):
    """A policy that records its updates."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self.told: list[tuple[list[ActiveRequest], list[Step]]] = []

    def update(self, requests: Sequence[ActiveRequest], steps: Sequence[Step]) -> None:
        self.told.append((list(requests), list(steps)))


class Once(Grammar):
    """A grammar that fails at the first question about a draft."""

    failed = False

    def mask(self, path: Sequence[int]) -> Any:
        if path and not self.failed:
            self.failed = True
            raise ZeroDivisionError("in the grammar")
        return np.ones(V, dtype=np.bool_)

    def commit(self, tokens: Sequence[int]) -> None: ...


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_all_drafts_of_a_pass_and_their_roots_fit_its_rows(n: int) -> None:
    target = Narrow(ROWS)
    drafter = ModelDrafter(ToyTarget(V, seed=1), V)
    requests = [begin(target, drafter, [at % V, 1], 40) for at in range(n)]
    for _ in range(4):
        advance_requests(target, drafter, FixedPolicy(Budget(20, 20)), requests)
    assert target.asked == [n * (ROWS // n)] * 4  # as many as there are, shared evenly


def test_a_pass_that_fails_ends_all_that_were_in_it_and_none_that_waited() -> None:
    target = Narrow(2)
    scheduler = Scheduler(target, NoDrafter(), FixedPolicy(Budget(0, 0)))
    jobs = [add_to(scheduler, [at], max_tokens=9) for at in range(3)]
    scheduler.step()
    target.fails = True
    assert scheduler.step() == []
    assert [job.state for job in jobs] == ["failed", "failed", "waiting"]
    assert [str(job.error) for job in jobs[:2]] == ["in the pass"] * 2
    assert all(job.active is not None and job.active.session.tokens == [] for job in jobs[:2])  # closed
    target.fails = False
    while not scheduler.idle:
        scheduler.step()
    assert jobs[2].state == "done"


def stops(_: int) -> bool:
    raise ZeroDivisionError("in the stop")


def test_a_policy_is_told_of_those_alone_that_decoded_in_the_pass() -> None:
    """Prefilling, failed and absent requests are left out."""
    target, policy, drafter = Narrow(64), Watching(Budget(2, 2)), LookupDrafter(1, 2)
    going = begin(target, drafter, [1, 2, 1, 2], 9)
    failing = begin(target, drafter, [2, 3, 2, 3], 9, should_stop=stops)
    reading = begin(target, drafter, [1, 2, 3] * 40, 9)
    absent = begin(target, drafter, [4, 5], 9)
    done = advance_requests(target, drafter, policy, [going, failing, reading], chunk=16)
    assert [request for request, _ in done] == [going, reading]
    ((requests, steps),) = policy.told
    assert requests == [going]
    assert steps == [done[0][1]]
    assert isinstance(failing.error, ZeroDivisionError)
    assert absent.n_tokens == 0
    # And not at all where all that there is reads.
    advance_requests(target, drafter, policy, [reading], chunk=16)
    assert len(policy.told) == 1


def test_a_grammar_that_failed_while_drafts_were_judged_ends_its_request() -> None:
    """Even if it would work again after the forward."""
    target, drafter = ToyTarget(V, seed=1), ModelDrafter(ToyTarget(V, seed=2), V)
    grammar = Once()
    request = begin(target, drafter, [1, 2], 9, grammar=grammar)
    other = begin(target, drafter, [1, 2], 9)
    done = advance_requests(target, drafter, FixedPolicy(Budget(3, 3)), [request, other])
    assert grammar.failed
    assert isinstance(request.error, ZeroDivisionError)
    assert request.n_tokens == 0
    assert [one for one, _ in done] == [other]


@given(pending_tokens=st.lists(st.integers(0, 50), max_size=8), chunk=st.integers(1, 60))
def test_all_of_a_chunk_is_used_and_nobody_gets_more_than_the_one_who_lacks_some(
    pending_tokens: list[int], chunk: int
) -> None:
    out = split_chunk(pending_tokens, chunk)
    assert sum(out) == min(chunk, sum(pending_tokens))
    assert all(0 <= n <= left for n, left in zip(out, pending_tokens, strict=True))
    lacking = [n for n, left in zip(out, pending_tokens, strict=True) if n < left]
    if lacking:
        assert max(out) <= min(lacking) + 1


def test_a_short_prompt_behind_a_long_one_is_read_at_once() -> None:
    assert split_chunk([6000, 20], 512) == [492, 20]


@pytest.mark.parametrize(
    ("token", "own", "most", "expected"),
    [
        (0.001, 0.01, 512, 150),  # what takes 0.15 seconds
        (0.001, 0.1, 512, 400),  # four passes
        (0.0001, 0.01, 512, 512),  # no more than the chunk
        (0.1, 0.01, 512, 16),  # no less than the least
        (0.1, 0.01, 8, 8),
    ],
)
def test_beside_others_a_piece_takes_no_longer_than_it_may(
    token: float, own: float, most: int, expected: int
) -> None:
    size = ChunkSize(most)
    for _ in range(100):
        size.update(1, 0, own)
        n = size.limit(1)
        size.update(1, n, own + token * n)
    assert abs(size.limit(1) - expected) <= 1


def test_a_machine_that_becomes_slower_is_learned() -> None:
    size = ChunkSize(512)
    size.update(0, 512, 0.1)
    assert size.limit(2) == 512
    for _ in range(40):
        size.update(0, 512, 5.12)
    assert size.limit(2) == 16


def filled() -> FairQueue[int]:
    queue = FairQueue[int]()
    for client, item in (("a", 1), ("a", 2), ("a", 3), ("b", 4), ("c", 5)):
        queue.add(client, item)
    return queue


def test_clients_take_turns_and_each_one_s_items_keep_their_order() -> None:
    queue = filled()
    assert (len(queue), list(queue)) == (5, [1, 2, 3, 4, 5])
    order = []
    while len(queue):
        first = queue.peek()
        order.append(queue.pop())
        assert order[-1] == first
    assert order == [1, 4, 5, 2, 3]
    with pytest.raises(StopIteration):
        queue.pop()
    with pytest.raises(StopIteration):
        queue.peek()


def test_clients_are_passed_over_and_items_removed() -> None:
    queue = filled()
    assert queue.pop(but={"a"}) == 4
    assert queue.peek() == 1
    with pytest.raises(StopIteration):
        queue.pop(but={"a", "c"})
    assert queue.remove("a", 2)
    assert queue.remove("c", 5)
    assert not queue.remove("c", 5)
    assert not queue.remove("a", 4)
    assert [queue.pop() for _ in range(2)] == [1, 3]


def test_a_client_moved_to_the_end_waits_for_those_that_came_since() -> None:
    queue = FairQueue[int]()
    for client, item in (("a", 1), ("b", 2), ("a", 3)):
        queue.add(client, item)
    queue.move_to_end("a")
    queue.move_to_end("nobody")
    assert [queue.pop() for _ in range(3)] == [2, 1, 3]
