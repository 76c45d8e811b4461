"""The reference values of draft heads can be read, and written in the layouts that are published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from head_layouts import (
    FILES,
    HEADS,
    Dtype,
    HeadReference,
    load_reference,
    reference_names,
    with_older_rope,
    write_layout,
    zlab_config,
)

ALL = reference_names()
STEPS = 4


def test_every_kind_has_references() -> None:
    kinds = {load_reference(name).about["kind"] for name in ALL}
    assert kinds == {"dflash", "dspark", "eagle", "eagle3", "kangaroo", "medusa"}


@pytest.mark.parametrize("name", ALL)
def test_a_reference_is_complete_and_small(name: str) -> None:
    reference = load_reference(name)
    assert (HEADS / f"{name}.npz").stat().st_size < 150_000
    assert reference.about["layout"] in FILES
    assert reference.weights
    assert reference.values["features"].dtype == np.float32
    assert all(
        np.isfinite(value).all() for value in (*reference.values.values(), *reference.weights.values())
    )
    positions = reference.values["logits"].shape[:-1]
    assert np.prod(positions) >= 16


@pytest.mark.parametrize("name", reference_names("eagle", "eagle3"))
def test_drafted_tokens_are_the_likeliest_of_their_logits(name: str) -> None:
    reference = load_reference(name)
    logits, drafted = reference.values["draft_logits"], reference.values["draft_tokens"]
    assert logits.shape[0] == len(drafted) == STEPS
    assert drafted.tolist() == likeliest(reference, logits).tolist()
    np.testing.assert_allclose(logits[0], reference.values["logits"][0, -1], atol=1e-5)


@pytest.mark.parametrize("name", reference_names("dflash", "dspark"))
def test_drafted_blocks_are_the_likeliest_of_their_logits(name: str) -> None:
    reference = load_reference(name)
    logits, drafted = reference.values["draft_logits"], reference.values["draft_tokens"]
    blocks = (len(reference.values["anchors"]), reference.config["block_size"])
    assert reference.values["logits"].shape[:2] == blocks
    assert drafted.shape == logits.shape[:2] == (blocks[0], blocks[1] - reference.about["first_slot"])
    assert drafted.tolist() == likeliest(reference, logits).tolist()
    first = reference.values["logits"][:, reference.about["first_slot"]]
    np.testing.assert_allclose(logits[:, 0], first, atol=1e-5)
    assert {"model.embed_tokens.weight"} <= reference.target.keys()


def likeliest(reference: HeadReference, logits: np.ndarray) -> np.ndarray:
    """Return the target's tokens for the greatest logits."""
    chosen: np.ndarray = logits.argmax(axis=-1)
    if "d2t" in reference.weights:
        chosen = chosen + reference.weights["d2t"][chosen]
        assert reference.weights["t2d"][chosen].all()
        assert reference.weights["t2d"].sum() == logits.shape[-1]
    return chosen


@pytest.mark.parametrize("dtype", get_args(Dtype))
@pytest.mark.parametrize("name", ALL)
def test_safetensors_hold_the_weights_exactly(name: str, dtype: Dtype, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    reference = load_reference(name)
    folder = write_layout(reference, tmp_path / "head", dtype=dtype)
    assert json.loads((folder / "config.json").read_text(encoding="utf-8")) == reference.config
    read = safetensors.load_file(folder / FILES[reference.about["layout"]][0])
    assert read.keys() == reference.weights.keys()
    for key, weight in reference.weights.items():
        wanted = torch.from_numpy(weight)
        assert torch.equal(read[key].to(wanted.dtype), wanted), key


@pytest.mark.parametrize(
    "name", [name for name in ALL if load_reference(name).about["layout"] != "speculators"]
)
def test_torch_reads_what_torch_has_written(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    reference = load_reference(name)
    folder = write_layout(reference, tmp_path / "head", container="torch", dtype="F16")
    read = torch.load(folder / FILES[reference.about["layout"]][1], weights_only=True)
    for key, weight in reference.weights.items():
        assert np.array_equal(read[key].float().numpy(), weight), key


def test_an_older_configuration_has_the_same_base_of_its_rotation() -> None:
    config = load_reference("eagle3_two_layers").config
    older = with_older_rope(config)["transformer_layer_config"]
    assert "rope_parameters" not in older
    assert (
        older["rope_theta"] == config["transformer_layer_config"]["rope_parameters"]["rope_theta"] == 500000.0
    )


def test_zlab_numbers_the_outputs_of_layers(tmp_path: Path) -> None:
    reference = load_reference("dflash_full_vocabulary")
    folder = write_layout(reference, tmp_path, config=zlab_config(reference.config))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["dflash_config"]["target_layer_ids"] == [1, 2, 5]
    assert (config["block_size"], config["rope_theta"], config["hidden_size"]) == (8, 10000.0, 32)
    assert "rope_parameters" not in config
