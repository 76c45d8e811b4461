"""The table of drafts that are known to fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from advice_facts import facts
from paceline.models.compatibility.known_pairs import facts_of_name, known_drafts, known_pairs


def drafts(name: str, family: str, billions: float) -> list[str]:
    return [pair.draft.rpartition("/")[2] for pair in known_drafts(facts(name, family, billions))]


R1_QWEN = "deepseek-r1-distill-qwen"


@pytest.mark.parametrize(
    ("name", "family", "billions", "first"),
    [
        ("Qwen2.5-Coder-32B-Instruct", "qwen2.5-coder", 32.8, "Qwen2.5-Coder-0.5B-Instruct-GGUF:Q8_0"),
        ("Qwen3-32B", "qwen3", 32.8, "Qwen3-0.6B-GGUF:Q8_0"),
        ("Meta Llama 3.1 8B Instruct", "llama-3.1", 8.03, "Llama-3.2-1B-Instruct-GGUF:Q8_0"),
        ("gemma-3-27b-it", "gemma-3", 27.0, "gemma-3-1b-it-GGUF:Q8_0"),
        ("Devstral-Small-2507", "devstral-small", 23.6, "Mistral-Small-3.1-DRAFT-0.5B-GGUF:Q8_0"),
        ("DeepSeek-R1-Distill-Qwen-32B", R1_QWEN, 32.8, "DeepSeek-R1-Distill-Qwen-1.5B-GGUF:Q8_0"),
        ("DeepSeek R1", "deepseek-r1", 671.0, "DeepSeek-R1-DRAFT-0.5B-v1.0-GGUF:Q8_0"),
    ],
)
def test_families_find_their_draft(name: str, family: str, billions: float, first: str) -> None:
    assert drafts(name, family, billions)[0] == first


@pytest.mark.parametrize(
    ("name", "family", "billions"),
    [
        ("Qwen2.5-0.5B-Instruct", "qwen2.5", 0.49),  # it is the draft
        ("Qwen3.5-27B", "qwen3.5", 27.0),  # hybrid: nothing can be rolled back
        ("paceline-zoo-target", "paceline-zoo", 0.0126),
        ("", "", 7.0),
    ],
)
def test_no_draft_where_none_is_known(name: str, family: str, billions: float) -> None:
    assert drafts(name, family, billions) == []


@pytest.mark.parametrize(
    ("reference", "family", "billions"),
    [
        ("hf.co/Qwen/Qwen3-Coder-480B-A35B-Instruct-GGUF:Q4_K_M", "qwen3-coder", 480.0),
        ("ollama:llama3.1:8b", "llama3.1", 8.0),
        ("unsloth/Qwen3-0.6B-GGUF", "qwen3", 0.6),
        ("hf.co/x/phi-4", "phi-4", None),
    ],
)
def test_a_name_says_family_and_size(reference: str, family: str, billions: float | None) -> None:
    known = facts_of_name(reference)
    assert (known.family, known.parameters) == (family, billions and round(billions * 1e9))


def test_a_reported_draft_comes_before_a_recalled_one() -> None:
    found = [pair.pair for pair in known_drafts(facts("llama-3.1-8b", "llama-3.1", 8.0))]
    assert found == sorted(found, reverse=True)
    (coder,) = known_drafts(facts_of_name("hf.co/Qwen/Qwen3-Coder-480B-A35B-Instruct-GGUF"))
    assert coder.kind == "transplant"


def test_the_documentation_lists_every_draft() -> None:
    text = (Path(__file__).parents[3] / "docs" / "pairs.md").read_text("utf-8")
    for pair in known_pairs():
        lines = [line for line in text.splitlines() if f"| {pair.draft.removeprefix('hf.co/')} |" in line]
        assert any(pair.source in line and pair.kind in line for line in lines)
