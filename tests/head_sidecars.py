"""Draft heads as GGUF files, written as llama.cpp's converter does (conversion/llama.py and qwen.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from gguf_files import add_bytes, byte_vocabulary, finish
from head_layouts import HeadReference
from paceline.heads.config import HeadConfig, TargetFacts, read_config
from paceline.heads.decoder import LayerShape
from paceline.heads.files import renamed
from tiny_heads import tiny_weights

F32 = GGMLQuantizationType.F32
WIDTH, VOCAB, DRAFTED = 64, 258, 100  # of random heads
EAGLE3_HEADS = (
    *("eagle3", "eagle3_full_vocabulary", "eagle3_head_dim", "eagle3_norm_before_fc"),
    *("eagle3_norm_before_residual", "eagle3_safeailab", "eagle3_safeailab_head_dim"),
    "eagle3_safeailab_wide_target",
)
# Not those that are causal in their layers with a window only: a file is causal in all layers or in none.
BLOCK_HEADS = (
    *("dflash", "dflash_full_vocabulary", "dflash_sliding_non_causal", "dflash_small_blocks"),
    *("dspark", "dspark_no_markov"),
)
TENSORS = {
    "fc.weight": "fc.weight", "norm.weight": "output_norm.weight", "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight", "input_norm.weight": "enc.output_norm.weight",
    "hidden_norm.weight": "enc.output_norm.weight", "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight", "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias",
}  # fmt: skip
LAYER_TENSORS = {
    "input_layernorm": "attn_norm", "hidden_norm": "attn_norm_2", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def random_head(
    kind: str, *, drafts_all: bool = True, lends: bool = False, **settings: Any
) -> tuple[HeadConfig, dict[str, Any]]:
    """Return a head with random weights. drafts_all: the whole vocabulary. lends: embeddings, and the output
    matrix of a whole vocabulary, are the target's."""
    rng = np.random.default_rng(3)
    shape = LayerShape(WIDTH, 4, 2, 24, 96, **settings.pop("layer", {}))
    block = {"n_layers": 2, "depth": 4, "mask_token": 7} if kind == "block" else {}
    config = HeadConfig(
        kind=kind,
        target=TargetFacts("", "", 0, WIDTH, VOCAB),
        shape=shape,
        draft_vocab=VOCAB if drafts_all else DRAFTED,
        layer_ids=(0, 1, 2),
        **block | settings,
    )
    weights = tiny_weights(config)
    if not drafts_all:
        weights["d2t"] = np.sort(rng.permutation(VOCAB)[:DRAFTED]) - np.arange(DRAFTED)
    elif lends:
        del weights["lm_head.weight"]
    if not lends:
        weights["embed_tokens.weight"] = rng.normal(size=(VOCAB, WIDTH)).astype(np.float32)
    if config.norm_before_fc:
        weights["input_norm.weight"] = rng.uniform(0.5, 1.5, 3 * WIDTH).astype(np.float32)
    return config, weights


def write_reference(
    path: Path, reference: HeadReference, kind: GGMLQuantizationType = F32, **fields: Any
) -> Path:
    """Write the file of a published head."""
    config = read_config(reference.config)
    assert config is not None
    weights = {renamed(name, config): value for name, value in reference.weights.items()}
    return write_sidecar(path, config.resolved(6), weights, kind, **fields)


def write_sidecar(
    path: Path,
    config: HeadConfig,
    weights: dict[str, Any],
    kind: GGMLQuantizationType = F32,
    **fields: Any,
) -> Path:
    """Write a head's file. weights: under the names of heads' folders, with `d2t` as offsets.
    fields: further values, with __ for a dot."""
    arch, shape = "eagle3" if config.kind == "eagle3" else "dflash", config.shape
    writer = GGUFWriter(path, arch)
    writer.add_name("Random Head")
    tokens = byte_vocabulary()
    if config.target.vocab == len(tokens):
        add_bytes(writer, tokens)
    else:
        writer.add_token_list([f"t{i}" for i in range(config.target.vocab)])
    values: dict[str, Any] = {
        "context_length": 512,
        "embedding_length": shape.hidden,
        "block_count": config.n_layers,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": float(shape.eps),
        "rope.freq_base": float(shape.rope_theta),
        "target_layers": list(config.layer_ids),
    }
    if arch == "eagle3":
        values |= {
            "rope.dimension_count": shape.head_dim,
            "target_hidden_size": config.target.hidden,
            "norm_before_residual": config.norm_before_residual,
            "norm_before_fc": config.norm_before_fc,
        }
    else:
        writer.add_mask_token_id(config.mask_token)
        values |= {
            "block_size": config.depth + (not config.from_root),
            "sample_from_anchor": config.from_root,
            "attention.causal": True if config.causal_windows else None,
        }
        if config.windows:
            values["attention.sliding_window"] = max(config.windows)
            values["attention.sliding_window_pattern"] = [window > 0 for window in config.windows]
    for key, value in (values | {key.replace("__", "."): value for key, value in fields.items()}).items():
        if value is not None:
            add: Any = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
                        str: writer.add_string, list: writer.add_array}[type(value)]  # fmt: skip
            add(f"{arch}.{key}", value)
    for name, value in weights.items():
        if name == "d2t":
            writer.add_tensor("d2t", value.astype(np.int64) + np.arange(len(value)))
        elif name != "t2d":
            add_weight(writer, arch, config, name, value, kind)
    finish(writer)
    return path


def add_weight(
    writer: GGUFWriter, arch: str, config: HeadConfig, name: str, value: Any, kind: GGMLQuantizationType
) -> None:
    value = np.asarray(value, np.float32)
    if arch == "eagle3" and name.endswith(("q_proj.weight", "k_proj.weight")):  # LlamaModel.permute
        heads = config.shape.heads if "q_proj" in name else config.shape.kv_heads
        halves = value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:])
        value = halves.swapaxes(1, 2).reshape(value.shape)
    theirs = TENSORS.get(name, name)
    if name.startswith("layers."):
        _, number, rest = name.split(".", 2)
        theirs = f"blk.{number}.{LAYER_TENSORS[rest.removesuffix('.weight')]}.weight"
    kind = kind if value.ndim > 1 else F32
    writer.add_tensor(theirs, gguf.quants.quantize(np.ascontiguousarray(value), kind), raw_dtype=kind)
