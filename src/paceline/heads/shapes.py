"""The shapes of a head's weights, by its configuration."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.heads.config import HeadConfig
from paceline.heads.decoder import Weights
from paceline.speculative.errors import ModelError

ANY = 0  # a dimension that only the weights tell


def check_shapes(path: Path, config: HeadConfig, weights: Weights) -> None:
    """Raise ModelError for a weight of another shape than the configuration says."""
    shapes = weight_shapes(config)
    for name, weight in weights.items():
        stem, _, part = name.rpartition(".")
        expected = shapes.get(stem) or shapes.get(re.sub(r"\b\d+\.|\.\d+$", "", stem))
        if expected is None:
            continue  # of no use
        found, expected = tuple(weight.shape), expected[:1] if part == "bias" else expected
        if len(found) != len(expected) or any(
            want not in (ANY, n) for n, want in zip(found, expected, strict=True)
        ):
            raise ModelError(
                f"{path}: its weights do not fit its configuration: {name} is {found}, expected {expected}"
            )


def weight_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of matrices and norms by their names without numbers, for heads of all kinds."""
    shape, rank, vocab = config.shape, config.markov_rank, config.target.vocab
    width, tokens = config.target.hidden, config.draft_vocab
    hidden, queries, keys = (
        shape.hidden or width,
        shape.heads * shape.head_dim,
        shape.kv_heads * shape.head_dim,
    )
    first = 2 * hidden if config.kind == "eagle3" else hidden
    inputs = 2 * hidden if config.kind == "eagle" else len(config.layer_ids) * width
    sizes = {"q": queries, "k": keys, "v": keys}
    norms = ("input_layernorm", "post_attention_layernorm", "hidden_norm")
    return {
        **dict.fromkeys(("norm", "hidden_norm", *(f"layers.{name}" for name in norms)), (hidden,)),
        **dict.fromkeys(("fc_norm", "exits.input_norm", "exits.norm"), (width,)),
        **dict.fromkeys(("layers.self_attn.q_norm", "layers.self_attn.k_norm"), (shape.head_dim,)),
        **{f"layers.self_attn.{name}_proj": (size, hidden) for name, size in sizes.items()},
        **{f"layers.0.self_attn.{name}_proj": (size, first) for name, size in sizes.items()},
        **dict.fromkeys(("layers.mlp.gate_proj", "layers.mlp.up_proj"), (shape.feed_forward, hidden)),
        "layers.self_attn.o_proj": (hidden, queries),
        "layers.mlp.down_proj": (hidden, shape.feed_forward),
        "lm_head": (tokens, hidden),
        "embed_tokens": (vocab, hidden),
        "input_norm": (inputs,),
        "fc": (hidden, inputs),
        "blocks.linear": (width, width),
        "exits.down": (ANY, width),
        "exits.up": (width, ANY),
        "markov_head.markov_w1": (vocab, rank),
        "markov_head.markov_w2": (tokens, rank),
        "markov_head.gate_proj": (rank, hidden + rank),
        "markov_head.joint_proj": (3 * rank, hidden + 2 * rank),
    }
