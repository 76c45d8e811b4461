"""The table that maps model references to engines."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest

from paceline.backends.registry import BackendSpec, backend_build, open_engine, open_tokenizer
from paceline.backends.toy import ToyTarget
from paceline.speculative.errors import MissingExtraError


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_a_transformers_model_without_its_libraries_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    for name in [name for name in sys.modules if name.startswith("paceline.backends.transformers.")]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "config.json").write_text("{}")
    for way in (open_engine, open_tokenizer, backend_build):
        with pytest.raises(MissingExtraError, match=r"pip install 'paceline\[hf\]'"):
            way(tmp_path)


def test_a_model_that_is_not_loaded_tells_the_same_of_itself(models: Path) -> None:
    settings = {"threads": 2, "gpu_layers": 0, "flash_attention": False, "cache_type": "f32"}
    path = models / "target.gguf"
    with closing(open_engine(path, n_ctx=64, **settings)) as engine:
        assert BackendSpec(path, settings).identity() == engine.identity()
        assert BackendSpec(path, settings | {"threads": 1}).identity() != engine.identity()
    assert (
        BackendSpec(Path("toy:seed=2"), {}).identity()
        == ToyTarget(path=Path("toy:seed=2"), seed=2).identity()
    )
