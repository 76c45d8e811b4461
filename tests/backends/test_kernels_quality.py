"""Kernels of our own are as close to what quantised weights stand for as llama.cpp's kernels are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from gguf_files import write_llama
from paceline.backends.llama_cpp import LlamaTarget, gate, kernels
from paceline.backends.logit_drift import teacher_forced
from quantised import dequantised, quantised

LENGTH = 320  # tokens of the text
CHANCE = 1.1  # of two kernels that round alike, one is now and then this much further off
EXACT = 1e-9  # nats, which are no loss
TYPES = (
    *(Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.IQ4_NL, Type.MXFP4),
    *(Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_XS),
)


@pytest.fixture(scope="module", autouse=True)
def entered() -> Iterator[None]:
    if not kernels.enter().path:
        pytest.skip(kernels.enter().reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "trying", True)
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("quality") / "source.gguf", width=256, spread=0.1)


def predictions(path: Path, *, flash_attention: bool, kernels: bool) -> NDArray[np.float64]:
    """Log-probabilities of what follows each token of a text, in passes of eight rows."""
    text = np.random.default_rng(0).integers(256, size=LENGTH).tolist()
    target = LlamaTarget(
        path, n_ctx=LENGTH, flash_attention=flash_attention, cache_type="f32", kernels=kernels
    )
    with closing(target):
        logits = teacher_forced(target, text, 1, 8)
    shifted = logits - logits.max(axis=1, keepdims=True)
    out: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return out


def divergence(right: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Mean KL divergence over the text, in nats."""
    return float((np.exp(right) * (right - other)).sum(axis=1).mean())


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_predictions_are_no_further_from_those_of_the_weights_as_they_stand(
    source: Path, tmp_path: Path, kind: Type
) -> None:
    path = quantised(source, tmp_path / "quantised.gguf", kind)
    exact = dequantised(path, tmp_path / "dequantised.gguf")
    right = predictions(exact, flash_attention=False, kernels=False)  # nothing is rounded to 16 bits
    ours, theirs = (
        divergence(right, predictions(path, flash_attention=True, kernels=on)) for on in (True, False)
    )
    assert ours <= CHANCE * theirs + EXACT
