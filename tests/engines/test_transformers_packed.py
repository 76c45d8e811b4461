"""Linear layers of 8 and 4 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from hf_models import folder_of
from paceline.core.errors import UsageError
from paceline.core.ports import Want
from paceline.core.tree import chain
from paceline.engines.hf.opener import open_engine
from paceline.engines.hf.packed import KINDS, pack

# Rounding to so many steps moves a product of random numbers by about this share.
NEAR = {"int8": 0.02, "int4": 0.15}


def linear(bias: bool) -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(128, 64, bias=bias, dtype=torch.bfloat16)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_layer_says_nearly_the_same(kind: str, bias: bool) -> None:
    layer = linear(bias)
    with torch.inference_mode():
        packed = KINDS[kind](layer)
        for shape in ((1, 1, 128), (2, 5, 128)):
            x = torch.randn(shape, dtype=torch.bfloat16)
            expected, found = layer(x).float(), packed(x).float()
            assert found.shape == expected.shape
            assert (found - expected).norm() < NEAR[kind] * expected.norm()
            assert (found - expected).norm() > 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_packed_weights_is_told_to_be_another(kind: str, tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path, vocab_size=96, intermediate_size=64)
    whole = open_engine(folder, n_ctx=64, device="cpu", dtype="bfloat16")
    target = open_engine(folder, n_ctx=64, device="cpu", dtype=kind)
    assert target.alters == f"{kind} weights"
    assert target.description.endswith(kind)
    assert target.identity() != whole.identity()
    assert target.memory < whole.memory
    rows = []
    for one in (whole, target):
        session = one.open()
        session.extend([5, 9, 14, 5, 9])
        out = one.forward([(session, chain([7, 8], "test"))], Want())[0]
        rows.append(np.stack([out.logits(row) for row in range(3)]))
        one.close()
    assert np.corrcoef(rows[0].ravel(), rows[1].ravel())[0, 1] > 0.9


def test_what_four_bits_do_not_fit_stays() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(24, 16), torch.nn.Linear(32, 16), torch.nn.Linear(32, 5))
    model.device = torch.device("cpu")
    assert pack(model, "int4") == 1
    assert [type(layer).__name__ for layer in model] == ["Linear", "Int4", "Linear"]


def test_its_kernels_are_for_a_processor() -> None:
    model = torch.nn.Sequential()
    model.device = torch.device("meta")
    with pytest.raises(UsageError, match="for a processor"):
        pack(model, "int8")
