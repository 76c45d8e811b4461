"""GGUF files with some of a model's layers."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_files import finish
from paceline.backends.llama_cpp import LlamaTarget
from paceline.models import zoo
from paceline.models.headers.gguf_file import GGUFFile
from paceline.models.headers.gguf_writer import layer_count, shorten
from paceline.speculative.errors import ModelError, PacelineError, UsageError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY

PROMPT = [5, 300, 12, 7, 45, 300, 12]


def rows(path: Path) -> np.ndarray:
    target = LlamaTarget(path, n_ctx=64, cache_type="f32")
    session = target.open()
    session.extend(PROMPT)
    out = np.array(target.forward([(session, EMPTY)], RequiredOutputs())[0].logits(0))
    target.close()
    return out


def test_all_layers_are_the_model(tmp_path: Path) -> None:
    source, out = zoo.draft_path(), tmp_path / "all.gguf"
    ticks = []
    size = shorten(source, out, range(layer_count(GGUFFile(source))), tick=lambda: ticks.append(1))
    assert size == out.stat().st_size
    assert len(ticks) == len(gguf.GGUFReader(source).tensors)
    assert np.array_equal(rows(out), rows(source))


def test_what_is_told_of_each_layer_is_told_of_those_that_are_left(tmp_path: Path) -> None:
    source, out = tmp_path / "source.gguf", tmp_path / "out.gguf"
    writer = gguf.GGUFWriter(str(source), "llama")
    writer.add_block_count(3)
    writer.add_name("tiny")
    writer.add_array("llama.attention.head_count_kv", [4, 5, 6])
    writer.add_array("general.tags", ["a", "b", "c"])
    for at in range(3):
        writer.add_tensor(f"blk.{at}.ffn_up.weight", np.full((2, 32), at, np.float32))
    writer.add_tensor("token_embd.weight", np.ones((2, 32), np.float32))
    finish(writer)
    shorten(source, out, [2, 0])
    read = gguf.GGUFReader(out)
    names = ("llama.attention.head_count_kv", "general.tags", "llama.block_count", "general.name")
    fields = [read.fields[name].contents() for name in names]
    assert fields == [[4, 6], ["a", "b", "c"], 2, "tiny, 2 of 3 layers"]
    found = {tensor.name: float(np.asarray(tensor.data).flat[0]) for tensor in read.tensors}
    assert found == {"blk.0.ffn_up.weight": 0.0, "blk.1.ffn_up.weight": 2.0, "token_embd.weight": 1.0}


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    source, out = zoo.draft_path(), tmp_path / "out.gguf"
    for layers in ((), (99,), (-1, 0)):
        with pytest.raises(UsageError, match="not all of those are there"):
            shorten(source, out, layers)
    with pytest.raises(ModelError, match="No such file"):
        shorten(tmp_path / "none.gguf", out, [0])
    (tmp_path / "bad.gguf").write_bytes(b"GGUF no more")
    with pytest.raises(ModelError, match=r"bad.gguf: is GGUF version"):
        shorten(tmp_path / "bad.gguf", out, [0])
    assert not out.exists()
    out.write_bytes(b"mine")
    with pytest.raises(PacelineError, match="exists"):
        shorten(source, out, [0])
    assert out.read_bytes() == b"mine"
