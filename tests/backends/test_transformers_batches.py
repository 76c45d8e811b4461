"""Several sessions of a transformers model in one pass: each has what it would have alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from hf_models import DEVICE, folder_of
from paceline.backends.transformers.opener import open_engine
from paceline.backends.transformers.target import HfTarget
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain
from rows import begun, table, text_rows

TEXTS = ([5, 9, 14, 5, 9], [20, 33, 5, 9, 14, 20, 7, 7, 8, 41, 3, 17, 60, 61, 2], [80, 4])
FORK = DraftTree((7, 8, 9, 7), (ROOT, 0, 0, ROOT), (0.5,) * 4, ("test",) * 4)
TREES = (FORK, EMPTY, chain([3, 4, 5], "test"))
# eager adds its mask, the others take truth values; windows of 12 and 10 tokens end within these texts.
KINDS = ("llama", "gemma3_text", "mistral", "gpt2", "qwen3_moe")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batches")


def opened(kind: str, folder: Path, **settings: Any) -> HfTarget:
    return open_engine(folder_of(kind, folder), n_ctx=128, device=DEVICE, sessions=3, **settings)


def counted(target: HfTarget) -> list[int]:
    """The rows of each pass from now on."""
    rows: list[int] = []
    target._model.register_forward_pre_hook(
        lambda _, __, given: rows.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    return rows


def alone(target: HfTarget, text: Sequence[int], tree: DraftTree) -> np.ndarray:
    target.forget()
    return text_rows(target, text, tree)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_one_pass_and_says_what_each_says_alone(kind: str, attention: str, folder: Path) -> None:
    target = opened(kind, folder, attention=attention)
    sessions = [begun(target, text) for text in TEXTS]
    passes = counted(target)
    first = target.forward(list(zip(sessions, TREES, strict=True)), RequiredOutputs(top_k=2))
    said = [table(out, tree) for out, tree in zip(first, TREES, strict=True)]
    assert passes == [sum(map(len, TEXTS)) + sum(map(len, TREES))]
    assert [out.argmax(0) for out in first] == [int(rows[0].argmax()) for rows in said]
    tops = [out.features.top_k for out in first]
    assert [top.shape for top in tops if top is not None] == [(5, 2), (1, 2), (4, 2)]
    for session in sessions:
        session.close()
    for text, tree, rows in zip(TEXTS, TREES, said, strict=True):
        assert np.abs(rows - alone(target, text, tree)).max() < 1e-4


def test_a_batch_that_is_interrupted_leaves_every_text(folder: Path) -> None:
    target = opened("llama", folder)
    sessions = [begun(target, text) for text in TEXTS]
    target.forward([(session, EMPTY) for session in sessions], RequiredOutputs())
    for session in sessions:
        session.commit([], 6)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    handle = target._model.get_decoder().layers[1].register_forward_pre_hook(stop)
    with pytest.raises(KeyboardInterrupt):
        target.forward(list(zip(sessions, TREES, strict=True)), RequiredOutputs())
    handle.remove()
    outs = target.forward(list(zip(sessions, TREES, strict=True)), RequiredOutputs())
    said = [table(out, tree) for out, tree in zip(outs, TREES, strict=True)]
    for session in sessions:
        session.close()
    for text, tree, rows in zip(TEXTS, TREES, said, strict=True):
        assert np.abs(rows - alone(target, [*text, 6], tree)).max() < 1e-4
