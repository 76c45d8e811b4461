"""Rows of embeddings and output layers, read from GGUF files of several kinds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from architectures import write_bloom
from gguf_files import convert, rewritten, write_llama
from paceline.backends.llama_cpp.weights import ModelWeights
from paceline.models.headers.gguf_file import GGUFFile
from paceline.models.headers.gguf_writer import copy_part, metadata_field, write_gguf
from paceline.speculative.errors import ModelError

TOKENS = [3, 200, 3, 0]


def in_parts(source: Path, folder: Path) -> Path:
    """Write every second tensor to a second file; return the first."""
    file = GGUFFile(source)
    tensors = [copy_part(file, tensor) for tensor in file.tensors.values()]
    paths = [folder / f"split-{part}-of-00002.gguf" for part in ("00001", "00002")]
    for number, path in enumerate(paths):
        own = [*file.fields.values()] if number == 0 else []
        own += [metadata_field("split.no", number), metadata_field("split.count", 2)]
        write_gguf(path, own, tensors[number::2], file.alignment)
    return paths[0]


def test_a_model_in_parts_has_the_weights_of_the_whole(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "whole.gguf")
    whole, parts = ModelWeights(source), ModelWeights(in_parts(source, tmp_path))
    assert np.array_equal(parts.token_embeddings(TOKENS), whole.token_embeddings(TOKENS))
    head, expected = parts.output_head(), whole.output_head()
    assert np.array_equal(head.weight, expected.weight)
    assert expected.norm is not None
    assert head.norm is not None
    assert np.array_equal(head.norm, expected.norm)
    assert not np.array_equal(head.weight[TOKENS], whole.token_embeddings(TOKENS))


@pytest.mark.parametrize(("kind", "error"), [("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 1e-2), ("Q4_0", 0.2)])
def test_packed_weights_are_unpacked(kind: str, error: float, tmp_path: Path) -> None:
    source = write_llama(tmp_path / "f32.gguf")
    packed, plain = ModelWeights(convert(source, tmp_path / "packed.gguf", kind)), ModelWeights(source)
    rows = packed.token_embeddings(TOKENS)
    assert rows.dtype == np.float32
    assert rows.shape == (4, 64)
    assert 0 < np.abs(rows - plain.token_embeddings(TOKENS)).max() < error
    assert np.abs(packed.output_head().weight - plain.output_head().weight).max() < error


def test_embeddings_are_the_output_layer_of_a_file_without_one(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "whole.gguf")
    tied = rewritten(source, tmp_path / "tied.gguf", lambda _, parts: parts.pop("output.weight"))
    weights = ModelWeights(tied)
    assert np.array_equal(weights.output_head().weight[TOKENS], weights.token_embeddings(TOKENS))


def test_a_norm_that_subtracts_the_mean_is_left_out(tmp_path: Path) -> None:
    head = ModelWeights(write_bloom(tmp_path / "bloom.gguf")).output_head()
    assert head.norm is None


def test_a_file_without_embeddings_is_refused(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "whole.gguf")
    bare = rewritten(source, tmp_path / "bare.gguf", lambda _, parts: parts.pop("token_embd.weight"))
    with pytest.raises(ModelError, match=r"has no tensor token_embd\.weight"):
        ModelWeights(bare).token_embeddings(TOKENS)
