"""Recurrent GGUF models: their checkpoints in llama.cpp's memory, and what cannot be had of them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from gguf_architectures import INNER, KERNEL, STATE, write_architecture
from paceline.backends.llama_cpp import LlamaTarget, binding
from paceline.backends.llama_cpp.cache import LlamaKvCache
from paceline.backends.llama_cpp.exactness import drops_rejected_drafts
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.policy.cost_measurement import measure

TEXT = list(range(5, 60))


@pytest.fixture(scope="module")
def mamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_architecture(tmp_path_factory.mktemp("recurrent") / "mamba.gguf", "mamba")


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
