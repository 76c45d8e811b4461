"""Configurations of `speculators`, and the files that it saves."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, PretrainedConfig, Qwen3Config

from tools.heads import cases


def layer_config(architecture: str = "llama", theta: float = 10000.0, **settings: Any) -> PretrainedConfig:
    """Configure the head's decoder layers; the mask is dense, so that a processor can compute it."""
    kind = {"llama": LlamaConfig, "qwen3": Qwen3Config}[architecture]
    sizes = {
        "vocab_size": cases.VOCABULARY,
        "hidden_size": cases.HIDDEN,
        "intermediate_size": cases.INTERMEDIATE,
        "num_hidden_layers": 1,
        "num_attention_heads": cases.HEADS,
        "num_key_value_heads": cases.KV_HEADS,
        "head_dim": cases.HEAD_DIM,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
    }
    config = kind(**(sizes | settings))
    config._attn_implementation = "eager"
    return config


def speculators_config(algorithm: str, drafted: int) -> SpeculatorsConfig:
    """Describe the target and how many tokens are drafted."""
    return SpeculatorsConfig(
        algorithm=algorithm,
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=drafted)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path="example/target", architectures=["LlamaForCausalLM"]),
    )


def saved(model: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the configuration and the weights as the model's own `save_pretrained` writes them."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        return config, load_file(Path(folder) / "model.safetensors")
