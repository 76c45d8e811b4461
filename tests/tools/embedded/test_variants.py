"""Variants of the embedded target: Mamba-2 in chunks, and files whose rows are those of the network."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from paceline.backends.llama_cpp import LlamaTarget
from paceline.models.zoo import target_path
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import chain
from tools.embedded.restore import tokenizer_of
from tools.embedded.variants import VARIANTS, begin, write_variant

TOKENS = [(7919 * at + 11) % 8000 + 1 for at in range(90)]  # more than a chunk


@pytest.mark.parametrize("variant", VARIANTS)
def test_llama_cpp_computes_the_networks_rows(variant: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = begin(variant)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "ssm_out" in name:  # it begins with zeros
                weight.normal_(0.0, 0.03)
        expected = model(torch.tensor([TOKENS]))[0].numpy()
    tokenizer, path = tmp_path / "tokenizer.json", tmp_path / "model.gguf"
    tokenizer.write_text(tokenizer_of(target_path()).to_str(), "utf-8")
    write_variant(variant, model, tokenizer, path, "F32")
    settings: dict[str, Any] = {"cache_type": "f32", "flash_attention": False, "kernels": False}
    with closing(LlamaTarget(path, n_ctx=128, **settings)) as target, closing(target.open()) as session:
        session.extend(TOKENS[:80])
        out = target.forward([(session, chain(TOKENS[80:], "test"))], RequiredOutputs())[0]
        rows = np.stack([out.logits(row) for row in range(11)])
        assert target.caps.rollback == ("free" if variant == "moe" else "restore")
    assert np.abs(rows - expected[79:]).max() < 2e-3 * np.abs(expected).max()
