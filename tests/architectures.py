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
Keys = dict[str, int | float]


MLP: Shapes = {
    "ffn_gate.weight": [2 * WIDTH, WIDTH], "ffn_up.weight": [2 * WIDTH, WIDTH],
    "ffn_down.weight": [WIDTH, 2 * WIDTH],
}  # fmt: skip
ATTENTION: Shapes = {
    "attn_norm.weight": [WIDTH], "attn_q.weight": [WIDTH, WIDTH], "attn_k.weight": [2 * HEAD, WIDTH],
    "attn_v.weight": [2 * HEAD, WIDTH], "attn_output.weight": [WIDTH, WIDTH],
}  # fmt: skip
BIASES: Shapes = {"attn_q.bias": [WIDTH], "attn_k.bias": [2 * HEAD], "attn_v.bias": [2 * HEAD]}
TIED: Shapes = {"output_norm.weight": [WIDTH]}  # the embeddings are the output, too
SEPARATE: Shapes = {**TIED, "output.weight": [len(byte_vocabulary()), WIDTH]}
GROUPED: Keys = {"feed_forward_length": 2 * WIDTH, "attention.head_count_kv": 2}


def write_gemma2(path: Path) -> Path:
    """Scores that are capped, and a window."""
    keys = GROUPED | {
        "attention.key_length": HEAD, "attention.value_length": HEAD, "attention.sliding_window": WINDOW,
        "attention.layer_norm_rms_epsilon": 1e-5, "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 30.0,
    }  # fmt: skip
    norms = ("post_attention_norm.weight", "ffn_norm.weight", "post_ffw_norm.weight")
    return _write(path, "gemma2", keys, TIED, {**ATTENTION, **{name: [WIDTH] for name in norms}, **MLP})


def write_qwen2(path: Path) -> Path:
    """Projections with biases."""
    keys = GROUPED | {"attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 10000.0}
    return _write(path, "qwen2", keys, TIED, {**ATTENTION, **BIASES, "ffn_norm.weight": [WIDTH], **MLP})


def write_gpt_oss(path: Path) -> Path:
    """Sinks, a window, and experts with biases, two for each token."""
    experts = 4
    keys = GROUPED | {
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.sliding_window": WINDOW, "expert_count": experts,
        "expert_used_count": 2, "expert_feed_forward_length": 2 * WIDTH,
    }  # fmt: skip
    layer = {
        **ATTENTION, **BIASES, "post_attention_norm.weight": [WIDTH], "attn_output.bias": [WIDTH],
        "attn_sinks.weight": [HEADS], "ffn_gate_inp.weight": [experts, WIDTH], "ffn_gate_inp.bias": [experts],
    }  # fmt: skip
    for name, shape in MLP.items():
        part = name.removesuffix(".weight")
        layer |= {f"{part}_exps.weight": [experts, *shape], f"{part}_exps.bias": [experts, shape[0]]}
    return _write(path, "gpt-oss", keys, SEPARATE, layer)


def write_bloom(path: Path) -> Path:
    """ALiBi, and as many heads of keys as of queries."""
    keys = {"attention.layer_norm_epsilon": 1e-5, "feed_forward_length": 4 * WIDTH}
    matrices = {
        "attn_qkv": [3 * WIDTH, WIDTH], "attn_output": [WIDTH, WIDTH], "ffn_up": [4 * WIDTH, WIDTH],
        "ffn_down": [WIDTH, 4 * WIDTH],
    }  # fmt: skip
    layer: dict[str, Sequence[int]] = {}
    for name, shape in {"attn_norm": [WIDTH], "ffn_norm": [WIDTH], **matrices}.items():
        layer |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    norms = {name: [WIDTH] for name in ("token_embd_norm.weight", "token_embd_norm.bias", "output_norm.bias")}
    return _write(path, "bloom", keys, {**SEPARATE, **norms}, layer)


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
