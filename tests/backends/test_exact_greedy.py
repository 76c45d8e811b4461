"""Exact rows: passes of one shape, so that a row is the same to the last bit whatever else is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from gguf_files import convert, write_llama
from paceline.backends.llama_cpp import LlamaTarget
from paceline.backends.llama_cpp.exactness import FilledPasses
from paceline.backends.logit_drift import teacher_forced_logits
from paceline.models import zoo
from paceline.speculative.errors import ModelError
from rows import rows_of, text_rows

ROWS = 8
KINDS = ("F16", "Q8_0", "Q4_0")
PROMPTS = [
    "def add(a, b):\n    return",
    '[{"id": 1, "name": "bolt"}, {"id": 2, "name": "nut"}, {"id": 3, "name":',
    "one two three four five six one two three four five six one",
]


@pytest.fixture(scope="module")
def weights(unrounded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the embedded target in each of KINDS."""
    folder = tmp_path_factory.mktemp("weights")
    for kind in KINDS:
        convert(unrounded, folder / f"{kind}.gguf", kind)
    return folder


@pytest.fixture(
    scope="module",
    params=[("F16", True), ("Q8_0", False), ("Q4_0", True)],
    ids=lambda p: f"{p[0]}, flash attention {'on' if p[1] else 'off'}",
)
def exact(request: pytest.FixtureRequest, weights: Path) -> Iterator[LlamaTarget]:
    kind, flash = request.param
    path = weights / f"{kind}.gguf"
    target = LlamaTarget(path, n_ctx=256, threads=1, exact_rows=ROWS, flash_attention=flash, kernels=False)
    yield target
    target.close()


@pytest.fixture
def tiny(models: Path) -> Iterator[LlamaTarget]:
    target = LlamaTarget(models / "target.gguf", n_ctx=64, threads=1, exact_rows=ROWS, kernels=False)
    yield target
    target.close()


def row_after(target: LlamaTarget, *prompts: Sequence[int]) -> np.ndarray:
    """The row after the last of `prompts`, each a session of its own."""
    for prompt in prompts:
        (row,) = text_rows(target, prompt)
    return np.array(row)


def test_rows_are_equal_to_the_last_bit_however_many_a_pass_has(exact: LlamaTarget) -> None:
    tokens = exact.text.encode(PROMPTS[1])
    assert len(tokens) > 20
    one_by_one = teacher_forced_logits(exact, tokens, 8, 1)
    for n in (2, 5, ROWS):
        np.testing.assert_array_equal(teacher_forced_logits(exact, tokens, 8, n), one_by_one)


def test_what_was_asked_before_changes_no_bit(exact: LlamaTarget) -> None:
    """A prompt pass has a shape of its own: only a prompt's own cells, and all of them, are taken over."""
    tokens = [int(t) for t in np.random.default_rng(1).integers(exact.vocab.size, size=50)]
    fresh = row_after(exact, [1, 2], tokens)
    other = (tokens[0] + 1) % exact.vocab.size
    for before in (tokens, tokens[:30], [*tokens[:47], other], [*tokens, other]):
        np.testing.assert_array_equal(row_after(exact, before, tokens), fresh)


def test_cells_that_an_answer_left_are_not_taken_for_a_prompts(tiny: LlamaTarget) -> None:
    """However long the prompt is that they would be right for, and whether or not their bits would differ."""
    tokens, session = list(range(1, 21)), tiny.open()
    session.extend(tokens[:10])
    for token in tokens[10:]:
        rows_of(tiny, session)
        session.commit((), token)
    assert (session.slot.prompt_length, session.slot.cached) == (9, tokens[:-1])
    session.close()
    again = tiny.open()
    again.extend(tokens)
    rows_of(tiny, again)
    assert (again.slot.prompt_length, again.slot.cached) == (19, tokens[:-1])


@pytest.mark.parametrize(("kind", "drafters"), [("Q8_0", "lookup,model"), ("Q4_0", "lookup")])
def test_drafted_greedy_output_is_plain_output(weights: Path, kind: str, drafters: str) -> None:
    draft = zoo.draft_path() if "model" in drafters else None
    way: dict[str, Any] = {"exact_greedy": True, "p_min": 0.1, "n_draft": 5, "kernels": "off"}
    with paceline.load(weights / f"{kind}.gguf", draft, drafters, n_ctx=256, threads=1, **way) as llm:
        assert (llm.target.settings["exact_rows"], llm.target.caps.max_branches) == (6, 1)
        accepted = 0
        request: dict[str, Any] = {"max_tokens": 16, "ignore_eos": True, "logprobs": 0}
        plain = [llm.generate(prompt, plain=True, **request) for prompt in PROMPTS]
        for prompt, expected in zip(PROMPTS, plain, strict=True):
            drafted = llm.generate(prompt, **request)
            assert drafted.tokens == expected.tokens
            assert drafted.logprobs == expected.logprobs
            accepted += drafted.stats.accepted
        assert accepted > 0


def test_a_mixture_of_experts_is_refused_and_its_memory_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_llama(tmp_path / "moe.gguf", experts=2)
    with paceline.load(path, threads=1, n_ctx=64) as llm:
        assert llm.generate("hello", max_tokens=3, ignore_eos=True).n_tokens == 3
    closed: list[LlamaTarget] = []
    close = LlamaTarget.close

    def noting(target: LlamaTarget) -> None:
        closed.append(target)
        close(target)

    monkeypatch.setattr(LlamaTarget, "close", noting)
    with pytest.raises(ModelError, match=r"moe\.gguf: .* leave out exact_greedy"):
        paceline.load(path, threads=1, n_ctx=64, exact_greedy=True, kernels="off")
    assert closed
    assert closed[0].model.pointer is None


def test_rows_that_differ_are_noticed_when_the_model_is_loaded(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FilledPasses, "joins", lambda *_: False)
    with pytest.raises(ModelError, match="logits depend on the other rows"):
        LlamaTarget(models / "target.gguf", n_ctx=64, threads=1, exact_rows=ROWS, kernels=False)


@pytest.mark.parametrize("n_ctx", [1, 2, 63, 256])
def test_filler_rows_fit_at_the_end_of_a_context(models: Path, n_ctx: int) -> None:
    path = models / "target.gguf"
    with closing(LlamaTarget(path, n_ctx=n_ctx, threads=1, exact_rows=ROWS, kernels=False)) as target:
        assert np.isfinite(row_after(target, [token % 256 for token in range(n_ctx)])).all()
