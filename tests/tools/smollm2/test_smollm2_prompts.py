"""What the real model is asked: made anew the same way, and of all kinds."""

from __future__ import annotations

from itertools import islice

from tools.smollm2 import prompts, topics


def test_there_are_turns_of_the_model_s_own_and_none_with_a_gap_left_open() -> None:
    asked = [turn for talk in islice(prompts.conversations(0, prompts.Written()), 400) for turn in talk.turns]
    assert 0.2 < asked.count(None) / len(asked) < 0.5
    given = [turn for turn in asked if turn is not None]
    assert len(set(given)) > 0.6 * len(given)  # what is asked afterwards is often the same
    for gap in ("{t}", "{u}", "{x}", "{y}", "{p}", "{c}", "{w}", "{q}", "{f}", "{s}", "{h}"):
        assert not any(gap in turn for turn in given if "```" not in turn)


def test_what_the_model_asks_and_answers_comes_again() -> None:
    written = prompts.Written()
    story = "Once there was a river. " * 12
    system = next(one for one in topics.STEER if "history" in one)
    told = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\nWho was the first of them?<|im_end|>\n"
    written.read(f"{told}<|im_start|>assistant\n{story}It end<|im_end|>\n")
    assert written.questions == ["Who was the first of them?"]
    assert written.texts == [story.strip()]  # to the end of a sentence
    written.texts.extend([story.strip()] * 2)
    turns = [turn or "" for talk in islice(prompts.conversations(0, written), 200) for turn in talk.turns]
    assert written.questions[0] in turns
    assert any(story.strip() in turn for turn in turns)
