"""Flash attention and none are tried; the faster one is used where the choice was left open, and kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.backends import registry as openers
from paceline.backends.interface import KernelStatus
from paceline.backends.llama_cpp import LlamaTarget
from paceline.backends.registry import BackendSpec
from paceline.profiling import flash_attention as attention
from paceline.profiling.flash_attention import (
    DRAFT_BATCH_TOKENS,
    N_ROUNDS,
    PROMPT_TOKENS,
    SHORTEST,
    Attention,
    is_decided,
    measure_setting,
    quicker,
)
from paceline.profiling.pass_costs import MAX_TIMING_JITTER
from paceline.system.home import record_path
from timed import TimedTarget

pytestmark = pytest.mark.usefixtures("no_kernels")
CONTEXT = 2048
FASTER = [Attention(True, 256, 8, 300.0, 0.04, 0.1), Attention(False, 256, 8, 240.0, 0.03, 0.06)]


def test_they_are_measured_in_rounds_and_the_medians_are_told() -> None:
    log: list[bool] = []
    shares: list[float] = []

    def taking(scale: float, flash: bool) -> TimedTarget:
        def seconds(n: int, _nth: int) -> float:
            log.append(flash)
            return scale * (1.0 + n)

        return TimedTarget(seconds, n_ctx=CONTEXT)

    on, off = taking(1.0, True), taking(0.5, False)
    found = measure_setting(on, off, shares.append, lambda: on.now + off.now)
    assert [(one.flash, one.depth, one.rows) for one in found] == [
        (True, PROMPT_TOKENS, DRAFT_BATCH_TOKENS),
        (False, PROMPT_TOKENS, DRAFT_BATCH_TOKENS),
    ]
    assert [(one.token, one.draft) for one in found] == [
        (2.0, 1.0 + DRAFT_BATCH_TOKENS),
        (1.0, (1.0 + DRAFT_BATCH_TOKENS) / 2),
    ]
    assert found[0].prompt == pytest.approx(PROMPT_TOKENS / 2.0)
    assert quicker(found).flash is False
    assert [one.noise for one in found] == [1.0, 1.0]
    assert (len(shares), shares[-1]) == (2 * N_ROUNDS, 1.0)
    rounds = [log[i] for i in range(0, len(log), 3)]  # of three passes each
    assert rounds == [True, False, False, True, True, False]
    assert (on.forgot, off.forgot) == (1, 1)


@pytest.mark.parametrize(
    ("seconds", "depth", "pieces"),
    [(0.5, 0, 3), (1.5, 128, 4), (2.0, 128, 4), (4.0, 256, 5), (100.0, PROMPT_TOKENS, 6)],
)
def test_in_little_time_a_prompt_is_as_long_as_fits_and_read_once_by_each(
    seconds: float, depth: int, pieces: int
) -> None:
    """At 0.01 s a token: 16 are read at first, uncounted, and then 16, 32, ... more."""
    on, off = (TimedTarget(lambda n, _: 1e-6, fill=fill, n_ctx=CONTEXT) for fill in (0.01, 0.02))
    found = measure_setting(on, off, clock=lambda: on.now + off.now, seconds=seconds)
    assert [(one.flash, one.depth, round(one.prompt)) for one in found] == [
        (flash, depth, rate) for flash, rate in ((True, 100), (False, 50)) if depth
    ]
    passes = 2 * N_ROUNDS if depth else 0
    assert on.passes.total() == pieces + bool(depth) + passes
    assert off.passes.total() == bool(depth) + passes


@pytest.mark.parametrize(
    ("on", "off", "flash"),
    [
        ((100.0, 1.0, 4.0), (90.0, 0.7, 2.0), False),
        ((100.0, 1.0, 4.0), (90.0, 1.0, 3.85), True),  # alike
        ((100.0, 1.0, 2.0), (90.0, 1.1, 3.0), True),
        ((100.0, 1.0, 4.0), (90.0, 1.1, 2.0), False),  # drafted for it gains more than it loses plainly
        ((10.0, 1.0, 2.0), (2.0, 0.7, 1.5), True),  # what decoding gains is lost on the prompt
    ],
)
def test_the_faster_for_a_request_is_named_and_of_equals_flash_attention(
    on: tuple[float, float, float], off: tuple[float, float, float], flash: bool
) -> None:
    found = [Attention(True, 512, 8, *on), Attention(False, 512, 8, *off)]
    assert quicker(found).flash is flash
    assert quicker(found[::-1]).flash is flash


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def target(models: Path, home: Path) -> Iterator[LlamaTarget]:
    loaded = LlamaTarget(models / "target.gguf", n_ctx=2 * SHORTEST)
    yield loaded
    loaded.close()


def found_to_be(found: list[Attention], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How often, with how many seconds."""
    asked: list[float] = []

    def trial(on: Any, off: Any, progress: Any, *, seconds: float) -> list[Attention]:
        asked.append(seconds)
        progress(1.0)
        return found

    monkeypatch.setattr(attention, "measure_setting", trial)
    return asked


def test_a_model_goes_without_where_that_is_faster_now_and_ever_after(
    models: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = found_to_be(FASTER, monkeypatch)
    prompt = [1, 2, 3] * 20
    outputs = []
    for _ in range(2):
        with paceline.load(models / "target.gguf", drafters="lookup", n_ctx=512) as llm:
            assert llm.target.flash_attention is False  # type: ignore[attr-defined]
            outputs.append(llm.generate(prompt, max_tokens=8).tokens)
    assert asked == [attention.QUICK]
    with paceline.load(models / "target.gguf", drafters="none", n_ctx=512, flash_attention=False) as llm:
        assert llm.generate(prompt, max_tokens=8).tokens == outputs[0] == outputs[1]
    with paceline.load(models / "target.gguf", drafters="none", n_ctx=512, flash_attention=True) as llm:
        assert llm.target.flash_attention is True  # type: ignore[attr-defined]
    with paceline.load(models / "target.gguf", drafters="lookup", n_ctx=512, exact_greedy=True) as llm:
        assert llm.target.flash_attention is None  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "found", [[], FASTER[::-1][1:], [FASTER[0], Attention(False, 256, 8, 240.0, 0.04, 0.1)]]
)
def test_llama_cpps_choice_stays_where_nothing_was_tried_or_gained(
    found: list[Attention], target: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = found_to_be(found, monkeypatch)
    for _ in range(2):
        attention.choose_flash_attention(target)
        assert target.flash_attention is None
    assert len(asked) == 1
    assert is_decided(target) is None


def test_it_is_really_tried(target: LlamaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is faster nobody knows here."""
    monkeypatch.setattr(attention, "QUICK", 30.0)
    monkeypatch.setattr(attention, "MAX_TIMING_JITTER", float("inf"))
    attention.choose_flash_attention(target)
    kept = recall_file(target)
    assert [one["flash"] for one in kept["tried"]] == [True, False]
    assert all(one["depth"] == SHORTEST for one in kept["tried"])
    assert target.flash_attention is (None if kept["flash"] else False)
    session = target.open()  # the model is as usable as it was
    session.extend([1, 2, 3])
    session.close()


def test_what_a_busy_machine_says_is_not_used(target: LlamaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = found_to_be([FASTER[0], replace(FASTER[1], noise=MAX_TIMING_JITTER)], monkeypatch)
    said: list[str] = []
    for _ in range(2):
        attention.choose_flash_attention(target, warn=said.append)
        assert target.flash_attention is None
    assert len(asked) == 2
    assert "too busy" in said[0]
    found_to_be(FASTER, monkeypatch)
    attention.choose_flash_attention(target)
    assert target.flash_attention is False


@pytest.mark.parametrize(
    "given",
    [{"n_ctx": 128}, {"cache_type": "bf16"}, {"flash_attention": True}, {"exact_rows": 4, "kernels": False}],
)
def test_where_it_is_no_matter_of_speed_nothing_is_tried(
    given: dict[str, Any], models: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = found_to_be(FASTER, monkeypatch)
    target = LlamaTarget(models / "target.gguf", **({"n_ctx": 512} | given))
    attention.choose_flash_attention(target)
    assert target.flash_attention is given.get("flash_attention")
    assert not asked
    target.close()


def test_where_scores_would_fill_the_memory_nothing_is_tried(
    target: LlamaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = found_to_be(FASTER, monkeypatch)
    monkeypatch.setattr(
        attention, "free_memory", lambda: attention.MAX_MEMORY_FRACTION * target.attention_score_bytes() - 1
    )
    attention.choose_flash_attention(target)
    assert (target.flash_attention, asked) == (None, [])
    monkeypatch.setattr(
        attention, "free_memory", lambda: attention.MAX_MEMORY_FRACTION * target.attention_score_bytes()
    )
    attention.choose_flash_attention(target)
    assert target.flash_attention is False


def test_with_kernels_of_our_own_it_is_on_and_nothing_is_tried(
    models: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = found_to_be(FASTER, monkeypatch)
    monkeypatch.setattr(openers, "kernel_status", lambda _: KernelStatus("avx2"))
    path = models / "target.gguf"
    with closing(LlamaTarget(path, n_ctx=2 * SHORTEST, kernels=False)) as loaded:
        monkeypatch.setattr(loaded, "kernels", True)  # no pass is made meanwhile
        attention.choose_flash_attention(loaded)
        assert (loaded.flash_attention, asked) == (None, [])
        assert is_decided(BackendSpec(path, {})) is None
        monkeypatch.setattr(loaded, "kernels", False)  # it was too large for them
        attention.choose_flash_attention(loaded)
        assert (loaded.flash_attention, len(asked)) == (False, 1)


def recall_file(target: LlamaTarget) -> dict[str, Any]:
    out: dict[str, Any] = json.loads(record_path("attention", attention._key(target)).read_text())
    return out
