"""Draft heads compute what their authors' classes compute, through the sessions that draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from head_layouts import HeadReference, load_reference, reference_names
from paceline.heads.arrays import to_numpy
from paceline.heads.config import HeadConfig, read_config
from paceline.heads.files import renamed
from paceline.heads.session import SESSIONS, BlockSession, EagleSession, HeadSession, MedusaSession
from paceline.heads.target import KINDS
from paceline.speculative.tree import chain

TARGET_LAYERS, N_CTX, TOLERANCE = 6, 64, 1e-4
Make = Callable[[HeadReference], tuple[Any, HeadSession]]


def config_of(reference: HeadReference) -> HeadConfig:
    found = read_config(reference.config)
    assert found is not None
    return found.resolved(TARGET_LAYERS)


def numpy_array(value: np.ndarray) -> Any:
    return value


def torch_tensor(value: np.ndarray) -> Any:
    torch = pytest.importorskip("torch")
    return torch.from_numpy(value)


@pytest.fixture(params=[numpy_array, torch_tensor], ids=["numpy", "torch"])
def opened(request: pytest.FixtureRequest) -> Make:
    """Make a network and its session, of numpy arrays or torch tensors."""
    array: Callable[[np.ndarray], Any] = request.param

    def make(reference: HeadReference) -> tuple[Any, HeadSession]:
        config = config_of(reference)
        weights = {renamed(name, config): array(value) for name, value in reference.weights.items()}
        lent = {key: array(value) for key, value in reference.target.items()}
        weights.setdefault("lm_head.weight", lent.get("lm_head.weight"))
        table: Any = weights.get("embed_tokens.weight", lent.get("model.embed_tokens.weight"))

        def embed(tokens: Sequence[int]) -> Any:
            assert table is not None
            return table[list(tokens)]

        if not config.target.hidden:  # Medusa's configuration says no width
            width = reference.values["features"].shape[-1]
            config = replace(config, target=replace(config.target, hidden=width))
        network = KINDS[config.kind](config, weights, None)
        return network, SESSIONS[type(network)](network, array(np.zeros(0, np.float32)), N_CTX, embed)

    return make


def features_of(reference: HeadReference) -> np.ndarray:
    values, config = reference.values["features"], config_of(reference)
    return values.reshape(len(values), len(config.layer_ids), -1)


def difference(ours: Sequence[np.ndarray], theirs: np.ndarray) -> float:
    assert len(ours) == len(theirs)
    return max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", reference_names("eagle", "eagle3"))
def test_an_autoregressive_head_agrees_at_every_position_and_in_every_step(name: str, opened: Make) -> None:
    reference = load_reference(name)
    _, session = opened(reference)
    assert isinstance(session, EagleSession)
    features, values = features_of(reference), reference.values
    tokens, n = values["tokens"].tolist(), len(features)
    steps = len(values["logits"])
    session.extend(tokens[:1])
    for p in range(n):
        session.observe(p, features[p : p + 1])
        session.extend(tokens[p + 1 : p + 2])
        _, rows = session.compute(chain(tokens[p + 2 : p + 1 + steps], "x"))
        assert difference(rows, values["logits"][:, p]) < TOLERANCE, p
        assert difference([to_numpy(out)[0] for out in session._outputs], values["hidden"][:, p]) < TOLERANCE
    _, rows = session.compute(chain(values["draft_tokens"].tolist()[:-1], "x"))
    assert difference(rows, values["draft_logits"]) < TOLERANCE


@pytest.mark.parametrize("name", reference_names("dflash", "dspark"))
def test_a_block_agrees_at_every_anchor_and_slot(name: str, opened: Make) -> None:
    reference = load_reference(name)
    _, session = opened(reference)
    assert isinstance(session, BlockSession)
    features, values, first = features_of(reference), reference.values, reference.about["first_slot"]
    tokens = values["tokens"].tolist()
    for i, anchor in enumerate(values["anchors"].tolist()):
        known = max(0, len(session.tokens) - 1)
        session.observe(known, features[known:anchor])
        session.extend(tokens[len(session.tokens) : anchor + 1])
        n = values["logits"].shape[1] - first
        # Slot s is behind the token at a + s, or a + s - 1 where the anchor's own slot drafts nothing.
        _, rows = session.compute(chain(tokens[anchor + 1 : anchor + n], "x"))
        text = min(n, len(tokens) - anchor)
        assert difference(rows[:text], values["logits"][i, first : first + text]) < TOLERANCE
        _, rows = session.compute(chain(values["draft_tokens"][i].tolist()[:-1], "x"))
        assert difference(rows, values["draft_logits"][i]) < TOLERANCE


@pytest.mark.parametrize("name", reference_names("medusa"))
def test_medusa_heads_agree_at_every_position(name: str, opened: Make) -> None:
    reference = load_reference(name)
    _, session = opened(reference)
    assert isinstance(session, MedusaSession)
    features, logits = features_of(reference), reference.values["logits"]
    session.extend([0])
    for p in range(len(features)):
        session.observe(p, features[p : p + 1])
        session.extend([0])
        _, rows = session.compute(chain([0] * (len(logits) - 1), "x"))
        assert difference(rows, logits[:, p]) < TOLERANCE
