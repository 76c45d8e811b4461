"""What the real model is asked: made anew the same way, and of all kinds."""

from __future__ import annotations

from itertools import islice

from tools.smollm2 import prompts


def test_a_seed_asks_the_same_again_and_another_something_else() -> None:
    first, again, other = (
        list(islice(prompts.conversations(seed, prompts.Written()), 60)) for seed in (3, 3, 4)
    )
    assert first == again != other


def test_there_are_turns_of_the_model_s_own_and_none_with_a_gap_left_open() -> None:
    asked = [turn for talk in islice(prompts.conversations(0, prompts.Written()), 400) for turn in talk.turns]
    assert 0.2 < asked.count(None) / len(asked) < 0.5
    given = [turn for turn in asked if turn is not None]
    assert len(set(given)) > 0.6 * len(given)  # what is asked afterwards is often the same
    for gap in ("{t}", "{u}", "{x}", "{y}", "{p}", "{c}", "{w}", "{q}", "{f}", "{s}", "{h}"):
        assert not any(gap in turn for turn in given if "```" not in turn)


def test_texts_are_the_standard_library_s() -> None:
    assert len(prompts.paragraphs()) > 1000
    assert all(60 <= len(text) <= 900 for text in prompts.paragraphs())
    assert len(prompts.functions()) > 500
