"""Recurrent GGUF models: their checkpoints in llama.cpp's memory, and what cannot be had of them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gguf_architectures import INNER, KERNEL, STATE, write_architecture
from gguf_files import write_llama
from paceline.backends.common import MAX_STATES, CacheSlot, state_places
from paceline.backends.llama_cpp import LlamaTarget, binding
from paceline.backends.llama_cpp.cache import LlamaKvCache
from paceline.backends.llama_cpp.exactness import drops_rejected_drafts
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.policy.costs import measure
from rows import begun

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


def test_states_are_few_and_far_apart_and_the_last_one_is_before_the_answer() -> None:
    def places(tokens: list[int], start: int = 0) -> list[int]:
        return state_places(tokens, start, lambda token: b"" if token == 0 else b".")

    message = [0, *range(1, 300)]
    assert places([*message, 0, 9, 8, 0, 9]) == [300, 303]
    assert places([*message, 0, 9, 8, 0, 9], 300) == [303]
    assert (places([0, 1, 2]), places(message)) == ([], [284])
    assert len(places(message * 40)) <= MAX_STATES + 1
    slot = CacheSlot(is_stateful=True)
    for n in (*range(1000, 9000, 1000), 8010, 8020):
        slot.cached = [7] * n
        slot.add_state(n, 1 << 20)
    assert [*slot.states] == [*range(2000, 9000, 1000), 8020]
    slot.add_state("large", 1 << 28)
    assert [*slot.states.values()] == ["large"]


def test_prompts_that_change_near_their_beginning_are_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rest, *others = np.random.default_rng(0).integers(0, 250, (6, 600)).tolist()

    def answer(*prompts: list[int]) -> list[str]:
        caplog.clear()
        with closing(LlamaTarget(write_llama(tmp_path / "m.gguf"), n_ctx=1024, sessions=2)) as target:
            for prompt in prompts:
                session = begun(target, prompt)
                target.forward([(session, session.pending_tokens)], RequiredOutputs())
                session.close()
        return [record.getMessage() for record in caplog.records]

    dated = [[5, 5, 5, at, *([9] * at), *rest, 11, at] for at in range(8)]
    (line,) = answer(*dated)
    assert line.startswith(
        "prompts differ at each request after their first 3 tokens, and go on alike: nothing"
    )
    assert answer(*others) == answer(*([*rest, at, *rest[:50]] for at in range(8))) == []
