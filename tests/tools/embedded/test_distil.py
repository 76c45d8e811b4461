"""What cannot be trained on is refused before anything is."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_files import write_llama
from paceline.models import zoo
from paceline.speculative.errors import ModelError

pytest.importorskip("torch", reason="training needs torch")


def of_type(path: Path, kind: gguf.GGMLQuantizationType) -> Path:
    _, size = gguf.GGML_QUANT_SIZES[kind]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tensor("blk.0.ffn_up.weight", np.zeros((1, size), np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "IQ4_XS"])
def test_types_that_cannot_be_written_again_are_refused(tmp_path: Path, kind: str) -> None:
    from tools.embedded.distil import check_types

    path = of_type(tmp_path / "draft.gguf", gguf.GGMLQuantizationType[kind])
    with pytest.raises(ModelError, match=f"ffn_up.weight is {kind}, which cannot be written here"):
        check_types(path)


def test_the_embedded_models_can_be_trained_on_and_other_tokenizers_cannot(tmp_path: Path) -> None:
    from tools.embedded.distil import check_tokenizer, check_types, corpus_tokens

    check_types(zoo.draft_path())
    check_tokenizer(zoo.draft_path())
    other = write_llama(tmp_path / "other.gguf")
    with pytest.raises(ModelError, match="can be trained here"):
        corpus_tokens(tmp_path / "run", other)
    assert not (tmp_path / "run").exists()
