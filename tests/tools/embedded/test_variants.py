"""Variants of the embedded target: Mamba-2 in chunks, and files whose rows are those of the network."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
import torch.nn.functional as F  # noqa: N812

from paceline.backends.llama_cpp import LlamaTarget
from paceline.models.zoo import target_path
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import chain
from tools.embedded.mixers import Experts, Mamba2, MambaShape
from tools.embedded.restore import tokenizer_of
from tools.embedded.variants import VARIANTS, begin, write_variant

TOKENS = [(7919 * at + 11) % 8000 + 1 for at in range(90)]  # more than a chunk


def test_a_scan_in_chunks_is_the_recurrence() -> None:
    torch.manual_seed(0)
    layer = Mamba2(32, MambaShape(64, heads=8, state=16, groups=2))
    torch.nn.init.normal_(layer.ssm_out.weight)
    x = torch.randn(2, 150, 32)
    with torch.no_grad():
        z, xbc, dt = layer.ssm_in(x).split([64, 128, 8], -1)
        xbc = F.silu(layer.ssm_conv1d(F.pad(xbc.mT, (3, 0))).mT)
        inner, b, c = xbc.split([64, 32, 32], -1)
        dt = F.softplus(dt + layer.ssm_dt)
        inner = inner.view(2, 150, 8, 8)
        b, c = (part.view(2, 150, 2, 16).repeat_interleave(4, 2) for part in (b, c))
        state, rows = torch.zeros(2, 8, 8, 16), []
        for t in range(150):
            kept = torch.exp(-dt[:, t] * layer.ssm_a.exp())[..., None, None]
            added = (inner[:, t] * dt[:, t, :, None])[..., None] * b[:, t, :, None, :]
            state = kept * state + added
            rows.append((state * c[:, t, :, None, :]).sum(-1) + inner[:, t] * layer.ssm_d[:, None])
        y = (torch.stack(rows, 1).reshape(2, 150, -1) * F.silu(z)).view(2, 150, 2, -1)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5) * layer.ssm_norm
        assert torch.allclose(layer(x), layer.ssm_out(y.reshape(2, 150, -1)), atol=1e-5)


def test_experts_are_weighted_by_their_router() -> None:
    torch.manual_seed(0)
    layer = Experts(16, 8, experts=4, used=2)
    for weight in layer.ffn_down_exps:
        torch.nn.init.normal_(weight)
    x = torch.randn(3, 5, 16)
    with torch.no_grad():
        every = [
            F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
            for gate, up, down in zip(
                layer.ffn_gate_exps, layer.ffn_up_exps, layer.ffn_down_exps, strict=True
            )
        ]
        p = layer.ffn_gate_inp(x).softmax(-1)
        p = p * (p >= p.topk(2, -1).values[..., -1:])
        expected = sum(
            weight[..., None] * out
            for weight, out in zip((p / p.sum(-1, keepdim=True)).unbind(-1), every, strict=True)
        )
        assert torch.allclose(layer(x), expected, atol=1e-5)
        assert 0.5 < float(layer.load) < 4.0


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
