"""llama.cpp with the embedded models: drafted output is plain output, and state is really reused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.api import LLM
from paceline.backends.llama_cpp import LlamaTarget
from paceline.models import zoo
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import ROOT, DraftTree
from rows import text_rows

N = 96
PROMPTS = {
    "code": 'def read_table(path, separator=","):\n    """Return the rows of a file as lists of fields."""\n',
    "json": '{"tool": "search", "arguments": {"query": "files", "limit": 10}}\n{"tool": "search", "arg',
}
WAYS: dict[str, dict[str, Any]] = {
    "lookup": {"drafters": "lookup"},
    "model": {"drafters": "model"},
    "model, long drafts": {"drafters": "model", "n_draft": 16, "p_min": 0.3},
    "model, trees": {"drafters": "model", "n_draft": 4, "width": 4, "p_split": 0.05},
    "lookup,model": {"drafters": "lookup,model"},
}


@pytest.fixture(scope="module", params=WAYS)
def exact(request: pytest.FixtureRequest, unrounded: Path) -> Iterator[LLM]:
    way = WAYS[request.param]
    draft = zoo.draft_path() if "model" in way["drafters"] else None
    with paceline.load(unrounded, draft, n_ctx=1024, flash_attention=False, cache_type="f32", **way) as llm:
        yield llm


@pytest.mark.parametrize("kind", ["code", "json"])
def test_without_rounding_greedy_output_is_plain_output(exact: LLM, kind: str) -> None:
    """F32 leaves no rounding to excuse a difference, for any drafter, chain or tree."""
    prompt = exact.tokens(PROMPTS[kind])
    plain = exact.generate(prompt, max_tokens=N, plain=True, ignore_eos=True)
    drafted = exact.generate(prompt, max_tokens=N, ignore_eos=True)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.accepted > 0


@pytest.fixture
def small(models: Path) -> Iterator[LlamaTarget]:
    target = LlamaTarget(models / "target.gguf", n_ctx=128, threads=1, sessions=2)
    yield target
    target.close()


def test_a_closed_model_says_so(models: Path) -> None:
    llm = paceline.load(models / "target.gguf", threads=1, n_ctx=64)
    stream = llm.stream([1, 2, 3], max_tokens=9, ignore_eos=True)
    next(stream)
    llm.close()
    vocab = llm.target.vocab
    uses: list[Callable[[], Any]] = [
        lambda: next(stream),
        lambda: llm.generate([1, 2]),
        lambda: llm.generate("text"),
        lambda: vocab.text(5),
        lambda: vocab.piece(5),
    ]
    for use in uses:
        with pytest.raises(UsageError, match="the model is closed"):
            use()


def test_many_sessions_compute_full_trees_and_prompts_in_one_pass(models: Path) -> None:
    """No limit of llama.cpp on rows, branches or batches is exceeded."""
    target = LlamaTarget(models / "target.gguf", n_ctx=96, threads=1, sessions=48)
    n = min(target.caps.max_branches, target.caps.max_batch_tokens // 48 - 1, target.caps.max_tree_nodes)
    tree = DraftTree(tuple(range(n)), (ROOT,) * n, (0.5,) * n, ("x",) * n)
    batch = [(target.open(), tree) for _ in range(48)]
    for i, (session, _) in enumerate(batch):
        session.extend([i, *range(32)])
    for out in target.forward(batch, RequiredOutputs()):
        assert all(np.isfinite(out.logits(row)).all() for row in range(n + 1))
    target.close()
    with pytest.raises(UsageError, match="300 sessions"):
        LlamaTarget(models / "target.gguf", sessions=300)


def test_a_full_context_is_reported(small: LlamaTarget) -> None:
    session = small.open()
    with pytest.raises(UsageError, match="do not fit the context of 128"):
        session.extend([1] * 129)


def test_text_survives_tokens_whatever_its_bytes(small: LlamaTarget) -> None:
    for text in ("def f(x):\n\treturn x  # ü€😀", "a\r\n\n\n b", "\x00\x7f", " " * 300):
        tokens = small.text.encode(text)
        assert b"".join(small.text.piece(t) for t in tokens).decode() == text
    assert small.text.encode("<|end|>", special=True) == [256]
    assert len(small.text.encode("<|end|>")) > 1
    assert small.text.piece(256) == b""


def test_a_sibling_has_the_same_weights_and_a_cache_of_its_own(small: LlamaTarget) -> None:
    other = small.with_shared_weights(n_ctx=32, flash_attention=False)
    assert (other.caps.n_ctx, other.settings["flash_attention"]) == (32, False)
    assert other.model is small.model
    first, second = text_rows(small, [1, 2, 3]), text_rows(other, [1, 2, 3])
    np.testing.assert_allclose(first, second, atol=1e-2 * float(np.ptp(first)))
    other.close()
    small.forget()
    np.testing.assert_array_equal(text_rows(small, [1, 2, 3]), first)  # which stay
