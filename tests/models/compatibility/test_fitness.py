"""Compatibility beyond the vocabulary: architecture, memory, experts, sizes, templates."""

from __future__ import annotations

import pytest

from model_facts import check, of, weights
from paceline.models.headers.facts import HYBRID, RECURRENT


@pytest.mark.parametrize(
    "arch", ["bert", "nomic-bert-moe", "t5", "t5encoder", "gemma-embedding", "clip", "eagle3", "dream"]
)
def test_what_writes_no_text_is_refused_on_either_side(arch: str) -> None:
    for found, role in ((check(arch=arch), "draft"), (check(target={"arch": arch}), "target")):
        assert (found.verdict, weights(found, "fatal")) == ("incompatible", ["architecture"])
        assert of(found, "architecture").text.startswith(f"the {role} is a")
        assert found.advice == ("take a causal language model",)


def test_an_embedding_model_of_a_language_models_architecture_is_refused() -> None:
    found = check(pooling=3)
    assert (found.verdict, weights(found, "fatal")) == ("incompatible", ["architecture"])
    assert of(found, "architecture").text == "the draft is an embedding model: it writes no text"


@pytest.mark.parametrize("memory", [HYBRID, RECURRENT])
def test_a_target_with_a_state_has_a_note_and_a_draft_with_one_does_not(memory: str) -> None:
    found = check(target={"memory": memory})
    assert (of(found, "memory").weight, weights(found, "fatal")) == ("note", [])
    assert of(found, "memory").text.startswith(f"the target is {memory}: drafts are chains")
    assert all(reason.field != "memory" for reason in check(memory=memory).reasons)


def test_verifying_reads_more_experts_the_longer_the_draft() -> None:
    found = check(target={"experts": 128, "experts_used": 8})
    words = "4 tokens of a pass read about 29 of the target's 128 experts, 3.6x"
    assert of(found, "experts").text.startswith(words)
    assert found.advice == ("measure what a pass costs by its tokens: paceline doctor -m target.gguf",)
    assert weights(check(experts=8, experts_used=2), "warning") == []
    found = check(target={"experts": 128, "experts_used": 8, "format": "hf"})
    assert (of(found, "experts").weight, of(found, "experts").advice) == ("warning", "")


@pytest.mark.parametrize(
    ("parameters", "weight", "words"), [(4_000_000_000, "warning", "57.1%"), (500_000_000, "note", "7.1%")]
)
def test_a_draft_has_to_be_smaller(parameters: int, weight: str, words: str) -> None:
    size = of(check(parameters=parameters), "parameters")
    assert (size.weight, words in size.text) == (weight, True)


def test_a_shorter_context_is_a_warning() -> None:
    assert of(check(n_ctx=2048), "context").text == "beyond 2,048 tokens the draft guesses badly"
    assert weights(check(n_ctx=65_536), "warning") == []


CHATML = "<|im_start|>{{ role }}\n{{ text }}<|im_end|>\n"


@pytest.mark.parametrize(
    ("ours", "theirs", "weight", "words"),
    [
        (None, None, "note", "no chats"),
        (CHATML, CHATML + "\n", "note", ""),
        (CHATML, "{# of 2025 #}" + CHATML, "note", ""),
        (CHATML, "[INST]{{ text }}[/INST]", "warning", "not know <|im_end|>, <|im_start|>: in chats"),
        (CHATML, None, "note", "may not know"),
        (None, CHATML, "note", "no chats"),
    ],
)
def test_the_draft_reads_the_targets_chat_template(
    ours: str | None, theirs: str | None, weight: str, words: str
) -> None:
    said = of(check(target={"chat_template": ours}, chat_template=theirs), "chat template")
    assert (said.weight, words in said.text, bool(said.text)) == (weight, True, bool(words))
