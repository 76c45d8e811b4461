"""Variants of the embedded target: Mamba-2 in chunks, and files whose rows are those of the network."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from mtp_context import MTPContext
from paceline.backends.llama_cpp import LlamaTarget
from paceline.models.zoo import target_path
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import chain
from tools.embedded.restore import tokenizer_of
from tools.embedded.variants import VARIANTS, Variant, begin, write_variant

TOKENS = [(7919 * at + 11) % 8000 + 1 for at in range(90)]  # more than a chunk


def written(variant: str, folder: Path) -> tuple[Variant, Path]:
    torch.manual_seed(0)
    model = begin(variant)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "ssm_out" in name:  # it begins with zeros
                weight.normal_(0.0, 0.03)
            elif "attn_q" in name and variant == "mtp":  # as do its gates
                weight += torch.randn_like(weight) * 0.03
    tokenizer, path = folder / "tokenizer.json", folder / "model.gguf"
    tokenizer.write_text(tokenizer_of(target_path()).to_str(), "utf-8")
    write_variant(variant, model, tokenizer, path, "F32")
    return model, path


@pytest.mark.parametrize("variant", VARIANTS)
def test_llama_cpp_computes_the_networks_rows(variant: str, tmp_path: Path) -> None:
    model, path = written(variant, tmp_path)
    expected = model(torch.tensor([TOKENS]))[0].detach().numpy()
    settings: dict[str, Any] = {"cache_type": "f32", "flash_attention": False, "kernels": False}
    with closing(LlamaTarget(path, n_ctx=128, **settings)) as target, closing(target.open()) as session:
        session.extend(TOKENS[:80])
        out = target.forward([(session, chain(TOKENS[80:], "test"))], RequiredOutputs())[0]
        rows = np.stack([out.logits(row) for row in range(11)])
        assert target.caps.rollback == ("free" if variant == "moe" else "restore")
    assert np.abs(rows - expected[79:]).max() < 2e-3 * np.abs(expected).max()


def test_llama_cpp_computes_the_heads_steps(tmp_path: Path) -> None:
    model, path = written("mtp", tmp_path)
    starts, depth = torch.tensor([0, 40, 85]), 4
    with torch.no_grad():
        hidden = model.hidden(torch.tensor([TOKENS]))
        expected = [g[0].numpy() for g in model.guesses(torch.tensor([TOKENS]), hidden, starts, depth)]
    with closing(MTPContext(path)) as head:
        for row, start in enumerate(starts.tolist()):
            head.forget()
            before = np.concatenate([np.zeros((1, hidden.shape[-1]), np.float32), hidden[0, :start].numpy()])
            if start:
                head.decode(TOKENS[:start], 0, before[:-1])
            state = before[-1]
            for step in range(depth):
                logits, state = head.decode([TOKENS[start + step]], start + step, state[None])
                assert np.abs(logits - expected[step][row]).max() < 2e-3 * np.abs(expected[step]).max()
