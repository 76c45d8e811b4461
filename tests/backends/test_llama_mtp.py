"""Multi-token prediction: the layers of a GGUF target as its draft head.

docs/heads.md says what they read. Text is compared with plain decoding, and rows with those of a session that
sees the text at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import paceline
from decoding import decoded
from gguf_architectures import write_architecture
from gguf_files import write_llama
from paceline.backends.llama_cpp import LlamaTarget, draft_vocab, kernels, mtp
from paceline.drafters.head import HeadDrafter
from paceline.drafters.none import NoDrafter
from paceline.heads.draft_base import MAX_BRANCHES
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.interfaces import NO_OUTPUTS, Budget, RequiredOutputs
from paceline.speculative.sampling import Sampling
from paceline.speculative.scheduler import Scheduler
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain
from stage import add_to

TOKENS = st.integers(0, 255)
CLOSE = 2e-3
FOUR = DraftTree((9, 3, 4, 7, 5), (ROOT, ROOT, 1, 1, 2), (0.5,) * 5, ("test",) * 5)
TEXT = list(range(5, 30))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mtp") / "quiet.gguf"
    return write_architecture(path, "qwen35", next_token_heads=1, quiet=True)


@pytest.fixture(scope="module")
def loud(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The draft is nearly always rejected."""
    return write_architecture(tmp_path_factory.mktemp("mtp") / "loud.gguf", "qwen35", next_token_heads=1)


@pytest.fixture(scope="module")
def target(file: Path) -> Iterator[LlamaTarget]:
    with closing(LlamaTarget(file, n_ctx=256, sessions=3, mtp=True)) as opened:
        yield opened


@pytest.fixture(scope="module")
def draft(target: LlamaTarget) -> Iterator[mtp.MtpDraft]:
    with closing(target.open_mtp()) as opened:
        yield opened


def states(draft: mtp.MtpDraft, tokens: Sequence[int]) -> np.ndarray:
    """The target's hidden states of a text."""
    draft.inner.forget()
    with closing(draft.inner.open()) as session:
        session.extend(tokens)
        (out,) = draft.inner.forward([(session, EMPTY)], RequiredOutputs(layers=draft.config.layer_ids))
        hidden: np.ndarray = out.features.hidden
    draft.inner.forget()
    return hidden


def session_of(draft: mtp.MtpDraft, tokens: Sequence[int], start: int = 0) -> mtp.MtpSession:
    session = draft.open()
    session.observe(start, states(draft, tokens)[start:-1])
    session.extend(tokens)
    return session


def rows(draft: mtp.MtpDraft, session: Any, tree: DraftTree = EMPTY) -> np.ndarray:
    (out,) = draft.forward([(session, tree)], NO_OUTPUTS)
    return np.array([out.logits(row) for row in range(1 + len(tree))])


operations = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), st.lists(TOKENS, min_size=1, max_size=4)),
        st.tuples(st.just("draft"), st.lists(TOKENS, min_size=1, max_size=4)),
        st.tuples(st.just("tree"), st.sampled_from([[], [0], [1, 2, 4], [1, 3]])),
        st.tuples(st.just("prefill"), st.just([])),
    ),
    max_size=6,
)


@given(prompt=st.lists(TOKENS, min_size=2, max_size=20), steps=operations)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_sequence_of_drafts_leaves_the_rows_of_the_text(
    draft: mtp.MtpDraft, prompt: list[int], steps: list[tuple[str, list[int]]]
) -> None:
    session, seen = session_of(draft, prompt), len(prompt) - 1
    for name, tokens in steps:
        if name == "extend":
            session.extend(tokens)
        elif name == "prefill":
            draft.forward([(session, session.pending_tokens)], NO_OUTPUTS)
        else:
            tree = FOUR if name == "tree" else chain(tokens, "test")
            rows(draft, session, tree)
            session.commit(tokens if name == "tree" else range(len(tokens) - 1), 77)
        text = list(session.tokens)
        session.observe(seen, states(draft, text)[seen:-1])
        seen = len(text) - 1
        assert session.is_ready
    fresh = rows(draft, session_of(draft, session.tokens), FOUR)
    assert np.abs(rows(draft, session, FOUR) - fresh).max() < CLOSE


def test_another_extra_makes_a_new_context_and_layers_are_in_their_order(file: Path) -> None:
    with closing(LlamaTarget(file, n_ctx=64, mtp=True)) as opened:

        def states_of(*layers: int) -> np.ndarray:
            with closing(opened.open()) as session:
                session.extend(TEXT)
                (out,) = opened.forward([(session, EMPTY)], RequiredOutputs(layers=layers))
            opened.forget()
            hidden: np.ndarray = out.features.hidden
            return hidden

        last = opened.layers + 1
        alone, both = states_of(last), states_of(1, last)
        assert np.allclose(both, np.concatenate([states_of(1), alone], axis=1), atol=1e-4)


def test_tokens_whose_states_were_not_shown_are_left_out(draft: mtp.MtpDraft) -> None:
    """As after a rest of the drafter, or if the target had a prefix in its cache."""
    session = session_of(draft, TEXT[:10])
    rows(draft, session)
    session.extend(TEXT[10:])
    assert not session.is_ready
    session.observe(20, states(draft, TEXT)[20:-1])
    assert session.is_ready
    n = session.cells
    found = rows(draft, session)
    assert session.cells == n + len(TEXT) - 1 - 20  # and the row of the first token
    late = rows(draft, session_of(draft, TEXT, start=20))
    assert not np.array_equal(found, late)  # the first tokens are in the cache


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_interrupt_leaves_the_rows_of_the_text(
    draft: mtp.MtpDraft, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Between the text and the draft, and within the draft."""
    session, decode, calls = session_of(draft, TEXT), draft._decode, []

    def interrupted(*args: Any, **more: Any) -> None:
        decode(*args, **more)
        calls.append(args)
        if len(calls) == at + 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(draft, "_decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            draft.forward([(session, FOUR)], NO_OUTPUTS)
    assert np.allclose(rows(draft, session, FOUR), rows(draft, session_of(draft, TEXT), FOUR), atol=CLOSE)
    assert len(draft._free_branches) == MAX_BRANCHES - len(session._branches)


def test_closed_sessions_give_way_to_open_ones(target: LlamaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(target.open_mtp()) as draft:
        monkeypatch.setattr(draft, "_cells", 60)
        closed = session_of(draft, TEXT)
        rows(draft, closed)
        closed.close()
        again = session_of(draft, TEXT)
        expected = rows(draft, again, FOUR)
        assert closed.cells == len(TEXT)
        other = session_of(draft, TEXT[::-1])
        rows(draft, other)
        assert closed.cells == 0
        again.discard_tree()
        assert np.allclose(rows(draft, again, FOUR), expected, atol=CLOSE)
        n = len(draft._free)
        assert closed.sequence == mtp.NO_SEQUENCE
        del other
        assert len(draft._free) == n + 1


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_drafted_text_is_plain_text(file: Path, width: int, temperature: float) -> None:
    """Hidden states are shown for all rows from the first draft on, which must not change a row."""
    with closing(LlamaTarget(file, n_ctx=512, sessions=1, mtp=True)) as target:
        request: dict[str, Any] = {"sampling": Sampling(temperature=temperature), "seed": 5}
        plain, _ = decoded(target, NoDrafter(), TEXT, 120, **request)
        drafter = HeadDrafter(target.open_mtp())
        text, steps = decoded(target, drafter, TEXT, 120, Budget(3, 3 * width, width=width), **request)
        accepted = sum(len(step.path) for step in steps)
        drafter.close()
    assert text == plain
    assert accepted > 20


def test_hundreds_of_rejections_on_a_hybrid_target(loud: Path) -> None:
    with paceline.load(loud, drafters="none", n_ctx=512) as llm:
        plain = llm.generate("once", max_tokens=300, ignore_eos=True).tokens
    with paceline.load(loud, drafters="mtp", policy="fixed", n_draft=3, n_ctx=512) as llm:
        result = llm.generate("once", max_tokens=300, ignore_eos=True)
    assert result.tokens == plain
    assert result.stats.rejected > 0.9 * result.stats.steps


def kinds_of_extras(llm: paceline.LLM) -> list[type]:
    target: Any = llm.target
    return [type(extra) for extra in target.extras]


def test_auto_finds_the_layers_by_itself_and_others_do_not_load_them(file: Path) -> None:
    with paceline.load(file, n_ctx=256) as llm:
        assert "mtp" in llm.drafter.name.split(",")
        assert mtp.MtpStates in kinds_of_extras(llm)
    with paceline.load(file, drafters="lookup", n_ctx=256) as llm:
        assert mtp.MtpStates not in kinds_of_extras(llm)


def test_a_model_without_them_is_refused_by_name_only(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "plain.gguf")
    with pytest.raises(UsageError, match=r"no layers for multi-token prediction .*-MTP-GGUF"):
        paceline.load(path, drafters="mtp")
    with paceline.load(path, n_ctx=256) as llm:
        assert "mtp" not in llm.drafter.name.split(",")


def test_without_memory_for_their_cache_auto_does_without(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: LlamaTarget) -> None:
        raise ModelError(f"{self.path}: no context of 256 tokens can be made")

    monkeypatch.setattr(LlamaTarget, "open_mtp", full)
    with paceline.load(file, n_ctx=256) as llm:
        assert "mtp" not in llm.drafter.name.split(",")
    assert "multi-token prediction (MTP) is not used" in capsys.readouterr().err
    with pytest.raises(ModelError, match="no context of 256"):
        paceline.load(file, drafters="mtp", n_ctx=256)


@pytest.mark.parametrize("drafters", ["mtp", "lookup,mtp"])
def test_requests_that_share_passes_get_their_plain_texts_whatever_others_do(
    file: Path, drafters: str
) -> None:
    """Four at a time; every third is cancelled in the middle."""
    if not kernels.load_kernels().path:
        pytest.skip(kernels.load_kernels().reason)
    random, prompts = Random(2), [[5, 6, 7, *range(i, i + 5 + i % 7)] for i in range(24)]
    samplings = [Sampling(temperature=0.7 * (i % 2)) for i in range(len(prompts))]
    plain = []
    with paceline.load(file, drafters="none", n_ctx=128, threads=1) as llm:
        for i, prompt in enumerate(prompts):
            text, _ = decoded(llm.target, llm.drafter, prompt, 30, seed=i, sampling=samplings[i])
            plain.append(text)
    options: dict[str, Any] = {"policy": "fixed", "n_draft": 4, "sessions": 4, "n_ctx": 128, "threads": 1}
    texts, accepted = dict[Any, list[int]](), Counter[str]()
    with paceline.load(file, drafters=drafters, **options) as llm:
        scheduler = Scheduler(llm.target, llm.drafter, llm.policy, chunk=6)
        for i, prompt in enumerate(prompts):
            texts[add_to(scheduler, prompt, max_tokens=30, seed=i, sampling=samplings[i])] = []
        jobs = list(texts)
        while not scheduler.idle:
            for job, step in scheduler.step():
                texts[job] += step.tokens
                accepted.update(step.accepted)
            running = [job for job in scheduler.running if jobs.index(job) % 3 == 2 and len(texts[job]) > 5]
            if running and random.random() < 0.3:
                scheduler.cancel(running[0])
    assert {job.state for i, job in enumerate(jobs) if i % 3 < 2} == {"done"}
    assert "cancelled" in {job.state for job in jobs}
    for job, text in zip(jobs, plain, strict=True):
        assert texts[job] == text[: len(texts[job])]
        assert texts[job] == text or job.state == "cancelled"
    assert accepted["mtp"] > 50


@pytest.fixture
def small_vocabulary(monkeypatch: pytest.MonkeyPatch) -> int:
    """As for a model of 150,000 tokens: drafts are of some, and of those in the text."""
    if not kernels.load_kernels().path:
        pytest.skip(kernels.load_kernels().reason)
    monkeypatch.setattr(draft_vocab, "SIZE", 40)
    monkeypatch.setattr(mtp, "MIN_VOCAB", 80)
    return 40


def test_a_reduced_vocabulary_has_the_logits_of_its_tokens(
    target: LlamaTarget, draft: mtp.MtpDraft, small_vocabulary: int
) -> None:
    assert draft.vocabulary is None
    full = rows(draft, session_of(draft, TEXT), FOUR)
    with closing(target.open_mtp()) as reduced:
        assert reduced.vocabulary is not None
        session = session_of(reduced, [*TEXT[:-2], 200, 201])
        rows(reduced, session)
        (out,) = reduced.forward([(session_of(reduced, TEXT), FOUR)], NO_OUTPUTS)
        ids, logits = out.draft_logits(0)
        assert ids is not None
        assert set(ids) == {*range(small_vocabulary), 200, 201}
        assert np.abs(logits - full[0][ids]).max() < 0.05 * full[0].std()
        assert np.isneginf(out.logits(0)).sum() == full.shape[1] - len(ids)


def test_texts_drafted_from_a_reduced_vocabulary_are_plain_texts(file: Path, small_vocabulary: int) -> None:
    """Greedy and sampled; tokens that it lacks are generated, too, and let the whole vocabulary come back."""
    with closing(LlamaTarget(file, n_ctx=512, mtp=True)) as target:
        for temperature in (0.0, 1.5):
            request: dict[str, Any] = {"sampling": Sampling(temperature=temperature), "seed": 5}
            plain, _ = decoded(target, NoDrafter(), TEXT, 150, **request)
            draft = target.open_mtp()
            drafter = HeadDrafter(draft)
            text, steps = decoded(target, drafter, TEXT, 150, Budget(3, 9, width=3), **request)
            assert text == plain
            assert sum(len(step.path) for step in steps) > 10
            vocabulary: Any = draft.vocabulary
            assert vocabulary.coverage < 1.0
            assert set(text[:-10]) <= set(vocabulary.ids.tolist())
            drafter.close()


def test_a_text_of_other_tokens_gets_the_whole_vocabulary() -> None:
    weight = np.eye(100, dtype=np.float32)
    vocabulary = draft_vocab.ReducedVocabulary(100, weight.__getitem__, lambda _rows: None)
    assert vocabulary.suffices
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft_vocab, "SIZE", 10)
        small = draft_vocab.ReducedVocabulary(100, weight.__getitem__, lambda _rows: None)
    small.observe(range(50), generated=False)
    assert small.coverage == 1.0
    small.observe(range(50, 100), generated=True)
    assert not small.suffices
    assert sorted(small.ids) == [*range(100)]
    assert np.array_equal(small.logits(weight[:3])[:, np.argsort(small.ids)], weight[:3])
