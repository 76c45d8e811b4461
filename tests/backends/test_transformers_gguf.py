"""One GGUF file through two engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from gguf_files import convert
from paceline.backends.llama_cpp import LlamaTarget
from paceline.backends.transformers.opener import open_engine
from paceline.models import zoo
from paceline.speculative.tree import ROOT, DraftTree
from rows import text_rows

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
