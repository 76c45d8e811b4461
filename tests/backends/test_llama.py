"""llama.cpp with the embedded models: drafted output is plain output, and state is really reused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import paceline
from paceline.api import LLM
from paceline.backends.llama_cpp import LlamaTarget, binding
from paceline.backends.llama_cpp.session import LlamaSession
from paceline.bench.text_comparison import explain
from paceline.drafters.model import ModelDrafter
from paceline.models import zoo
from paceline.speculative.errors import ContractError, ModelError, UsageError
from paceline.speculative.interfaces import Budget, RequiredOutputs
from paceline.speculative.loop import advance, start
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain

N = 96
PROMPTS = {
    "code": 'def read_table(path, separator=","):\n    """Return the rows of a file as lists of fields."""\n',
    "json": '{"tool": "search", "arguments": {"query": "files", "limit": 10}}\n{"tool": "search", "arg',
    "sql": "SELECT id, name FROM users WHERE created > '2024-01-01' ORDER BY name;\nSELECT id, name,",
    "prose": "The function returns a new list that contains the items of the old one, and",
}
WAYS: dict[str, dict[str, Any]] = {
    "lookup": {"drafters": "lookup"},
    "model": {"drafters": "model"},
    "model, long drafts": {"drafters": "model", "n_draft": 16, "p_min": 0.3},
    "model, trees": {"drafters": "model", "n_draft": 4, "width": 4, "p_split": 0.05},
    "lookup,model": {"drafters": "lookup,model"},
}


@pytest.fixture(scope="module", params=WAYS)
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    """As shipped: Q8_0, whose kernels round activations, so that near-ties may flip."""
    with paceline.load(n_ctx=1024, **WAYS[request.param]) as llm:
        yield llm


@pytest.fixture(scope="module", params=WAYS)
def exact(request: pytest.FixtureRequest, unrounded: Path) -> Iterator[LLM]:
    way = WAYS[request.param]
    draft = zoo.draft_path() if "model" in way["drafters"] else None
    with paceline.load(unrounded, draft, n_ctx=1024, flash_attention=False, cache_type="f32", **way) as llm:
        yield llm


@pytest.mark.parametrize("kind", ["sql", "prose"])
def test_greedy_output_differs_from_plain_only_at_near_ties(llm: LLM, kind: str) -> None:
    """Equal, or the two tokens at the first difference are closer than batching moves logits."""
    prompt = llm.tokens(PROMPTS[kind])
    plain = llm.generate(prompt, max_tokens=N, plain=True, ignore_eos=True)
    drafted = llm.generate(prompt, max_tokens=N, ignore_eos=True)
    difference = explain(llm.target, prompt, plain.tokens, drafted.tokens, llm.drafting.budget)
    assert difference is None or difference.near_tie, difference
    assert len(drafted.tokens) == N
    assert drafted.stats.accepted > 0


@pytest.mark.parametrize("kind", ["code", "json"])
def test_without_rounding_greedy_output_is_plain_output(exact: LLM, kind: str) -> None:
    """In F32 throughout nothing is left to excuse a difference: every drafter, chain and tree."""
    prompt = exact.tokens(PROMPTS[kind])
    plain = exact.generate(prompt, max_tokens=N, plain=True, ignore_eos=True)
    drafted = exact.generate(prompt, max_tokens=N, ignore_eos=True)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.accepted > 0


def test_seeded_sampling_with_greedy_drafts_gives_plain_samplings_text(exact: LLM) -> None:
    request: dict[str, Any] = {"max_tokens": 48, "temperature": 0.8, "top_k": 40, "ignore_eos": True}
    prompt = exact.tokens(PROMPTS["code"] * 3)
    n_drafted = 0
    for seed in range(3):
        plain = exact.generate(prompt, plain=True, seed=seed, **request)
        drafted = exact.generate(prompt, seed=seed, **request)
        assert drafted.tokens == plain.tokens
        n_drafted += drafted.stats.drafted
    assert n_drafted > 0


@pytest.fixture
def small(models: Path) -> Iterator[LlamaTarget]:
    target = LlamaTarget(models / "target.gguf", n_ctx=128, threads=1, sessions=2)
    yield target
    target.close()


def computed_tokens(target: LlamaTarget, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each llama_decode call computes, as they happen."""
    counts: list[int] = []
    decode = target._batch.decode

    def counting(context: object) -> int:
        counts.append(len(target._batch))
        return decode(context)

    monkeypatch.setattr(target._batch, "decode", counting)
    return counts


def test_a_new_session_takes_over_the_prefix_an_old_one_computed(
    small: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = list(range(60))
    counts = computed_tokens(small, monkeypatch)
    first = small.open()
    first.extend(text)
    small.forward([(first, EMPTY)], RequiredOutputs())
    assert sum(counts) == 60
    first.close()
    counts.clear()
    second = small.open()
    second.extend([*text[:50], 99, 98])
    small.forward([(second, EMPTY)], RequiredOutputs())
    assert counts == [2]


def test_rejected_and_grown_drafts_cost_no_second_computation(
    small: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = small.open()
    session.extend([1, 2, 3])
    small.forward([(session, chain([4, 5, 6], "x"))], RequiredOutputs())
    counts = computed_tokens(small, monkeypatch)
    small.forward([(session, chain([4, 5, 6, 7], "x"))], RequiredOutputs())
    session.extend([4, 5, 9])
    small.forward([(session, EMPTY)], RequiredOutputs())
    assert counts == [1, 1]


FORK = DraftTree((4, 5, 6, 7), (ROOT, ROOT, 1, 2), (0.5,) * 4, ("x",) * 4)


@pytest.mark.parametrize(
    ("path", "kept"),
    [((), []), ((0,), [4]), ((1,), [5]), ((1, 2), [5, 6]), ((1, 2, 3), [5, 6, 7])],
    ids=["none", "first", "second", "cut", "whole"],
)
def test_the_cache_holds_the_path_that_was_kept_and_a_later_session_takes_that_over(
    small: LlamaTarget, monkeypatch: pytest.MonkeyPatch, path: tuple[int, ...], kept: list[int]
) -> None:
    """In name and in cells: whatever goes on from it, or from another branch, is as after forgetting all."""
    session = small.open()
    session.extend([1, 2, 3])
    small.forward([(session, FORK)], RequiredOutputs())
    session.commit(path, 9)
    assert session.tokens == [1, 2, 3, *kept, 9]
    assert session.slot.cached == [1, 2, 3, *kept]
    session.close()
    counts = computed_tokens(small, monkeypatch)
    texts = [[1, 2, 3, *kept, 8], [1, 2, 3, 4, 8], [1, 2, 3, 5, 6, 8]]
    taken_over = [last_row(small, text) for text in texts]
    assert counts[0] == 1
    for text, row in zip(texts, taken_over, strict=True):
        small.forget()
        np.testing.assert_allclose(row, last_row(small, text), atol=1e-2 * float(np.ptp(row)))


def test_after_a_stop_inside_a_draft_the_cache_holds_what_was_emitted_and_nothing_else(
    small: LlamaTarget,
) -> None:
    """The target drafts for itself: without the stop all would have been kept."""
    drafter = ModelDrafter(small.sibling(n_ctx=128, flash_attention=None), small.vocab.size)
    seen: list[int] = []

    def stop(token: int) -> bool:
        seen.append(token)
        return len(seen) == 3

    request = start(
        small, drafter, GenerationRequest(prompt=[65, 66, 67], max_tokens=20, ignore_eos=True), stop=stop
    )
    ((_, step),) = advance(small, drafter, FixedPolicy(Budget(6, 6)), [request])
    assert (step.stop_reason, step.accepted["model"]) == ("stop", 6)
    assert isinstance(request.session, LlamaSession)
    assert request.session.tokens == [65, 66, 67, *seen]
    assert request.session.slot.cached == [65, 66, 67, *seen[:-1]]
    request.close()
    drafter.close()
    for text in ([65, 66, 67, *seen, 70], [65, 66, 67, *step.tree.tokens, 70]):
        row = last_row(small, text)
        small.forget()
        np.testing.assert_allclose(row, last_row(small, text), atol=1e-2 * float(np.ptp(row)))


def test_a_forward_that_fails_leaves_the_session_usable(small: LlamaTarget) -> None:
    session = small.open()
    session.extend([1, 2, 3])
    before = np.array(small.forward([(session, EMPTY)], RequiredOutputs())[0].logits(0))
    wide = DraftTree((1,) * 100, (ROOT,) * 100, (0.5,) * 100, ("x",) * 100)
    with pytest.raises(UsageError, match="branches"):
        small.forward([(session, wide)], RequiredOutputs())
    after = np.array(small.forward([(session, EMPTY)], RequiredOutputs())[0].logits(0))
    assert np.abs(after - before).max() < 0.01
    assert small.cache.branches.count(None) == 64


@pytest.mark.parametrize("tree", [EMPTY, chain([4, 5], "x")], ids=["plain", "drafted"])
def test_an_interrupt_right_after_the_pass_leaves_no_cell_behind(
    small: LlamaTarget, monkeypatch: pytest.MonkeyPatch, tree: DraftTree
) -> None:
    """Python delivers Ctrl-C when llama_decode returns: the cells are written, and nobody has noted them."""
    expected = small.open()
    expected.extend([1, 2, 3])
    right = np.array(small.forward([(expected, EMPTY)], RequiredOutputs())[0].logits(0))
    expected.close()
    session = small.open()
    session.extend([9, 9, 9])
    decode = small._batch.decode

    def interrupted(context: object) -> int:
        decode(context)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(small._batch, "decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            small.forward([(session, tree)], RequiredOutputs())
    session.extend([1, 2])
    small.forward([(session, EMPTY)], RequiredOutputs())
    session.close()
    session = small.open()
    session.extend([1, 2, 3])
    after = np.array(small.forward([(session, EMPTY)], RequiredOutputs())[0].logits(0))
    assert np.abs(after - right).max() < 0.01


def test_many_sessions_take_full_trees_and_prompt_remainders_in_one_pass(models: Path) -> None:
    """As much as the caps allow at once: no batch, branch or row limit is hit."""
    target = LlamaTarget(models / "target.gguf", n_ctx=96, threads=1, sessions=48)
    n = min(target.caps.branch, target.caps.rows - 1)
    tree = DraftTree(tuple(range(n)), (ROOT,) * n, (0.5,) * n, ("x",) * n)
    batch = []
    for i in range(48):
        session = target.open()
        session.extend([i, *range(32)])
        batch.append((session, tree))
    outs = target.forward(batch, RequiredOutputs())
    assert len(outs) == 48
    assert np.isfinite(outs[47].logits(n)).all()
    target.close()
    with pytest.raises(UsageError, match="300 sessions"):
        LlamaTarget(models / "target.gguf", sessions=300)


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
    other = small.sibling(n_ctx=32, flash_attention=False)
    assert (other.caps.n_ctx, other.flash_attention, other._model) == (32, False, small._model)
    first, second = last_row(small, [1, 2, 3]), last_row(other, [1, 2, 3])
    np.testing.assert_allclose(first, second, atol=1e-2 * float(np.ptp(first)))
    other.close()
    small.forget()
    np.testing.assert_array_equal(last_row(small, [1, 2, 3]), first)  # which stay


def test_flash_attention_is_changed_between_sessions(
    small: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = last_row(small, [1, 2, 3])
    session = small.open()
    session.extend([1, 2])
    with pytest.raises(ContractError, match="while a session is open"):
        small.use_flash_attention(False)
    session.close()
    computed = computed_tokens(small, monkeypatch)
    small.use_flash_attention(False)
    other = small.sibling(n_ctx=128, flash_attention=False)
    np.testing.assert_array_equal(last_row(small, [1, 2, 3]), last_row(other, [1, 2, 3]))
    assert computed == [3]  # nothing is left of the old cache
    other.close()

    def full(*args: Any, flash_attention: bool | None, **more: Any) -> Any:
        if flash_attention is None:
            raise ModelError("no room")
        return made(*args, flash_attention=flash_attention, **more)

    made = binding.make_context
    monkeypatch.setattr(binding, "make_context", full)
    with pytest.raises(ModelError, match="no room"):
        small.use_flash_attention(None)
    assert small.flash_attention is False
    monkeypatch.undo()
    small.use_flash_attention(None)
    np.testing.assert_array_equal(last_row(small, [1, 2, 3]), before)


def last_row(target: LlamaTarget, tokens: list[int]) -> NDArray[np.float32]:
    session = target.open()
    session.extend(tokens)
    (said,) = target.forward([(session, EMPTY)], RequiredOutputs())
    row = np.array(said.logits(0))
    session.close()
    return row
