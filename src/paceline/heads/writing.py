"""Writing a trained head: speculators' layout for EAGLE-3 and blocks, the same style for other kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.heads.config import (
    EAGLE3_VARIANTS,
    KIND_KEY,
    SPECULATORS_KEY,
    VERSION,
    HeadConfig,
    layer_entries,
)
from paceline.heads.files import CARD, CONFIG, SAMPLE, SAMPLE_NAME, WEIGHTS, write_safetensors
from paceline.system.whole import write_json

PUBLISHED = {"eagle3": "eagle3", "block": "dspark"}  # speculators' names
CLASSES = {"eagle3": "Eagle3DraftModel", "dspark": "DSparkDraftModel"}


def write_head(
    folder: Path,
    config: HeadConfig,
    weights: Mapping[str, NDArray[Any]],
    ids: NDArray[np.int64],
    sample: NDArray[np.float32],
    card: Mapping[str, Any],
) -> None:
    """Write a head into a folder; weights come first, so that a folder with config.json is complete.
    ids: the draft vocabulary. sample: see heads/target.py. Raises OSError."""
    size = config.target.vocab
    out: dict[str, NDArray[Any]] = {name: np.asarray(value, np.float32) for name, value in weights.items()}
    if len(ids) != size:
        is_drafted = np.zeros(size, np.bool_)
        is_drafted[ids] = True
        out |= {"d2t": ids - np.arange(len(ids)), "t2d": is_drafted}
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / WEIGHTS, out)
    write_safetensors(folder / SAMPLE, {SAMPLE_NAME: sample})
    for name, data in ((CARD, card), (CONFIG, config_entries(config))):
        write_json(folder / name, data)


def exit_entries(config: HeadConfig) -> dict[str, Any]:
    if not config.exits:
        return {}
    return {"exits": [asdict(one) for one in config.exits], "default_exit": config.default_exit}


def config_entries(config: HeadConfig) -> dict[str, Any]:
    """Return the head's config.json."""
    if config.kind not in PUBLISHED:
        return {
            KIND_KEY: config.kind,
            "version": VERSION,
            "target": asdict(config.target),
            "draft_vocab_size": config.draft_vocab,
            "layer_ids": list(config.layer_ids),
            "num_hidden_layers": config.n_layers,
            "depth": config.depth,
            "layer": layer_entries(config.shape),
            **exit_entries(config),
        }
    name = PUBLISHED[config.kind]
    layer = layer_entries(config.shape) | {
        "model_type": "llama" if name == "eagle3" else "qwen3",
        "num_hidden_layers": config.n_layers,
        "vocab_size": config.target.vocab,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }
    out = {
        SPECULATORS_KEY: name,
        "architectures": [CLASSES[name]],
        "draft_vocab_size": config.draft_vocab,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": name,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.depth or 5}],
            "verifier": {"name_or_path": config.target.name, "architectures": []},
        },
        "target_hidden_size": config.target.hidden,
        "paceline": {"version": VERSION, "target": asdict(config.target)},
    }
    if name == "eagle3":
        return out | {
            "eagle_aux_hidden_state_layer_ids": list(config.layer_ids),
            **{name: getattr(config, name) for name in EAGLE3_VARIANTS},
        }
    return out | {
        "aux_hidden_state_layer_ids": list(config.layer_ids),
        "block_size": config.depth + (not config.from_root),
        "mask_token_id": config.mask_token,
        "markov_rank": config.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": False,
        "sample_from_anchor": config.from_root,
    }
