"""Draft heads with random weights for a toy model; none of them needs a file or torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paceline.backends.toy import ToyTarget
from paceline.drafters.head import DraftVocabDrafter, HeadDrafter
from paceline.heads.config import HeadConfig, TargetFacts
from paceline.heads.decoder import LayerShape
from paceline.heads.exit_target import ExitTarget
from paceline.heads.files import HeadFiles, write_head
from paceline.heads.parallel_draft import ParallelDraft
from paceline.heads.target import HeadTarget, sample_tokens

KINDS = ("medusa", "eagle", "eagle3", "block")
EXIT_KINDS = ("exits", "kangaroo")  # heads on the target's first layers
RANK = 4
LAYERS = 3  # of a target for which heads are made
FEED_FORWARD = 16


def toy(n_vocab: int = 6, *, layers: int = LAYERS, **settings: Any) -> ToyTarget:
    return ToyTarget(n_vocab, **({"seed": 2, "layers": layers} | settings))


def tiny_config(kind: str, target: ToyTarget, draft_vocab: int, **settings: Any) -> HeadConfig:
    width = target.hidden_size
    parallel = {
        "medusa": {"depth": 4},
        "block": {"depth": 4, "n_layers": 2, "from_root": True, "mask_token": 0},
    }
    layers = dict.fromkeys(("medusa", "eagle"), (target.layers,)) | {"exits": (1, 2), "kangaroo": (1,)}
    shape = LayerShape(width, heads=2, kv_heads=1, head_dim=4, feed_forward=FEED_FORWARD)
    given: dict[str, Any] = {"shape": shape, "layer_ids": layers.get(kind, (2, 0, 1))}
    given |= parallel.get(kind, {})
    return HeadConfig(
        kind=kind,
        target=TargetFacts("a toy", "", target.layers, width, target.vocab.size),
        draft_vocab=draft_vocab,
        **(given | settings),
    )


def tiny_weights(config: HeadConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Return random weights of the shapes that a configuration has."""
    rng, shape, width = np.random.default_rng([seed, 7]), config.shape, config.target.hidden

    def matrix(rows: int, columns: int) -> np.ndarray:
        out: np.ndarray = (rng.normal(size=(rows, columns)) / columns**0.5).astype(np.float32)
        return out

    def norm(n: int) -> np.ndarray:
        return rng.uniform(0.5, 1.5, n).astype(np.float32)

    out = {"lm_head.weight": 3.0 * matrix(config.draft_vocab, shape.hidden)}
    if config.kind == "medusa":
        for i in range(config.depth):
            out[f"blocks.{i}.linear.weight"] = matrix(width, width)
            out[f"blocks.{i}.linear.bias"] = norm(width)
        return out
    if config.kind == "exits":
        for i in range(len(config.layer_ids)):
            out |= {f"exits.{i}.{name}.weight": norm(width) for name in ("input_norm", "norm")}
            out |= {
                f"exits.{i}.down.weight": matrix(RANK, width),
                f"exits.{i}.up.weight": matrix(width, RANK),
            }
        return out
    inputs = 2 * shape.hidden if config.kind == "eagle" else len(config.layer_ids) * width
    out |= {"fc.weight": matrix(shape.hidden, inputs), "norm.weight": norm(shape.hidden)}
    for i in range(config.n_layers):
        wide = 2 * shape.hidden if config.kind == "eagle3" and i == 0 else shape.hidden
        kv = shape.kv_heads * shape.head_dim
        layer = {
            "self_attn.q_proj": matrix(shape.heads * shape.head_dim, wide),
            "self_attn.k_proj": matrix(kv, wide),
            "self_attn.v_proj": matrix(kv, wide),
            "self_attn.o_proj": matrix(shape.hidden, shape.heads * shape.head_dim),
            "mlp.gate_proj": matrix(shape.feed_forward, shape.hidden),
            "mlp.up_proj": matrix(shape.feed_forward, shape.hidden),
            "mlp.down_proj": matrix(shape.hidden, shape.feed_forward),
            "input_layernorm": norm(shape.hidden),
            "post_attention_layernorm": norm(shape.hidden),
        }
        if config.kind == "block":
            layer |= {"self_attn.q_norm": norm(shape.head_dim), "self_attn.k_norm": norm(shape.head_dim)}
        out |= {f"layers.{i}.{name}.weight": value for name, value in layer.items()}
    if config.kind == "kangaroo":
        out = {name: value for name, value in out.items() if "mlp." not in name and "post_" not in name}
        del out["fc.weight"]
    if config.kind == "eagle3":
        out["layers.0.hidden_norm.weight"] = norm(shape.hidden)
    if config.kind == "eagle":
        del out["layers.0.input_layernorm.weight"], out["norm.weight"]
        out["fc.bias"] = norm(shape.hidden)
    if config.kind == "block":
        out["hidden_norm.weight"] = norm(shape.hidden)
    if config.markov:
        rank = config.markov_rank
        out["markov_head.markov_w1.weight"] = matrix(config.target.vocab, rank)
        out["markov_head.markov_w2.weight"] = 3.0 * matrix(config.draft_vocab, rank)
        inner = {
            "gated": ("gate_proj", rank, shape.hidden + rank),
            "rnn": ("joint_proj", 3 * rank, shape.hidden + 2 * rank),
        }
        if config.markov in inner:
            name, rows, columns = inner[config.markov]
            out[f"markov_head.{name}.weight"], out[f"markov_head.{name}.bias"] = (
                matrix(rows, columns),
                norm(rows),
            )
    return out


def tiny_files(
    kind: str, target: ToyTarget, *, seed: int = 0, draft_ids: list[int] | None = None, **settings: Any
) -> HeadFiles:
    """Return a head's files. draft_ids: the tokens that it drafts, ascending; None for all."""
    config = tiny_config(kind, target, len(draft_ids or range(target.vocab.size)), **settings)
    weights = tiny_weights(config, seed)
    if draft_ids is not None:
        weights["d2t"] = np.array(draft_ids) - np.arange(len(draft_ids))
    return HeadFiles(Path(f"a-{kind}-head"), config, weights, None)


def write_tiny_head(folder: Path, kind: str, target: Any, **settings: Any) -> Path:
    """Write a head with random weights, as training does."""
    n = target.vocab.size
    config = tiny_config(kind, target, n, **settings)
    sample = target.token_embeddings(sample_tokens(n))
    write_head(folder, config, tiny_weights(config), np.arange(n), sample, {"kind": kind})
    return folder


def tiny_head(kind: str, target: ToyTarget, **settings: Any) -> HeadTarget:
    make = ExitTarget if kind in EXIT_KINDS else HeadTarget
    return make(tiny_files(kind, target, **settings), target)


def tiny_parallel_draft(n_vocab: int = 6) -> ParallelDraft:
    return ParallelDraft(Path("pard"), ToyTarget(n_vocab, seed=1, noise=0.3), mask_token=0, depth=4)


def tiny_drafter(
    kind: str, target: ToyTarget, temperature: float = 0.0, top_k: int = 10, **settings: Any
) -> Any:
    if kind == "pard":
        draft = tiny_parallel_draft(target.vocab.size)
        return DraftVocabDrafter(draft, temperature=temperature, top_k=top_k)
    head = tiny_head(kind, target, **settings)
    if kind == "exits":
        return DraftVocabDrafter(head, temperature=temperature, top_k=top_k)
    return HeadDrafter(head, temperature=temperature, top_k=top_k)
