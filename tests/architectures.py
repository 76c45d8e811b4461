"""Tiny random models of other architectures than Llama, each with an attention or products of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from gguf_files import add_bytes, byte_vocabulary, finish

WIDTH, HEADS, LAYERS = 64, 4, 2
HEAD = WIDTH // HEADS
WINDOW = 12  # tokens, in every other layer of the models that have one

Shapes = Mapping[str, Sequence[int]]
Keys = Mapping[str, int | float]


def write_gemma2(path: Path) -> Path:
    """Scores that are capped, a window, and embeddings that are the output, too."""
    keys = {
        "feed_forward_length": 2 * WIDTH,
        "attention.head_count_kv": 2,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": WINDOW,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 30.0,
    }
    layer = {
        "attn_norm.weight": [WIDTH],
        "post_attention_norm.weight": [WIDTH],
        "ffn_norm.weight": [WIDTH],
        "post_ffw_norm.weight": [WIDTH],
        **_projections(2 * HEAD),
        "ffn_gate.weight": [2 * WIDTH, WIDTH],
        "ffn_up.weight": [2 * WIDTH, WIDTH],
        "ffn_down.weight": [WIDTH, 2 * WIDTH],
    }
    return _write(path, "gemma2", keys, {"output_norm.weight": [WIDTH]}, layer)


def write_qwen2(path: Path) -> Path:
    """Projections with biases, and embeddings that are the output, too."""
    keys = {
        "feed_forward_length": 2 * WIDTH,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 10000.0,
    }
    layer = {
        "attn_norm.weight": [WIDTH],
        "ffn_norm.weight": [WIDTH],
        **_projections(2 * HEAD),
        "attn_q.bias": [WIDTH],
        "attn_k.bias": [2 * HEAD],
        "attn_v.bias": [2 * HEAD],
        "ffn_gate.weight": [2 * WIDTH, WIDTH],
        "ffn_up.weight": [2 * WIDTH, WIDTH],
        "ffn_down.weight": [WIDTH, 2 * WIDTH],
    }
    return _write(path, "qwen2", keys, {"output_norm.weight": [WIDTH]}, layer)


def write_gpt_oss(path: Path) -> Path:
    """Sinks, a window, and experts with biases, two for each token."""
    experts = 4
    keys = {
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": WINDOW,
        "expert_count": experts,
        "expert_used_count": 2,
        "feed_forward_length": 2 * WIDTH,
        "expert_feed_forward_length": 2 * WIDTH,
    }
    layer: dict[str, Sequence[int]] = {
        "attn_norm.weight": [WIDTH],
        "post_attention_norm.weight": [WIDTH],
        **_projections(2 * HEAD),
        "attn_q.bias": [WIDTH],
        "attn_k.bias": [2 * HEAD],
        "attn_v.bias": [2 * HEAD],
        "attn_output.bias": [WIDTH],
        "attn_sinks.weight": [HEADS],
        "ffn_gate_inp.weight": [experts, WIDTH],
        "ffn_gate_inp.bias": [experts],
    }
    for name, rows, columns in (
        ("gate", 2 * WIDTH, WIDTH),
        ("up", 2 * WIDTH, WIDTH),
        ("down", WIDTH, 2 * WIDTH),
    ):
        layer[f"ffn_{name}_exps.weight"] = [experts, rows, columns]
        layer[f"ffn_{name}_exps.bias"] = [experts, rows]
    return _write(path, "gpt-oss", keys, _separate_output(), layer)


def write_bloom(path: Path) -> Path:
    """ALiBi, and as many heads of keys as of queries."""
    keys = {"attention.layer_norm_epsilon": 1e-5, "feed_forward_length": 4 * WIDTH}
    layer: dict[str, Sequence[int]] = {
        "attn_norm.weight": [WIDTH],
        "attn_norm.bias": [WIDTH],
        "attn_qkv.weight": [3 * WIDTH, WIDTH],
        "attn_qkv.bias": [3 * WIDTH],
        "attn_output.weight": [WIDTH, WIDTH],
        "attn_output.bias": [WIDTH],
        "ffn_norm.weight": [WIDTH],
        "ffn_norm.bias": [WIDTH],
        "ffn_up.weight": [4 * WIDTH, WIDTH],
        "ffn_up.bias": [4 * WIDTH],
        "ffn_down.weight": [WIDTH, 4 * WIDTH],
        "ffn_down.bias": [WIDTH],
    }
    norms = {name: [WIDTH] for name in ("token_embd_norm.weight", "token_embd_norm.bias", "output_norm.bias")}
    return _write(path, "bloom", keys, {**_separate_output(), **norms}, layer)


def _projections(kv_width: int) -> dict[str, Sequence[int]]:
    return {
        "attn_q.weight": [WIDTH, WIDTH],
        "attn_k.weight": [kv_width, WIDTH],
        "attn_v.weight": [kv_width, WIDTH],
        "attn_output.weight": [WIDTH, WIDTH],
    }


def _separate_output() -> dict[str, Sequence[int]]:
    return {"output_norm.weight": [WIDTH], "output.weight": [len(byte_vocabulary()), WIDTH]}


def _write(path: Path, arch: str, keys: Keys, rest: Shapes, layer: Shapes) -> Path:
    """rest: tensors beside the embeddings and the layers' own."""
    tokens = byte_vocabulary()
    random = np.random.default_rng(0)
    writer = GGUFWriter(path, arch)
    writer.add_name("random")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_vocab_size(len(tokens))
    for key, value in keys.items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(f"{arch}.{key}", value)
    add_bytes(writer, tokens)
    shapes = {"token_embd.weight": [len(tokens), WIDTH], **rest}
    shapes |= {f"blk.{i}.{name}": shape for i in range(LAYERS) for name, shape in layer.items()}
    for name, shape in shapes.items():
        if name.endswith("norm.weight"):
            values = np.ones(shape)
        else:
            values = random.normal(size=shape, scale=0.5)
        writer.add_tensor(name, values.astype(np.float32))
    finish(writer)
    return path
