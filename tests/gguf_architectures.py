"""Tiny random GGUF models with recurrent layers or experts, of the shapes that llama.cpp's graphs ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from gguf_files import add_bytes, byte_vocabulary, finish

WIDTH, HEADS, KV_HEADS, HEAD = 64, 4, 2, 16
INNER, STATE, GROUPS, RANK, KERNEL = 2 * WIDTH, 16, 2, 4, 4
FEED, EXPERTS = 128, 4
Shapes = Mapping[str, tuple[int, ...]]  # of tensors, as numpy has them: [outputs, inputs]

MLP: Shapes = {
    "ffn_gate.weight": (FEED, WIDTH), "ffn_up.weight": (FEED, WIDTH), "ffn_down.weight": (WIDTH, FEED),
}  # fmt: skip
FEED_FORWARD: Shapes = {"ffn_norm.weight": (WIDTH,), **MLP}
ATTENTION: Shapes = {
    "attn_norm.weight": (WIDTH,), "attn_q.weight": (HEADS * HEAD, WIDTH),
    "attn_k.weight": (KV_HEADS * HEAD, WIDTH), "attn_v.weight": (KV_HEADS * HEAD, WIDTH),
    "attn_output.weight": (WIDTH, HEADS * HEAD),
}  # fmt: skip
QK_NORMS: Shapes = {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}
MAMBA: Shapes = {
    "attn_norm.weight": (WIDTH,), "ssm_in.weight": (2 * INNER, WIDTH), "ssm_conv1d.weight": (INNER, KERNEL),
    "ssm_conv1d.bias": (INNER,), "ssm_x.weight": (RANK + 2 * STATE, INNER), "ssm_dt.weight": (INNER, RANK),
    "ssm_dt.bias": (INNER,), "ssm_a": (INNER, STATE), "ssm_d": (INNER,), "ssm_out.weight": (WIDTH, INNER),
}  # fmt: skip
JAMBA: Shapes = {
    **MAMBA, "ssm_dt_norm.weight": (RANK,), "ssm_b_norm.weight": (STATE,), "ssm_c_norm.weight": (STATE,),
}  # fmt: skip
CONV = INNER + 2 * GROUPS * STATE
MAMBA2: Shapes = {
    "attn_norm.weight": (WIDTH,), "ssm_in.weight": (INNER + CONV + RANK, WIDTH),
    "ssm_conv1d.weight": (CONV, KERNEL), "ssm_conv1d.bias": (CONV,), "ssm_dt.bias": (RANK,),
    "ssm_a": (RANK, 1), "ssm_d": (RANK, 1), "ssm_norm.weight": (GROUPS, INNER // GROUPS),
    "ssm_out.weight": (WIDTH, INNER),
}  # fmt: skip
SHORT_CONV: Shapes = {
    "attn_norm.weight": (WIDTH,), "shortconv.conv.weight": (WIDTH, KERNEL),
    "shortconv.in_proj.weight": (3 * WIDTH, WIDTH), "shortconv.out_proj.weight": (WIDTH, WIDTH),
}  # fmt: skip
KEYS, VALUES = GROUPS * STATE, RANK * STATE
DELTA_NET: Shapes = {
    "attn_norm.weight": (WIDTH,), "attn_qkv.weight": (2 * KEYS + VALUES, WIDTH),
    "attn_gate.weight": (VALUES, WIDTH), "ssm_conv1d.weight": (2 * KEYS + VALUES, KERNEL),
    "ssm_dt.bias": (RANK,), "ssm_a": (RANK,), "ssm_norm.weight": (STATE,), "ssm_out.weight": (WIDTH, VALUES),
}  # fmt: skip
GATED_ATTENTION: Shapes = {**ATTENTION, **QK_NORMS, "attn_q.weight": (2 * HEADS * HEAD, WIDTH)}
POST_NORM: Shapes = {"post_attention_norm.weight": (WIDTH,)}
NEXT_TOKEN_HEAD: Shapes = {
    "nextn.eh_proj.weight": (WIDTH, 2 * WIDTH), "nextn.enorm.weight": (WIDTH,),
    "nextn.hnorm.weight": (WIDTH,), "nextn.shared_head_norm.weight": (WIDTH,),
}  # fmt: skip
EXPERTS_ONLY: Shapes = {
    "ffn_gate_inp.weight": (EXPERTS, WIDTH), "ffn_gate_exps.weight": (EXPERTS, FEED, WIDTH),
    "ffn_up_exps.weight": (EXPERTS, FEED, WIDTH), "ffn_down_exps.weight": (EXPERTS, WIDTH, FEED),
}  # fmt: skip
MIXTURE: Shapes = {
    **EXPERTS_ONLY, "ffn_gate_inp_shexp.weight": (WIDTH,), "ffn_gate_shexp.weight": (FEED, WIDTH),
    "ffn_up_shexp.weight": (FEED, WIDTH), "ffn_down_shexp.weight": (WIDTH, FEED),
}  # fmt: skip
RELU_MLP: Shapes = {
    "attn_norm.weight": (WIDTH,), "ffn_up.weight": (FEED, WIDTH), "ffn_down.weight": (WIDTH, FEED),
}  # fmt: skip
GATES: Shapes = {"ssm_alpha.weight": (RANK, WIDTH), "ssm_beta.weight": (RANK, WIDTH)}
LORA = 8
RWKV7: Shapes = {
    **{f"attn_norm{of}.{part}": (WIDTH,) for of in ("", "_2") for part in ("weight", "bias")},
    **{f"time_mix_{name}.weight": (WIDTH,) for name in ("w0", "a0", "v0", "k_k", "k_a", "r_k", "ln")},
    **{f"time_mix_{name}1.weight": (LORA, WIDTH) for name in "wavg"},
    **{f"time_mix_{name}2.weight": (WIDTH, LORA) for name in "wavg"},
    **{f"time_mix_{name}.weight": (WIDTH, WIDTH) for name in ("key", "value", "receptance", "output")},
    "time_mix_ln.bias": (WIDTH,), "time_mix_lerp_fused.weight": (6, 1, 1, WIDTH),
    "channel_mix_lerp_k.weight": (1, 1, WIDTH), "channel_mix_key.weight": (FEED, WIDTH),
    "channel_mix_value.weight": (WIDTH, FEED),
}  # fmt: skip

SSM = {
    "ssm.conv_kernel": KERNEL, "ssm.inner_size": INNER, "ssm.state_size": STATE, "ssm.time_step_rank": RANK,
    "ssm.group_count": GROUPS,
}  # fmt: skip
DELTA_SSM = {**SSM, "ssm.inner_size": VALUES, "full_attention_interval": 2}
# Architecture: its layers, and its keys. A list has a number for each layer.
ARCHITECTURES: Mapping[str, tuple[tuple[Shapes, ...], Mapping[str, int | list[int]]]] = {
    "mamba": ((MAMBA, MAMBA), {**SSM, "attention.head_count": 0}),
    "mamba2": ((MAMBA2, MAMBA2), {**SSM, "attention.head_count": 0}),
    "jamba": (
        ({**JAMBA, **FEED_FORWARD}, {**ATTENTION, **FEED_FORWARD}),
        {**SSM, "attention.head_count_kv": [0, KV_HEADS]},
    ),
    "granitehybrid": (
        ({**MAMBA2, **FEED_FORWARD}, {**ATTENTION, **FEED_FORWARD}),
        {**SSM, "attention.head_count_kv": [0, KV_HEADS]},
    ),
    "falcon-h1": (({**MAMBA2, **ATTENTION, "ffn_norm": (WIDTH,), **MLP},) * 2, SSM),
    "lfm2": (
        ({**SHORT_CONV, **FEED_FORWARD}, {**ATTENTION, **QK_NORMS, **FEED_FORWARD}),
        {"shortconv.l_cache": KERNEL, "attention.head_count_kv": [0, KV_HEADS]},
    ),
    "nemotron_h": (
        (MAMBA2, ATTENTION, RELU_MLP),
        {**SSM, "attention.head_count_kv": [0, KV_HEADS, 0], "feed_forward_length": [0, 0, FEED]},
    ),
    "qwen3next": (
        (
            {**DELTA_NET, "ssm_ba.weight": (2 * RANK, WIDTH), **POST_NORM, **MIXTURE},
            {**GATED_ATTENTION, **POST_NORM, **MIXTURE},
        ),
        {**DELTA_SSM, "expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": FEED},
    ),
    "qwen35": (
        (
            {**DELTA_NET, **GATES, **POST_NORM, **MLP},
            {**GATED_ATTENTION, **POST_NORM, **MLP},
        ),
        {**DELTA_SSM, "rope.dimension_sections": [8, 4, 4, 0]},
    ),
    "qwen3moe": (
        ({**ATTENTION, **QK_NORMS, "ffn_norm.weight": (WIDTH,), **EXPERTS_ONLY},) * 2,
        {"expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": FEED},
    ),
    "rwkv7": (
        (RWKV7, RWKV7),
        {
            "attention.head_count": 0, "wkv.head_size": WIDTH, "token_shift_count": 2,
            **{f"attention.{of}_lora_rank": LORA for of in ("decay", "iclr", "value_residual_mix", "gate")},
        },
    ),
}  # fmt: skip


RECURRENT = tuple(arch for arch in ARCHITECTURES if arch != "qwen3moe")


def write_architecture(
    path: Path, arch: str, *, seed: int = 0, next_token_heads: int = 0, quiet: bool = False
) -> Path:
    """A model with the vocabulary of `write_llama`'s.
    quiet: its blocks add little to the embeddings, so that its next-token heads are often right."""
    layers, keys = ARCHITECTURES[arch]
    if next_token_heads:
        layers += ({**layers[-1], **NEXT_TOKEN_HEAD},) * next_token_heads
        keys = {**keys, "nextn_predict_layers": next_token_heads}
    tokens, random = byte_vocabulary(), np.random.default_rng(seed)
    writer = GGUFWriter(path, arch)
    writer.add_name("random")
    numbers: dict[str, int | list[int]] = {
        "context_length": 4096, "embedding_length": WIDTH, "block_count": len(layers),
        "feed_forward_length": FEED, "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD, "attention.value_length": HEAD, "rope.dimension_count": HEAD,
        **keys,
    }  # fmt: skip
    if numbers["attention.head_count"] == 0:
        for key in ("head_count_kv", "key_length", "value_length"):
            del numbers[f"attention.{key}"]
        del numbers["rope.dimension_count"]
    for key, number in numbers.items():
        add: Callable[..., object] = writer.add_array if isinstance(number, list) else writer.add_uint32
        add(f"{arch}.{key}", number)
    for name in ("layer_norm_rms_epsilon", "layer_norm_epsilon"):
        writer.add_float32(f"{arch}.attention.{name}", 1e-5)
    add_bytes(writer, tokens)

    def add_tensor(name: str, shape: tuple[int, ...]) -> None:
        if name.endswith("ssm_a"):
            values = -random.uniform(0.05, 1.0, shape)
        elif len(shape) == 1 or "norm" in name or name.endswith("ssm_d"):
            values = random.normal(1.0, 0.1, shape) if "bias" not in name else random.normal(0.0, 0.3, shape)
        else:
            values = random.normal(0.0, 0.3, shape)
        if quiet and name.endswith(("attn_output.weight", "ffn_down.weight", "ssm_out.weight")):
            values *= 0.01
        if quiet and name.endswith("eh_proj.weight"):
            values = np.concatenate([np.eye(WIDTH), np.zeros((WIDTH, WIDTH))], 1)
        writer.add_tensor(name, values.astype(np.float32))

    add_tensor("token_embd.weight", (len(tokens), WIDTH))
    add_tensor("token_embd_norm.weight" if arch == "lfm2" else "output_norm.weight", (WIDTH,))
    if arch == "rwkv7":
        add_tensor("output_norm.bias", (WIDTH,))
        for part in ("weight", "bias"):
            add_tensor(f"token_embd_norm.{part}", (WIDTH,))
    add_tensor("output.weight", (len(tokens), WIDTH))
    for i, layer in enumerate(layers):
        for name, shape in layer.items():
            add_tensor(f"blk.{i}.{name}", shape)
    finish(writer)
    return path
