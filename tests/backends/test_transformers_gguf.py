"""One GGUF file through two engines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from architectures import write_qwen2
from gguf_files import convert, write_llama
from paceline.backends.interface import ShowsHiddenStates
from paceline.backends.llama_cpp import LlamaTarget, kernels
from paceline.backends.transformers.opener import open_engine
from paceline.models import zoo
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import ROOT, DraftTree
from real_model import smollm2
from rows import table, text_rows

TEXT = "def area(width, height):\n    return"
FORK = DraftTree((7, 80, 9, 70), (ROOT, 0, 0, ROOT), (0.5,) * 4, ("test",) * 4)


def rows(engine: Any) -> np.ndarray:
    said = text_rows(engine, engine.text.encode(TEXT), FORK)
    engine.close()
    return said


def test_both_engines_read_the_same_model(tmp_path: Path) -> None:
    """Unpacked to 32 bits there is nothing left to differ in but the order of sums; of the packed file,
    transformers reads the same numbers, and llama.cpp rounds what it multiplies them with."""
    plain = convert(zoo.draft_path(), tmp_path / "f32.gguf", "F32")
    ours = rows(LlamaTarget(plain, n_ctx=64, cache_type="f32", flash_attention=False))
    theirs = rows(open_engine(Path(f"hf:{plain}"), n_ctx=64, device="cpu"))
    assert np.abs(ours - theirs).max() < 1e-3
    packed = rows(open_engine(Path(f"hf:{zoo.draft_path()}"), n_ctx=64, device="cpu"))
    assert np.abs(packed - theirs).max() < 1e-4
    rounded = rows(LlamaTarget(zoo.draft_path(), n_ctx=64, cache_type="f32"))
    assert 1e-3 < np.abs(rounded - theirs).max() < 0.5


def shown(engine: Any, text: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The hidden states [tokens, layers, width], and the logits of a tree's rows."""
    session = engine.open()
    session.extend(text)
    read = engine.forward([(session, 2)], RequiredOutputs(layers=tuple(range(engine.layers + 1))))[0].features
    out = engine.forward([(session, FORK)], RequiredOutputs(layers=tuple(range(engine.layers + 1))))[0]
    logits = table(out, FORK)
    assert (read.start, out.features.start, out.features.lead) == (0, 2, len(text) - 3)
    session.close()
    return np.concatenate([np.asarray(part) for part in (read.hidden, out.features.hidden)]), logits


def compare(file: Path, text: list[int], **given: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The relative error of each row of each layer, and the logits of both engines."""
    if not kernels.load_kernels().path:
        pytest.skip(kernels.load_kernels().reason)
    with (
        closing(LlamaTarget(file, n_ctx=64, **given)) as ours,
        closing(open_engine(Path(f"hf:{file}"), n_ctx=64, device="cpu")) as theirs,
    ):
        assert isinstance(ours, ShowsHiddenStates)
        assert isinstance(theirs, ShowsHiddenStates)
        assert (ours.layers, ours.hidden_size) == (theirs.layers, theirs.hidden_size)
        assert np.abs(ours.token_embeddings(text) - theirs.token_embeddings(text)).max() < 1e-6
        mine, other = ours.output_head(), theirs.output_head()
        assert np.abs(mine.weight - other.weight).max() < 1e-6
        assert mine.norm is not None
        assert other.norm is not None
        assert np.abs(mine.norm - other.norm).max() < 1e-6
        assert mine.eps == pytest.approx(other.eps)
        (a, logits), (b, their_logits) = shown(ours, text), shown(theirs, text)
    assert a.shape == b.shape == (len(text) + len(FORK), ours.layers + 1, ours.hidden_size)
    error: np.ndarray = np.linalg.norm(a - b, axis=-1) / np.linalg.norm(b, axis=-1)
    return error, logits, their_logits


@pytest.mark.parametrize("write", [write_llama, write_qwen2])
def test_both_engines_show_the_same_hidden_states(write: Callable[[Path], Path], tmp_path: Path) -> None:
    text = [5, 7, 9, 11, 5, 7, 44, 9, 8]
    error, ours, theirs = compare(
        write(tmp_path / "f32.gguf"), text, cache_type="f32", flash_attention=False, kernels=False
    )
    assert error.max() < 1e-4
    assert np.abs(ours - theirs).max() < 1e-3


@pytest.mark.slow
def test_both_engines_show_the_same_hidden_states_of_a_real_model() -> None:
    """llama.cpp rounds activations to 8 bits, transformers none."""
    error, ours, theirs = compare(smollm2(), [504, 2365, 6354, 16438, 27003, 690, 260, 23790, 2767, 30])
    assert error[:, 0].max() == 0.0
    assert 1e-4 < error.max() < 0.1
    assert np.median(error) < 0.02
    assert (ours.argmax(-1) == theirs.argmax(-1)).mean() >= 0.8
