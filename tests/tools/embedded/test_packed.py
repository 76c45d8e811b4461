"""Texts end to end in one row are what they are by themselves."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="training needs torch")

import torch

from tools.embedded.network import Llama, Shape
from tools.embedded.packed import Packed

SHAPE = Shape(width=32, blocks=2, heads=4, kv_heads=2, feed_forward=48, vocab=64)
LENGTHS = (5, 1, 9)


def test_each_text_of_a_row_begins_at_position_0_and_sees_itself_only() -> None:
    torch.manual_seed(0)
    network = Llama(SHAPE).requires_grad_(False)
    for weight in network.parameters():
        if weight.ndim == 2:
            weight.normal_(std=0.3)
    ids = torch.randint(SHAPE.vocab, (1, sum(LENGTHS)))
    row = network.hidden(ids, packed=Packed(LENGTHS, 8, 16, torch.device("cpu")))
    alone = [network.hidden(text) for text in ids.split(LENGTHS, 1)]
    assert torch.allclose(row, torch.cat(alone, 1), atol=1e-5)
    assert not torch.allclose(row, network.hidden(ids), atol=1e-2)
