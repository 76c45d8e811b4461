"""A head whose products are computed by a model's kernels has nearly the logits that numpy computes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from paceline.backends.interface import MakesProducts
from paceline.backends.llama_cpp import LlamaTarget, kernels
from paceline.backends.llama_cpp.kernels import matrices
from paceline.backends.llama_cpp.kernels.matrices import KernelLinear
from paceline.backends.toy import ToyTarget
from paceline.drafts import open_head
from paceline.heads.config import HeadConfig
from paceline.heads.decoder import LayerShape, Linear, MakeLinear, Stacked
from paceline.heads.session import SESSIONS
from paceline.heads.target import KINDS, HeadTarget
from paceline.speculative.tree import ROOT, DraftTree
from tiny_heads import tiny_config, tiny_weights, toy, write_tiny_head

TARGET = toy(300, width=96)
TREE = DraftTree((5, 6, 7, 8), (ROOT, ROOT, 0, 2), (0.5,) * 4, ("head",) * 4)
SHAPE = LayerShape(96, heads=6, kv_heads=2, head_dim=16, feed_forward=200)
Arrays = dict[str, NDArray[np.float32]]


@pytest.fixture
def library() -> Any:
    if not kernels.load_kernels().path:
        pytest.skip("there are no kernels")
    return kernels._library


def logits_of(config: HeadConfig, weights: Arrays, make: MakeLinear | None) -> NDArray[np.float32]:
    """Return the logits of a tree after a prompt [nodes + 1, vocab], of random hidden states."""
    rng, n_layers = np.random.default_rng(1), len(config.layer_ids)
    head = KINDS[config.kind](config, weights, make)
    session = SESSIONS[type(head)](head, np.zeros(0, np.float32), 64, TARGET.token_embeddings)
    session.extend([*range(20)])
    session.observe(0, rng.normal(size=(19, n_layers, TARGET.hidden_size)).astype(np.float32))
    _, rows = session.compute(TREE)
    return np.stack(rows)


@pytest.mark.parametrize("kind", ["block", "eagle", "eagle3", "medusa"])
def test_the_logits_of_every_kind_of_head_are_nearly_those_of_numpy(library: Any, kind: str) -> None:
    markov = {"markov": "vanilla", "markov_rank": 40} if kind == "block" else {}
    config = tiny_config(kind, TARGET, TARGET.vocab.size, shape=SHAPE, **markov)
    weights, made = tiny_weights(config), list[KernelLinear]()
    if kind != "medusa":
        weights["layers.0.self_attn.v_proj.bias"] = np.ones(32, np.float32)

    def make(weight: Any, bias: Any) -> KernelLinear:
        made.append(KernelLinear(library, weight, bias))
        return made[-1]

    exact, rounded = logits_of(config, weights, None), logits_of(config, weights, make)
    assert sum(product.shape[0] * product.shape[1] for product in made) == sum(
        w.size for name, w in weights.items() if w.ndim == 2 and "markov_w1" not in name
    )
    assert not np.array_equal(exact, rounded)
    for a, b in zip(exact, rounded, strict=True):
        assert a @ b > 0.999 * np.linalg.norm(a) * np.linalg.norm(b)


def test_products_of_the_same_rows_are_stacked_for_numpy_and_not_for_torch() -> None:
    rng, shapes = np.random.default_rng(0), {"a.weight": (4, 6), "b.weight": (3, 6), "b.bias": (3,)}
    weights = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    x = np.ones((2, 6), np.float32)
    apart = [x @ weights["a.weight"].T, x @ weights["b.weight"].T + weights["b.bias"]]
    made = list[Any]()

    def make(weight: Any, bias: Any) -> Callable[[Any], Any]:
        made.append(weight.shape)
        return Linear(weight, bias)

    for out in (Stacked(weights, "ab", None)(x), Stacked(weights, "ab", make)(x)):
        assert all(np.allclose(one, two, atol=1e-6) for one, two in zip(out, apart, strict=True))
    assert made == [(7, 6)]
    torch = pytest.importorskip("torch")
    tensors = {name: torch.from_numpy(value).requires_grad_() for name, value in weights.items()}
    first, second = Stacked(tensors, "ab", make)(torch.from_numpy(x))
    assert made == [(7, 6)]
    (first.sum() + second.sum()).backward()
    assert all(tensor.grad is not None for tensor in tensors.values())
    assert np.allclose(second.detach().numpy(), apart[1], atol=1e-6)


def test_a_head_beside_a_gguf_model_uses_its_kernels_and_works_without(
    target: Path, tmp_path: Path, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrices, "MIN_WEIGHTS", 0)
    made = list[Any]()

    class Counted(KernelLinear):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            made.append(settings["threads"])

    monkeypatch.setattr(matrices, "KernelLinear", Counted)
    rows, engines = [], []
    for uses in (True, False):
        with closing(LlamaTarget(target, n_ctx=64, threads=2, kernels=uses)) as base:
            head = open_head(write_tiny_head(tmp_path / "head", "medusa", base, depth=2), base)
            rows.append(first_row(head))
            engines.append(head.identity()["engine"])
            assert made == [2, 2, 2]  # two blocks and the output matrix, in the first round only
    assert rows[0] @ rows[1] > 0.999 * np.linalg.norm(rows[0]) * np.linalg.norm(rows[1])
    # Costs of passes are stored by it.
    assert engines == [f"{kernels.load_kernels().path} x 2", f"numpy {np.__version__}"]
    assert not isinstance(ToyTarget(6), MakesProducts)


def first_row(head: HeadTarget) -> NDArray[np.float32]:
    session = head.open()
    session.extend([1, 2, 3])
    width = head.config.target.hidden
    session.observe(0, np.random.default_rng(0).normal(size=(2, 1, width)).astype(np.float32))
    row: NDArray[np.float32] = session.compute(TREE)[1][0]
    return row
