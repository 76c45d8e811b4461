"""transformers with the embedded pair; tests that need torch are skipped without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import paceline
from gguf_files import write_llama
from paceline.bench.baselines.hf import Transformers
from paceline.bench.system import BenchRequest
from paceline.models import zoo
from paceline.speculative.errors import BaselineError, ModelError, UsageError
from paceline.speculative.sampling import Sampling

PROMPT = BenchRequest("import os\n\ndef main(", (975, 936, 199, 199, 505, 2474, 8), max_tokens=12)


@pytest.fixture(scope="module")
def systems() -> dict[str, Transformers]:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    settings: dict[str, Any] = {"n_draft": 4, "threads": 1}
    drafts = {"none": None, "model": zoo.draft_path(), "lookup": None}
    return {
        one: Transformers(zoo.target_path(), draft, name=one, drafting=one, **settings)
        for one, draft in drafts.items()
    }


def test_every_drafting_says_what_plain_decoding_says(systems: dict[str, Transformers]) -> None:
    plain = systems["none"].answer(PROMPT)
    with paceline.load(f"hf:{zoo.target_path()}", drafters="none", threads=1) as llm:
        ours = llm.generate(PROMPT.tokens, max_tokens=PROMPT.max_tokens, ignore_eos=True)
    assert (plain.tokens, plain.text) == (tuple(ours.tokens), ours.text)
    assert (plain.n_tokens, plain.n_prompt, plain.decoded) == (12, 7, 11)
    for drafting in ("model", "lookup"):
        drafted = systems[drafting].answer(PROMPT)
        assert (drafted.tokens, drafted.text) == (plain.tokens, plain.text)


def test_passes_and_drafted_tokens_are_counted(systems: dict[str, Transformers]) -> None:
    plain, model = systems["none"].answer(PROMPT), systems["model"].answer(PROMPT)
    assert (plain.steps, plain.drafted, plain.accepted, plain.rejected) == (12, 0, 0, 0)
    steps, drafted, accepted = (model.steps or 0), (model.drafted or 0), (model.accepted or 0)
    assert model.n_tokens == steps + accepted
    assert 0 < accepted < drafted <= 4 * steps
    assert (model.rejected or 0) > 0
    assert 0.0 < model.decoding < model.seconds


def test_the_end_token_does_not_end_an_answer(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    system = Transformers(write_llama(tmp_path / "tiny.gguf"), name="hf", threads=1)
    said = system.answer(BenchRequest("a", (97,), 200))
    assert said.tokens is not None
    assert (said.n_tokens, 256 in said.tokens) == (200, True)


def test_what_it_cannot_do_is_refused(systems: dict[str, Transformers]) -> None:
    with pytest.raises(UsageError, match="no penalties over a window"):
        systems["none"].answer(replace(PROMPT, sampling=Sampling(repeat_penalty=1.1)))


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    with pytest.raises(UsageError, match=r"none\.gguf: no such folder or file"):
        Transformers(tmp_path / "none.gguf", name="hf")
    with pytest.raises(UsageError, match="drafts by a whole model, not by view:exit=2"):
        Transformers(zoo.target_path(), Path("view:exit=2"), name="hf", drafting="model")
    (tmp_path / "garbage.gguf").write_bytes(b"this is no model" * 100)
    with pytest.raises(ModelError, match=r"garbage\.gguf: "):
        Transformers(tmp_path / "garbage.gguf", name="hf")
    other = Transformers(zoo.target_path(), write_llama(tmp_path / "other.gguf"), name="hf", drafting="model")
    with pytest.raises(BaselineError, match="hf failed: "):
        other.answer(PROMPT)
