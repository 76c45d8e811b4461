"""The shapes of a head's weights, by its configuration."""

from __future__ import annotations

from pathlib import Path

from paceline.heads.config import HeadConfig
from paceline.heads.decoder import Weights
from paceline.speculative.errors import ModelError

ANY = 0  # a dimension that only the weights tell
Shapes = dict[str, tuple[int, ...]]


def check_shapes(path: Path, config: HeadConfig, weights: Weights) -> None:
    """Raise ModelError for a weight of another shape than the configuration says."""
    for name, expected in weight_shapes(config).items():
        found = tuple(weights[name].shape) if name in weights else expected
        if len(found) != len(expected) or any(
            want not in (ANY, n) for n, want in zip(found, expected, strict=True)
        ):
            raise ModelError(
                f"{path}: its weights do not fit its configuration: {name} is {found}, expected {expected}"
            )


def weight_shapes(config: HeadConfig) -> Shapes:
    """Return the shapes of all weights that a head may have, of whatever kind."""
    width, tokens, rank, n = (
        config.target.hidden,
        config.draft_vocab,
        config.markov_rank,
        len(config.layer_ids),
    )
    hidden = config.shape.hidden or width
    inputs = 2 * hidden if config.kind == "eagle" else n * width
    out = matrix("lm_head", tokens, hidden) | matrix("fc", hidden, inputs)
    out |= dict.fromkeys(("norm.weight", "hidden_norm.weight", "layers.0.hidden_norm.weight"), (hidden,))
    out |= {"embed_tokens.weight": (config.target.vocab, hidden), "input_norm.weight": (inputs,)}
    for i in range(config.depth if config.kind == "medusa" else 0):
        out |= matrix(f"blocks.{i}.linear", width, width) | matrix(f"lm_head.{i}", tokens, width)
        for j in range(config.n_layers):
            out |= matrix(f"blocks.{i}.{j}.linear", width, width)
    for i in range(n):
        out |= {
            f"{name}.weight": (width,)
            for name in (f"fc_norm.{i}", f"exits.{i}.input_norm", f"exits.{i}.norm")
        }
        out |= matrix(f"exits.{i}.down", ANY, width) | matrix(f"exits.{i}.up", width, ANY)
    for i in range(config.n_layers):
        out |= layer_shapes(
            config, f"layers.{i}.", 2 * hidden if config.kind == "eagle3" and not i else hidden
        )
    out |= matrix("markov_head.markov_w1", config.target.vocab, rank) | matrix(
        "markov_head.markov_w2", tokens, rank
    )
    out |= matrix("markov_head.gate_proj", rank, hidden + rank)
    return out | matrix("markov_head.joint_proj", 3 * rank, hidden + 2 * rank)


def layer_shapes(config: HeadConfig, prefix: str, inputs: int) -> Shapes:
    """Return the shapes of a decoder layer (decoder.DecoderLayer)."""
    shape, out = config.shape, Shapes()
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for name, size in (("q", queries), ("k", keys), ("v", keys)):
        out |= matrix(f"{prefix}self_attn.{name}_proj", size, inputs)
    for name in ("gate", "up"):
        out |= matrix(f"{prefix}mlp.{name}_proj", shape.feed_forward, shape.hidden)
    out |= matrix(f"{prefix}self_attn.o_proj", shape.hidden, queries)
    out |= matrix(f"{prefix}mlp.down_proj", shape.hidden, shape.feed_forward)
    out |= {f"{prefix}self_attn.{name}_norm.weight": (shape.head_dim,) for name in "qk"}
    return out | {f"{prefix}{name}_layernorm.weight": (shape.hidden,) for name in ("input", "post_attention")}


def matrix(name: str, outputs: int, inputs: int) -> Shapes:
    """Return the shapes of a product's matrix and bias."""
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
