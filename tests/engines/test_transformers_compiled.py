"""Compiled passes say what the others say. The compiler itself is left out here: it takes a minute."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from hf_models import DEVICE, folder_of
from paceline.core.ports import Want
from paceline.core.tree import EMPTY, ROOT, DraftTree
from paceline.engines.hf.opener import open_engine
from paceline.engines.hf.target import HfTarget
from paceline.engines.views import View

PROMPT = [5, 9, 14, 5, 9, 14, 20, 33, 5, 9, 14, 20]
FORK = DraftTree((7, 8, 9, 7), (ROOT, 0, 0, ROOT), (0.5,) * 4, ("test",) * 4)


@pytest.fixture(params=["llama", "gemma3_text", "mistral", "gpt2"])
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[HfTarget, HfTarget, list[int]]]:
    """A target as it is, one that compiles, and how many rows were compiled so far."""
    rows: list[int] = []

    def compiled(run: Any, **_: Any) -> Any:
        def counted(tokens: Any, *given: Any) -> Any:
            rows.append(tokens.shape[1])
            return run(tokens, *given)

        return counted

    monkeypatch.setattr(torch, "compile", compiled)
    folder = folder_of(request.param, tmp_path)
    targets = [open_engine(folder, n_ctx=128, device=DEVICE, compile=flag) for flag in (False, True)]
    yield (targets[0], targets[1], rows)
    for target in targets:
        target.close()


def walk(target: HfTarget, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Trees, acceptance out of order, a cache that grows."""
    monkeypatch.setattr("paceline.engines.hf.strip.LEAST", 16)
    out, session = [], target.open()
    session.extend(PROMPT)
    for path, root in (([0, 2], 11), ([], 12), ([3], 13), ([0, 1], 14), ([0], 15)):
        answer = target.forward([(session, FORK)], Want())[0]
        out.append(np.stack([answer.logits(row) for row in range(len(FORK) + 1)]))
        session.keep(path, root)
    answer = target.forward([(session, EMPTY)], Want())[0]
    out.append(answer.logits(0)[None])
    session.close()
    return out


def test_every_row_is_the_same(
    pair: tuple[HfTarget, HfTarget, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, compiling, rows = pair
    expected, found = walk(plain, monkeypatch), walk(compiling, monkeypatch)
    assert rows == [5, 5, 5, 5, 1]  # the prompt is not
    for one, other in zip(expected, found, strict=True):
        assert np.abs(one - other).max() < 1e-4


def test_a_view_works_on_a_cache_that_compiled_passes_wrote(
    pair: tuple[HfTarget, HfTarget, list[int]],
) -> None:
    plain, compiling, rows = pair
    said = []
    for target in (plain, compiling):
        view, whole = target.view(View(2)), target.open()
        whole.extend(PROMPT)
        target.forward([(whole, EMPTY)], Want())
        whole.keep([], 7)
        beside = view.open(whole)
        beside.extend([*PROMPT, 7])
        answer = view.forward([(beside, FORK)], Want())[0]
        said.append(np.stack([answer.logits(row) for row in range(len(FORK) + 1)]))
        answer = target.forward([(whole, FORK)], Want())[0]
        said[-1] = np.concatenate([said[-1], [answer.logits(row) for row in range(len(FORK) + 1)]])
        whole.close()
    assert rows == [5, 5]
    assert np.abs(said[0] - said[1]).max() < 1e-4


def test_several_sessions_share_a_pass_that_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda *_, **__: None)
    target = open_engine(folder_of("llama", tmp_path), n_ctx=64, device=DEVICE, sessions=2, compile=True)
    sessions = [target.open(), target.open()]
    for session in sessions:
        session.extend(PROMPT)
    outs = target.forward([(session, EMPTY) for session in sessions], Want())
    assert np.array_equal(outs[0].argmax(0), outs[1].argmax(0))
    target.close()
