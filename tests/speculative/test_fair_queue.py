"""The queue in which clients take turns."""

from __future__ import annotations

import pytest

from paceline.speculative.fair_queue import FairQueue


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


def test_some_clients_are_passed_over() -> None:
    queue = filled()
    assert queue.pop(but={"a"}) == 4
    assert queue.peek() == 1
    with pytest.raises(StopIteration):
        queue.pop(but={"a", "c"})


def test_what_is_removed_does_not_come() -> None:
    queue = filled()
    assert queue.remove("a", 2)
    assert queue.remove("b", 4)
    assert not queue.remove("b", 4)
    assert not queue.remove("a", 4)
    assert [queue.pop() for _ in range(3)] == [1, 5, 3]
