"""What a bench will take, and which items fit into a time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.cost import Cost
from paceline.lab.bench.forecast import LARGEST, Choice, Forecast, Pace, Size, Work, fitted
from paceline.lab.workload import Item

# A token takes 0.1 s, and so do ten of a prompt.
PACE = Pace(Cost({256: {1: 0.1, 64: 0.64}}))
SIZE = Size(100, 20)  # 1 s and 2 s


def size_of(item: Item, n: int) -> Size:
    return Size(len(item.prompt), n or item.max_tokens)


def items(*prompts: int, category: str = "a", session: str = "", tokens: int = 20) -> list[Item]:
    return [
        Item(f"{category}{session}{i}", category, "x" * n, max_tokens=tokens, session=session)
        for i, n in enumerate(prompts)
    ]


def test_a_prompt_and_an_answer_take_what_their_passes_do() -> None:
    assert (PACE.read(SIZE), PACE.decode(SIZE)) == pytest.approx((1.0, 2.0))


def test_every_phase_is_counted() -> None:
    """Plain once, two others at the gate, then all three in two rounds."""
    assert Forecast(PACE, 3, 2).total(SIZE) == pytest.approx(3 * (1 + 2 + 2 * 3))


def test_a_prompt_that_is_kept_is_read_once_a_phase_and_once_in_all_where_items_are_streamed() -> None:
    kept = Forecast(PACE, 3, 2, keep_prompts=True)
    assert kept.total(SIZE) == pytest.approx((1 + 2) + (1 + 2 * 2) + 2 * (1 + 3 * 2))
    streamed = Forecast(PACE, 3, 1, keep_prompts=True, streamed=True)
    assert streamed.total(SIZE) == pytest.approx((1 + 2) + 3 * 2)


def seconds(size: Size) -> float:
    return size.prompt / 100 + size.answer / 10


def test_all_items_are_taken_where_there_is_time() -> None:
    some = [*items(100, 100), *items(50, category="b")]
    choice = fitted(some, 0, size_of, seconds, 1000)
    assert (len(choice.items), choice.tokens) == (3, 0)
    assert choice.seconds == pytest.approx(8.5)


def test_answers_are_shorter_where_that_leaves_room_for_several_items_of_each_category() -> None:
    some = [*items(*[10] * 8, tokens=400), *items(*[10] * 8, category="b", tokens=400)]
    choice = fitted(some, 0, size_of, seconds, 90)
    assert choice.tokens == 128  # 12.9 s each, six of them; of 400 tokens it would be two
    assert [item.category for item in choice.items] == ["a", "b"] * 3
    assert fitted(some, 200, size_of, seconds, 90).tokens == 200  # as asked for


def test_one_long_item_does_not_take_the_time_of_all_others() -> None:
    some = [*items(9_000, 10, 10, 10), *items(10, 10, 10, category="b")]
    choice = fitted(some, 20, size_of, seconds, 100)
    assert "a0" not in {item.id for item in choice.items}
    assert len(choice.items) == 6


def test_one_item_is_taken_however_little_time_there_is() -> None:
    some = items(500, 100, 900)
    assert [item.id for item in fitted(some, 0, size_of, seconds, 0.1).items] == ["a1"]


def test_nothing_of_a_session_is_asked_without_what_came_before() -> None:
    some = items(9_000, 10, 10, session="s")
    assert [item.id for item in fitted(some, 20, size_of, seconds, 100).items] == ["as0"]


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.sampled_from("ab"), st.sampled_from(["", "s"])), min_size=1),
    st.floats(0.5, 100),
)
def test_what_is_chosen_fits_the_time(told: list[tuple[int, str, str]], budget: float) -> None:
    some = [Item(str(i), c, "x" * n, session=s and c + s) for i, (n, c, s) in enumerate(told)]
    choice = fitted(some, 16, size_of, seconds, budget)
    costs = {item.id: seconds(size_of(item, 16)) for item in choice.items}
    assert choice.items
    if len(choice.items) > 1:
        assert sum(costs.values()) <= budget
        assert max(costs.values()) <= LARGEST * budget
    for session in {item.session for item in some} - {""}:
        whole = [item.id for item in some if item.session == session]
        taken = [item.id for item in choice.items if item.session == session]
        assert taken == whole[: len(taken)]


def test_work_is_counted_and_keeps_its_seconds_under_another_name() -> None:
    work = Work({"gate": [1.0, 2.0]}, measure=3)
    assert work == {"gate": 2, "measure": 3}
    named = work.named(lambda kind: f"k 4: {kind}")
    assert named == {"k 4: gate": 2, "k 4: measure": 3}
    assert named.seconds == {"k 4: gate": [1.0, 2.0]}


def test_choices_are_compared_by_what_is_asked() -> None:
    assert Choice([], 4, 1.0) == Choice([], 4, 2.0)
