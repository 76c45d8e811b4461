"""Prompts of which a part is computed: what is chosen, and what sessions make of it, in both backends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch

import paceline
from gguf_architectures import write_architecture
from gguf_files import rewritten
from hf_models import folder_of
from paceline.backends.interface import Backend
from paceline.backends.llama_cpp import LlamaTarget
from paceline.backends.speculative_prefill import CHUNK, SHORT, AttentionSelector, select_chunks
from paceline.backends.toy import ToyTarget
from paceline.backends.transformers.target import HfTarget
from paceline.bench.paceline_system import LoadedModels
from paceline.bench.provenance import provenance
from paceline.models.headers.gguf_writer import metadata_field
from paceline.settings import LoadOptions
from paceline.speculative.errors import ModelError, UsageError, VocabError
from paceline.speculative.interfaces import NO_OUTPUTS
from paceline.speculative.tree import DraftTree, chain
from rows import rows_of

N = 40
PROMPT = np.random.default_rng(5).integers(5, 200, N).tolist()
SPARSE = [*range(6), *range(10, 17), *range(30, N)]
LONG = np.random.default_rng(6).integers(5, 200, SHORT + 90).tolist()
TREE = DraftTree((9, 8, 7, 6, 5), (-1, -1, 0, 2, 1), (1.0,) * 5, ("test",) * 5)


@pytest.fixture(scope="module")
def one_layer(models: Path) -> Path:
    return models / "draft.gguf"


@pytest.fixture(params=["llama.cpp", "transformers"])
def engine(request: pytest.FixtureRequest, target: Path) -> Iterator[Any]:
    if request.param == "llama.cpp":
        opened: Any = LlamaTarget(target, n_ctx=512, sessions=2)
    else:
        opened = HfTarget(Path(f"hf:{target}"), n_ctx=512, sessions=2)
    with closing(opened):
        yield opened


def sparse_row(target: Any) -> Any:
    with closing(target.open()) as session:
        session.extend_sparse(PROMPT, SPARSE)
        return rows_of(target, session)[0]


def test_whole_chunks_of_the_most_attention_are_chosen() -> None:
    n = 10 * CHUNK + 5
    attention = np.zeros((3, n), np.float32)
    attention[1, 5 + 4 * CHUNK + 16] = 1.0  # in the chunk that begins at 5 + 4 * CHUNK
    attention[2, 5 + 7 * CHUNK + 16] = 0.6
    first, last = range(5), range(n - CHUNK, n)
    fifth = range(5 + 4 * CHUNK, 5 + 5 * CHUNK)
    assert select_chunks(attention, 0.01) == [*first, *last]
    assert select_chunks(attention, 2.9 * CHUNK / n) == [*first, *fifth, *last]
    assert select_chunks(attention, 3.9 * CHUNK / n) == [
        *first, *fifth, *range(5 + 7 * CHUNK, 5 + 8 * CHUNK), *last
    ]  # fmt: skip
    assert select_chunks(attention, 0.999) == list(range(n))
    assert select_chunks(np.ones((1, CHUNK), np.float32), 0.5) == list(range(CHUNK))


def test_engines_agree_on_what_is_attended_to(target: Path) -> None:
    found = []
    for opened in (
        LlamaTarget(target, n_ctx=512),
        LlamaTarget(target, n_ctx=512, kernels=False, flash_attention=False),
        HfTarget(Path(f"hf:{target}"), n_ctx=512),
    ):
        with closing(opened):
            found.append(opened.prompt_attention(PROMPT, 4))
            again = opened.prompt_attention(PROMPT, 4)
            assert np.allclose(again, found[-1], atol=2e-2)
    assert found[0].shape == (4, N)
    for other in found[1:]:
        assert np.allclose(found[0], other, atol=2e-2)
    assert (found[0] > 0).all()
    assert (found[0] <= 1).all()
    assert not np.allclose(found[0][0], found[0][1])  # of other tokens


def test_attention_ends_with_the_context(target: Path) -> None:
    with closing(LlamaTarget(target, n_ctx=N + 2)) as opened:
        assert opened.prompt_attention(PROMPT, 8).shape == (3, N)


def test_transformers_computes_tokens_at_their_positions(target: Path) -> None:
    with closing(HfTarget(Path(f"hf:{target}"), n_ctx=128)) as opened:
        ids = torch.tensor([[PROMPT[at] for at in SPARSE]])
        with torch.inference_mode():
            expected = opened._model(input_ids=ids, position_ids=torch.tensor([SPARSE])).logits[0, -1]
        assert np.allclose(sparse_row(opened), expected.float().numpy(), atol=1e-4)
        with closing(opened.open()) as session:
            session.extend(PROMPT)
            assert not np.allclose(rows_of(opened, session)[0], expected.float().numpy(), atol=1e-2)


def test_llama_cpp_moves_keys_to_their_positions(one_layer: Path) -> None:
    """With one layer, no key depends on a distance, so that the moved ones are those of the positions."""
    with (
        closing(LlamaTarget(one_layer, n_ctx=128, cache_type="f32")) as ours,
        closing(HfTarget(Path(f"hf:{one_layer}"), n_ctx=128)) as theirs,
    ):
        assert np.allclose(sparse_row(ours), sparse_row(theirs), atol=2e-2)
        with closing(ours.open()) as session:  # closer positions say something else
            session.extend([PROMPT[at] for at in SPARSE])
            assert not np.allclose(rows_of(ours, session)[0], sparse_row(theirs), atol=0.1)


def test_drafts_change_nothing(engine: Any) -> None:
    """A tree's rows, committed branches and rejections, against a session that goes token by token."""
    with closing(engine.open()) as session, closing(engine.open()) as plain:
        for one in (session, plain):
            one.extend_sparse(PROMPT, SPARSE)
            assert (one.n_skipped, one.pending_tokens) == (N - len(SPARSE), len(SPARSE) - 1)
        engine.forward([(session, 4)], NO_OUTPUTS)
        engine.forward([(session, session.pending_tokens)], NO_OUTPUTS)
        rows = rows_of(engine, session, TREE)
        session.commit([1, 4], 77)  # the second branch
        assert session.tokens == [*PROMPT, 8, 5, 77]
        rows = np.concatenate([rows[[0, 2, 5]], rows_of(engine, session, chain([1, 2], "test"))[:1]])
        session.commit([], 78)
        rows = np.concatenate([rows, rows_of(engine, session)])
        single = []
        for token in (8, 5, 77, 78, 0):
            single.append(rows_of(engine, plain)[0])
            plain.commit([], token)
        assert np.allclose(rows, single, atol=5e-3)
        assert session.context_length == len(SPARSE) + 4


def test_what_was_left_out_is_not_reused(engine: Any) -> None:
    def dense() -> Any:
        with closing(engine.open()) as session:
            session.extend(PROMPT)
            return rows_of(engine, session)[0]

    alone = dense()
    engine.forget()
    with closing(engine.open()) as session:
        session.extend_sparse(PROMPT, SPARSE)
        first = rows_of(engine, session)[0]
        assert np.allclose(dense(), alone, atol=5e-3)  # beside it
        session.commit([], 3)
        rows_of(engine, session)
    assert np.allclose(dense(), alone, atol=5e-3)  # after it
    with closing(engine.open()) as session:  # the prefix before the gap is
        session.extend_sparse(PROMPT, SPARSE)
        assert session.pending_tokens == len(SPARSE) - 1 - 6
        assert np.allclose(rows_of(engine, session)[0], first, atol=5e-3)
    dropped = engine.open()
    dropped.extend_sparse(PROMPT, SPARSE)
    rows_of(engine, dropped)
    del dropped  # as an interrupt does
    assert np.allclose(dense(), alone, atol=5e-3)


def test_a_prompt_without_gaps_is_one_like_others(engine: Any) -> None:
    with closing(engine.open()) as session:
        session.extend_sparse(PROMPT, range(N))
        assert session.n_skipped == 0
    for positions in ([], [0, 1], SPARSE[:-1]):
        with closing(engine.open()) as session, pytest.raises(AssertionError, match="has its last token"):
            session.extend_sparse(PROMPT, positions)
    with closing(engine.open()) as session:
        with pytest.raises(UsageError, match="do not fit the context"):
            session.extend_sparse([1] * 600, [0, 599])
        session.extend_sparse(PROMPT, [N - 1])  # nothing but the root
        rows_of(engine, session)


def test_a_new_context_computes_the_tokens_again(target: Path) -> None:
    """The first pass that wants hidden states makes one."""
    with closing(LlamaTarget(target, n_ctx=128)) as opened, closing(opened.open()) as session:
        session.extend_sparse(PROMPT, SPARSE)
        for token in (7, 8, 9):
            rows_of(opened, session)
            session.commit([], token)
        before = rows_of(opened, session)
        opened.renew_context()
        assert session.pending_tokens == len(SPARSE) + 2
        assert np.allclose(rows_of(opened, session), before, atol=2e-2)
        opened.close()  # before the session


def test_a_request_that_waits_selects_once(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = models / "target.gguf", models / "draft.gguf"
    with paceline.load(target, draft, "none", lossy="prefill=0.3", threads=1, n_ctx=512) as llm:
        selector: Any = llm.target
        counted = Counted(selector.prompt_selector)
        monkeypatch.setattr(llm.target, "prompt_selector", counted)
        threads = [Thread(target=llm.generate, args=(LONG,), kwargs={"max_tokens": 9}) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counted.calls == 3


class Counted:
    description = "counted"

    def __init__(self, inner: Any) -> None:
        self.inner, self.calls = inner, 0

    def select(self, prompt: Any) -> Any:
        self.calls += 1
        return self.inner.select(prompt)


def test_a_bench_selects_for_all_its_methods(models: Path) -> None:
    draft = models / "draft.gguf"
    for lossy, alters in (("prefill=0.3", "with 30% of a long prompt"), ("", "")):
        with LoadedModels(
            LoadOptions.of(models / "target.gguf", threads=1, n_ctx=512, lossy=lossy), draft
        ) as loaded:
            assert loaded.plain.target.modification == alters
            assert loaded._load_draft(draft).modification == ""
            assert (loaded.plain.draft is None) == (not lossy)


def test_tokens_that_the_draft_lacks_are_read_as_another() -> None:
    class Draft:
        vocab = ToyTarget(100).vocab

        def prompt_attention(self, prompt: Any, steps: int) -> Any:
            assert max(prompt) < 100
            return np.ones((steps, len(prompt)), np.float32)

    prompt = [99, 100, 250] * 100
    assert len(AttentionSelector(Draft(), 0.5).select(prompt)) < len(prompt)
    assert AttentionSelector(Draft(), 0.125).description == "with 12.5% of a long prompt"


def test_eager_passes_are_no_costs_of_the_draft(target: Path) -> None:
    with closing(HfTarget(Path(f"hf:{target}"), n_ctx=128)) as opened:
        opened.on_forward = lambda *_: pytest.fail("a pass was timed")
        opened.prompt_attention(PROMPT, 2)
        assert opened.on_forward is not None


@pytest.mark.parametrize("kind", ["gguf", "hf"])
def test_an_answer_is_drafted_as_without_drafts(kind: str, models: Path) -> None:
    prefix = "hf:" if kind == "hf" else ""
    target, draft = f"{prefix}{models / 'target.gguf'}", f"{prefix}{models / 'draft.gguf'}"
    answers = []
    for drafters in ("none", "lookup,model"):
        with paceline.load(
            target, draft, drafters, lossy="prefill=0.3", threads=1, n_ctx=512, sessions=2, policy="fixed"
        ) as llm:
            answer = llm.generate(LONG, max_tokens=30, ignore_eos=True)
            assert answer.n_skipped > 0.5 * len(LONG)
            assert llm.generate(LONG, max_tokens=30, ignore_eos=True).tokens == answer.tokens
            both = llm.generate([LONG, LONG[:50]], max_tokens=30, ignore_eos=True)
            assert [one.tokens == answer.tokens for one in both] == [True, False]
            assert both[1].n_skipped == 0
            assert provenance(llm, {})["target"]["alters"] == "with 30% of a long prompt"
            answers.append(answer)
    plain, drafted = answers
    assert drafted.tokens == plain.tokens
    assert drafted.stats.drafted > 0
    with paceline.load(target, None, "none", threads=1, n_ctx=512) as llm:
        assert llm.generate(LONG, max_tokens=30, ignore_eos=True).tokens != plain.tokens


def test_impossible_choices_are_refused(models: Path, tmp_path: Path, foreign_draft: Path) -> None:
    target, draft = models / "target.gguf", models / "draft.gguf"

    def refuses(error: type[Exception], reason: str, model: Any, other: Any, **given: Any) -> None:
        with pytest.raises(error, match=reason):
            paceline.load(model, other, lossy="prefill=0.2", threads=1, **given)

    refuses(UsageError, "a draft model has to say", target, None)
    hf = folder_of("llama", tmp_path / "llama")
    refuses(UsageError, "no view or head", hf, "view:exit=1")
    refuses(UsageError, "no prompt tokens can be left out", target, draft, exact_greedy=True, kernels="off")
    mamba = write_architecture(tmp_path / "mamba.gguf", "mamba")
    refuses(UsageError, "no prompt tokens can be left out for recurrent models", mamba, draft)
    refuses(VocabError, "another vocabulary", None, foreign_draft)
    refuses(UsageError, "role quality", target, draft, role="quality")
    refuses(UsageError, "a cache of bf16", target, draft, cache_type="bf16")
    scaling = {(key := "llama.rope.scaling.type"): metadata_field(key, "yarn")}
    yarn = rewritten(target, tmp_path / "yarn.gguf", lambda fields, _: fields.update(scaling))
    refuses(UsageError, "scaled rotary", yarn, draft)
    windowed = folder_of("mistral", tmp_path / "windowed")
    refuses(UsageError, "an attention window", windowed, None)


def test_a_graph_without_attention_is_reported(tmp_path: Path) -> None:
    mamba = write_architecture(tmp_path / "mamba.gguf", "mamba")
    with (
        closing(LlamaTarget(mamba, n_ctx=128)) as opened,
        pytest.raises(ModelError, match="does not show what"),
    ):
        opened.prompt_attention(PROMPT, 2)
    recurrent = folder_of("mamba", tmp_path / "hf")
    with closing(HfTarget(recurrent, n_ctx=128)) as opened:
        model: Backend = opened
        with pytest.raises(ModelError, match="does not return weights"):
            model.prompt_attention([5, 6, 7], 2)  # type: ignore[attr-defined]
