"""Published heads load beside their target, in every layout, container and type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from head_layouts import (
    REFERENCE_LAYERS,
    load_reference,
    reference_names,
    require_agreement,
    with_older_rope,
    write_layout,
    zlab_config,
)
from paceline.heads.files import head_config
from paceline.speculative.errors import ModelError

LAYERS, TOLERANCE = REFERENCE_LAYERS, 1e-4
READ = reference_names("eagle", "eagle3", "dflash", "dspark", "medusa")


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("name", READ)
def test_a_published_head_loads(name: str, dtype: Any, tmp_path: Path) -> None:
    reference = load_reference(name)
    require_agreement(write_layout(reference, tmp_path, dtype=dtype), reference)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("name", ["eagle", "eagle3", "eagle3_safeailab", "dflash", "dspark", "medusa"])
def test_a_head_that_torch_saved_loads(name: str, dtype: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    reference = load_reference(name)
    require_agreement(write_layout(reference, tmp_path, container="torch", dtype=dtype), reference)


@pytest.mark.parametrize("name", reference_names("eagle3", "dflash", "dspark"))
def test_older_files_have_the_rope_base_elsewhere(name: str, tmp_path: Path) -> None:
    reference = load_reference(name)
    if reference.about["layout"] != "speculators":
        pytest.skip("has the older keys anyway")
    folder = write_layout(reference, tmp_path, config=with_older_rope(reference.config))
    require_agreement(folder, reference)


@pytest.mark.parametrize("name", ["dflash", "dflash_full_vocabulary", "dflash_sliding_non_causal"])
def test_dflash_loads_as_its_authors_publish_it(name: str, tmp_path: Path) -> None:
    reference = load_reference(name)
    if "d2t" in reference.weights:  # the authors' heads draft the whole vocabulary
        reference.weights.pop("d2t")
        reference.weights.pop("t2d")
        reference.target["lm_head.weight"] = np.zeros((96, 32), np.float32)
        reference.target["lm_head.weight"][reference_ids(name)] = reference.weights.pop("lm_head.weight")
        values = reference.values["draft_logits"]
        wide = reference.values["draft_logits"] = np.zeros((*values.shape[:-1], 96), np.float32)
        wide[..., reference_ids(name)] = values
    config = zlab_config(reference.config, LAYERS)
    require_agreement(write_layout(reference, tmp_path / "older", config=config), reference)
    config["dflash_config"]["block_size"] = config.pop("block_size")
    require_agreement(write_layout(reference, tmp_path / "newer", config=config), reference)


def reference_ids(name: str) -> np.ndarray:
    offsets = load_reference(name).weights["d2t"]
    ids: np.ndarray = offsets + np.arange(len(offsets))
    return ids


def test_dflash_without_a_list_reads_layers_at_equal_distances(tmp_path: Path) -> None:
    reference = load_reference("dflash_full_vocabulary")
    config = zlab_config(reference.config, 36)
    del config["dflash_config"]["target_layer_ids"]
    for layers, expected in ((1, (19,)), (5, (2, 10, 18, 26, 34))):  # behind layers 1, 9, 17, 25, 33
        folder = write_layout(
            reference, tmp_path / str(layers), config=config | {"num_hidden_layers": layers}
        )
        found = head_config(folder)
        assert found is not None
        assert found.layer_ids == expected


def test_a_repository_without_a_head_is_none(tmp_path: Path) -> None:
    assert head_config(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 16}))
    assert head_config(tmp_path) is None


def test_a_llama_of_one_layer_is_told_from_eagle_by_its_tokenizer(tmp_path: Path) -> None:
    folder = write_layout(load_reference("eagle"), tmp_path)
    found = head_config(folder)
    assert found is not None
    assert found.kind == "eagle"
    (folder / "tokenizer.json").write_text("{}")
    assert head_config(folder) is None
    scaled = json.loads((folder / "config.json").read_text()) | {
        "rope_scaling": {"type": "yarn", "factor": 4.0}
    }
    (folder / "config.json").write_text(json.dumps(scaled))
    assert head_config(folder) is None  # a model's backend may know what heads do not
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="yarn"):
        head_config(folder)
