"""A real draft model with another tokenizer: outputs equal plain ones, and drafts are accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.api import LLM
from paceline.drafters.model import ModelDrafter
from paceline.drafters.slem import SlemDrafter
from paceline.models import zoo
from paceline.speculative.errors import VocabError

N = 64
PROMPTS = {
    "code": 'def read_table(path, separator=","):\n    """Return the rows of a file as lists of fields."""\n',
    "json": '{"tool": "search", "arguments": {"query": "files", "limit": 10}}\n{"tool": "search", "arg',
    "prose": "Die Straße führt über den Fluß – «déjà vu» für 20 €: 東京 😀. The function returns a list of",
}
WAYS: dict[str, dict[str, Any]] = {
    "tli": {"cross_vocab": "tli"},
    "tli, trees": {"cross_vocab": "tli", "n_draft": 4, "width": 4, "p_split": 0.05},
    "tli, sampled": {"cross_vocab": "tli", "draft_temp": 0.8},
    "slem": {"cross_vocab": "slem"},
    "slem, long drafts": {"cross_vocab": "slem", "n_draft": 16, "p_min": 0.2},
    "slem after lookup": {"cross_vocab": "slem", "drafters": "lookup,model"},
}


@pytest.fixture(scope="module", params=WAYS)
def llm(request: pytest.FixtureRequest, unrounded: Path, foreign_draft: Path) -> Iterator[LLM]:
    """Load a pair in F32 throughout, which leaves no rounding to excuse a difference."""
    way: dict[str, Any] = {"drafters": "model", "p_min": 0.3} | WAYS[request.param]
    engine: dict[str, Any] = {"n_ctx": 1024, "threads": 1, "flash_attention": False, "cache_type": "f32"}
    with paceline.load(unrounded, foreign_draft, **engine, **way) as llm:
        yield llm


def test_the_foreign_draft_is_foreign(foreign_draft: Path) -> None:
    """Fewer tokens, other ids, other boundaries; the same text."""
    with pytest.raises(VocabError, match="the draft has another vocabulary: BOS token"):
        paceline.load(zoo.target_path(), foreign_draft, threads=1)
    text = "".join(PROMPTS.values())
    with paceline.load(foreign_draft, drafters="none", threads=1) as foreign, paceline.load(threads=1) as own:
        pieces = [[llm.target.text.piece(t) for t in llm.tokens(text)] for llm in (foreign, own)]
        assert foreign.target.vocab.size == 2257
    assert b"".join(pieces[0]) == b"".join(pieces[1]) == text.encode()
    assert len(pieces[0]) > len(pieces[1])


@pytest.mark.parametrize("kind", PROMPTS)
def test_greedy_output_is_plain_output(llm: LLM, kind: str) -> None:
    prompt = llm.tokens(PROMPTS[kind])
    plain = llm.generate(prompt, max_tokens=N, plain=True, ignore_eos=True)
    drafted = llm.generate(prompt, max_tokens=N, ignore_eos=True)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.by_source["model"].accepted > 0


def test_the_text_of_a_seed_is_plain_samplings_unless_drafts_are_sampled_too(llm: LLM) -> None:
    request: dict[str, Any] = {"max_tokens": 32, "temperature": 0.8, "ignore_eos": True}
    for seed, kind in enumerate(PROMPTS):
        plain = llm.generate(PROMPTS[kind], plain=True, seed=seed, **request)
        drafted = llm.generate(PROMPTS[kind], seed=seed, **request)
        assert drafted.tokens == plain.tokens or llm.drafting.draft_temp > 0
        assert drafted.stats.drafted > 0


def test_tokens_that_are_half_characters_are_read_and_drafted_after(llm: LLM) -> None:
    """A prompt that ends within a character, and one that is no text at all."""
    euro = [t for byte in "€".encode() for t in range(257) if llm.target.text.piece(t) == bytes([byte])]
    for prompt in (euro[:1], euro[1:], [*llm.tokens("for 20 "), *euro[:2]], [*euro[:2], *euro, 0, *euro[:1]]):
        plain = llm.generate(prompt, max_tokens=12, plain=True, ignore_eos=True)
        assert llm.generate(prompt, max_tokens=12, ignore_eos=True).tokens == plain.tokens


@pytest.mark.parametrize(
    ("merges", "settings", "chosen"),
    [(2000, {}, "slem"), (2000, {"width": 2}, "tli"), (2000, {"draft_temp": 0.5}, "tli"), (6000, {}, "tli")],
)
def test_auto_takes_tli_where_the_draft_has_nearly_every_usual_token_or_must(
    tmp_path: Path, merges: int, settings: dict[str, Any], chosen: str
) -> None:
    from foreign import write_foreign

    draft = write_foreign(tmp_path / "draft.gguf", merges=merges)
    with paceline.load(
        zoo.target_path(), draft, "model", n_ctx=64, threads=1, cross_vocab="auto", **settings
    ) as llm:
        assert llm.drafting.cross_vocab == chosen
        (drafter,) = llm.drafter.drafters  # type: ignore[attr-defined]  # a composition of one
        assert isinstance(drafter, SlemDrafter if chosen == "slem" else ModelDrafter)
        assert llm.draft is not None
        assert llm.draft.path == draft


def test_auto_leaves_a_draft_of_the_same_vocabulary_alone() -> None:
    with paceline.load(n_ctx=64, threads=1, cross_vocab="auto") as llm:
        assert llm.drafting.cross_vocab == "off"


def test_vocabularies_with_nothing_in_common_are_refused_for_tli_only(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.vocab.translation.Intersection.__len__", lambda _: 0)
    pair = (models / "target.gguf", models / "draft.gguf", "model")
    with pytest.raises(VocabError, match="no token in common with the target's: use cross_vocab slem"):
        paceline.load(*pair, threads=1, cross_vocab="tli")
    with paceline.load(*pair, threads=1, cross_vocab="slem") as llm:
        assert llm.generate([1, 2], max_tokens=4, ignore_eos=True).n_tokens == 4
