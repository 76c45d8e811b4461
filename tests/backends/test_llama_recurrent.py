"""Recurrent GGUF models: their checkpoints in llama.cpp's memory, and what cannot be had of them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gguf_architectures import INNER, KERNEL, STATE, write_architecture
from paceline.backends.llama_cpp import LlamaTarget, binding
from paceline.backends.llama_cpp.cache import LlamaKvCache
from paceline.backends.llama_cpp.exactness import drops_rejected_drafts
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.policy.cost_measurement import measure
from paceline.speculative.tree import EMPTY, chain

TEXT = list(range(5, 60))


@pytest.fixture(scope="module")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_architecture(tmp_path_factory.mktemp("recurrent") / "mamba.gguf", "mamba")


def test_a_rejection_computes_the_tokens_since_the_checkpoint_again(mamba: Path) -> None:
    with closing(LlamaTarget(mamba, n_ctx=128)) as target, closing(target.open()) as session:
        session.extend(TEXT)
        want = RequiredOutputs()
        first = target.forward([(session, chain([1, 2, 3], "test"))], want)[0]
        assert first.computed == len(TEXT) + 3  # the prompt, which the checkpoint is behind
        session.commit([0], 9)
        assert session.pending_tokens == 2  # the root and the node that was right
        assert target.forward([(session, chain([4], "test"))], want)[0].computed == 2 + 1 + 1
        session.commit([], 8)  # the checkpoint is still the one behind the prompt
        assert session.pending_tokens == 3
        target.forward([(session, EMPTY)], want)
        session.commit([], 7)
        assert session.pending_tokens == 0
        target.forward([(session, chain([5, 6], "test"))], want)
        session.commit([0, 1], 6)  # all of it was right: the state stays
        assert session.pending_tokens == 0


def test_a_draft_models_checkpoint_is_behind_its_root(mamba: Path) -> None:
    """It drafts token by token."""
    with closing(LlamaTarget(mamba, n_ctx=128)) as target, closing(target.open()) as session:
        session.extend(TEXT)
        tokens: list[int] = []
        for _ in range(4):
            out = target.forward([(session, chain(tokens, "test"))], RequiredOutputs())[0]
            tokens.append(out.argmax(len(tokens)))
        session.extend([tokens[0], 200])  # the first was right
        assert session.pending_tokens == 1
        row = np.array(target.forward([(session, EMPTY)], RequiredOutputs())[0].logits(0))
        text = list(session.tokens)
        session.close()
        target.forget()
        session.extend(text)
        assert np.array_equal(target.forward([(session, EMPTY)], RequiredOutputs())[0].logits(0), row)


def test_a_later_text_goes_on_from_the_checkpoint(mamba: Path) -> None:
    with closing(LlamaTarget(mamba, n_ctx=128)) as target:
        with closing(target.open()) as session:
            session.extend(TEXT)
            target.forward([(session, chain([1, 2], "test"))], RequiredOutputs())
            session.commit([0, 1], 3)
        with closing(target.open()) as session:
            session.extend([*TEXT, 9, 9, 9])  # other tokens than the accepted ones
            assert session.pending_tokens == 3  # all but the last are behind the checkpoint


def test_the_trial_at_load_would_notice_a_state_that_does_not_come_back(
    mamba: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(LlamaTarget(mamba, n_ctx=64)) as target:
        assert drops_rejected_drafts(target)
        share = LlamaKvCache.share

        def wrong(cache: LlamaKvCache, source: int, branch: int, end: int, start: int = 0) -> None:
            if source < branch:  # the state does not come back from the checkpoint
                share(cache, source, branch, end, start)

        monkeypatch.setattr(LlamaKvCache, "share", wrong)
        assert not drops_rejected_drafts(target)


def test_a_closed_draft_keeps_the_state_of_its_text(mamba: Path) -> None:
    with closing(LlamaTarget(mamba, n_ctx=128)) as target:
        with closing(target.open()) as session:
            session.extend(TEXT)
            for n in range(3):  # as a draft model grows a draft
                target.forward([(session, chain([1, 2][:n], "test"))], RequiredOutputs())
        with closing(target.open()) as session:
            session.extend([*TEXT, 9, 9])
            assert session.pending_tokens == 1


def test_another_draft_on_the_same_root_is_computed_from_the_checkpoint(mamba: Path) -> None:
    with closing(LlamaTarget(mamba, n_ctx=128)) as target, closing(target.open()) as session:
        session.extend(TEXT)
        rows = []
        for tokens in ([1, 2], [3, 4], [1, 2]):
            out = target.forward([(session, chain(tokens, "test"))], RequiredOutputs())[0]
            rows.append([np.array(out.logits(row)) for row in range(3)])
        assert all(map(np.array_equal, rows[0], rows[2]))
        assert np.array_equal(rows[0][0], rows[1][0])


@pytest.mark.parametrize("n_ctx", [64, 256])
def test_costs_are_measured_within_a_small_context(mamba: Path, n_ctx: int, tmp_path: Path) -> None:
    for path in (mamba, write_architecture(tmp_path / "jamba.gguf", "jamba")):
        with closing(LlamaTarget(path, n_ctx=n_ctx)) as target:
            costs = measure(target, seconds=0.3)
            assert {1, 2} <= set(costs.rows)


def test_each_session_has_two_sequences(mamba: Path) -> None:
    with pytest.raises(UsageError, match="129 sessions of a recurrent model: must be at most 128"):
        LlamaTarget(mamba, n_ctx=8, sessions=129)


def test_states_that_do_not_fit_are_refused_before_they_are_made(
    mamba: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = 4 * 2 * (INNER * STATE + (KERNEL - 1) * (INNER + 2 * 2 * STATE))
    free = SimpleNamespace(available=10 * each - 1)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    monkeypatch.setattr("psutil.swap_memory", lambda: SimpleNamespace(free=0))
    with closing(LlamaTarget(mamba, n_ctx=32, sessions=4, kernels=False)) as target:
        assert binding.state_bytes(target.model.pointer) == each
    with pytest.raises(
        ModelError, match=r"10 states, of sessions and their checkpoints, need .* fewer sessions"
    ):
        LlamaTarget(mamba, n_ctx=32, sessions=5, kernels=False)


def test_without_kernels_exact_greedy_is_refused(mamba: Path) -> None:
    with pytest.raises(ModelError, match="no exact greedy output without"):
        LlamaTarget(mamba, n_ctx=64, exact_rows=8, kernels=False)
