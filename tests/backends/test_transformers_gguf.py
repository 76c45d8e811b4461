"""One GGUF file through two engines."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from architectures import write_gemma2, write_qwen2
from gguf_files import convert, rewritten, split, write_llama
from paceline.backends.interface import ShowsHiddenStates
from paceline.backends.llama_cpp import LlamaTarget, kernels
from paceline.backends.transformers.opener import open_engine
from paceline.models import zoo
from paceline.models.headers.gguf_writer import TensorToWrite, metadata_field
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import ROOT, DraftTree
from real_model import smollm2
from rows import table, text_rows

Change = Callable[[dict[str, bytes], dict[str, TensorToWrite]], object]
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


def logits_of(engine: Any) -> np.ndarray:
    said = text_rows(engine, [5, 7, 9, 11, 44, 3], FORK)
    engine.close()
    return said


def add(name: str, values: list[float]) -> Change:
    data = np.array(values, np.float32)
    part = TensorToWrite(name, data.shape, 0, data.nbytes, lambda: iter([data]))
    return lambda fields, parts: parts.update({name: part})


def drop(name: str) -> Change:
    return lambda fields, parts: parts.pop(name)


def scale(key: str, value: str | float) -> Change:
    return lambda fields, parts: fields.update({key: metadata_field(key, value)})


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (lambda fields, parts: None, ""),
        (drop("output.weight"), ""),  # tied embeddings
        (add("rope_freqs.weight", [1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]), ""),  # as in Llama 3
        (scale("llama.rope.freq_base", 500.0), ""),
        (scale("llama.rope.scaling.factor", 4.0), "positions"),
        (drop("blk.1.ffn_up.weight"), "1 missing"),
        (add("blk.0.attn_q.bias", [1.0] * 64), "leaves out 64"),
    ],
)
def test_a_gguf_file_gives_llama_cpps_logits_or_is_refused(
    change: Change, refusal: str, tmp_path: Path
) -> None:
    path = rewritten(write_llama(tmp_path / "whole.gguf"), tmp_path / "changed.gguf", change)
    if refusal:
        with pytest.raises(ModelError, match=refusal):
            open_engine(Path(f"hf:{path}"), n_ctx=64, device="cpu")
        return
    ours = LlamaTarget(path, n_ctx=64, cache_type="f32", flash_attention=False, kernels=False)
    theirs = open_engine(Path(f"hf:{path}"), n_ctx=64, device="cpu")
    assert np.abs(logits_of(ours) - logits_of(theirs)).max() < 1e-3


def test_a_number_that_transformers_does_not_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="leaves out the attn_logit_softcapping"):
        open_engine(Path(f"hf:{write_gemma2(tmp_path / 'gemma2.gguf')}"), n_ctx=64, device="cpu")


def test_links_copies_and_relative_names_lead_to_the_same_file_and_parts_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (other := tmp_path / "other").mkdir()
    path = write_llama(tmp_path / "model.gguf")
    write_llama(other / "model.gguf", seed=9)  # transformers prefers a name in the current folder
    monkeypatch.chdir(other)
    expected = logits_of(LlamaTarget(path, n_ctx=64, cache_type="f32", flash_attention=False, kernels=False))
    (link := tmp_path / "link.gguf").symlink_to(shutil.copy(path, tmp_path / ("a" * 64)))
    for name in (path, link, tmp_path / ("a" * 64), Path("../model.gguf")):
        found = logits_of(open_engine(Path(f"hf:{name}"), n_ctx=64, device="cpu"))
        assert np.abs(found - expected).max() < 1e-3
    parts = split(path, tmp_path)
    ours = LlamaTarget(parts[0], n_ctx=64, cache_type="f32", flash_attention=False, kernels=False)
    assert np.array_equal(logits_of(ours), expected)
    (link := other / parts[0].name).symlink_to(parts[0].rename(tmp_path / ("b" * 64)))
    for name in (link, parts[1]):
        with pytest.raises(ModelError, match="one of 2 parts"):
            open_engine(Path(f"hf:{name}"), n_ctx=64, device="cpu")


@pytest.mark.slow
def test_both_engines_show_the_same_hidden_states_of_a_real_model() -> None:
    """llama.cpp rounds activations to 8 bits, transformers none."""
    error, ours, theirs = compare(smollm2(), [504, 2365, 6354, 16438, 27003, 690, 260, 23790, 2767, 30])
    assert error[:, 0].max() == 0.0
    assert 1e-4 < error.max() < 0.1
    assert np.median(error) < 0.02
    assert (ours.argmax(-1) == theirs.argmax(-1)).mean() >= 0.8
