"""Inflation keeps the function: same greedy text, the size asked for, no half-written file."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core.errors import ModelError, UsageError
from paceline.zoo import target_path
from paceline.zoo.inflate import inflate
from paceline.zoo.layout import Layout, choose_layout
from paceline.zoo.quantize import quantize

SOURCE = Layout(384, 6, 6, 2, 64, 1024, 8192, 1e-5)
PROMPT = b"import os\n\n\ndef read_lines(path):\n"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("llama_cpp")
    out = tmp_path_factory.mktemp("plain") / "plain.gguf"
    quantize(target_path(), out, "F16")
    return out


@pytest.fixture(scope="module")
def inflated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("llama_cpp")
    out = tmp_path_factory.mktemp("inflated") / "60m.gguf"
    inflate(target_path(), out, 60_000_000)
    return out


def greedy(path: Path, count: int = 48) -> list[int]:
    import llama_cpp

    model = llama_cpp.Llama(str(path), n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
    prompt = model.tokenize(PROMPT, add_bos=False)
    stream: Any = model.generate(prompt, top_k=1, temp=0.0, repeat_penalty=1.0)
    return [token for token, _ in zip(stream, range(count), strict=False)]


@pytest.mark.parametrize("parameters", [60e6, 125e6, 300e6, 1e9, 2e9])
def test_layout_comes_within_five_percent_and_contains_the_source(parameters: float) -> None:
    layout = choose_layout(SOURCE, int(parameters))
    assert abs(layout.parameters / parameters - 1) < 0.05
    assert layout.heads // layout.kv_heads == SOURCE.heads // SOURCE.kv_heads
    assert layout.width >= 384
    assert layout.blocks >= 6
    assert layout.feed_forward >= 1024
    assert layout.width % 32 == layout.feed_forward % 32 == 0


def test_a_size_below_the_source_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot make a model of 5,000,000"):
        choose_layout(SOURCE, 5_000_000)


def test_inflated_model_continues_with_the_same_greedy_text(plain: Path, inflated: Path) -> None:
    assert greedy(plain) == greedy(inflated)


def test_inflated_file_has_the_parameters_asked_for(inflated: Path) -> None:
    gguf = pytest.importorskip("gguf")
    count = sum(int(tensor.n_elements) for tensor in gguf.GGUFReader(inflated).tensors)
    assert abs(count / 60e6 - 1) < 0.05


@pytest.mark.parametrize("ftype", ["Q8_0", "Q4_0", "BF16"])
def test_other_types_load_and_generate(tmp_path: Path, ftype: str) -> None:
    pytest.importorskip("llama_cpp")
    phases = []
    out = tmp_path / "model.gguf"
    inflate(target_path(), out, 20_000_000, ftype, progress=lambda phase, done: phases.append((phase, done)))
    assert len(greedy(out, 8)) == 8
    assert phases[-1] == ("write" if ftype == "BF16" else "quantize", 1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    out = tmp_path / "model.gguf"
    out.write_bytes(b"precious")
    with pytest.raises(UsageError, match="exists"):
        inflate(target_path(), out, 20_000_000)
    assert out.read_bytes() == b"precious"
    inflate(target_path(), out, 20_000_000, force=True)
    assert out.stat().st_size > 30_000_000


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def stop(_phase: str, done: float) -> None:
        if done > 0.2:
            raise error

    with pytest.raises(error):
        inflate(target_path(), tmp_path / "model.gguf", 20_000_000, progress=stop)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_noticed_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=1_000_000))
    with pytest.raises(ModelError, match=r"0\.0 GB free"):
        inflate(target_path(), tmp_path / "model.gguf", 1_000_000_000)
    assert not list(tmp_path.iterdir())


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Q3_K"):
        inflate(target_path(), tmp_path / "model.gguf", 60_000_000, "Q3_K")
