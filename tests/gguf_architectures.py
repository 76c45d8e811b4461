"""Tiny random GGUF models with recurrent layers, experts or layers that predict further tokens (MTP), of the
shapes that llama.cpp's graphs ask for."""

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
BIASED: Shapes = {"exp_probs_b.bias": (EXPERTS,)}
SHARED: Shapes = {
    "ffn_gate_shexp.weight": (FEED, WIDTH), "ffn_up_shexp.weight": (FEED, WIDTH),
    "ffn_down_shexp.weight": (WIDTH, FEED),
}  # fmt: skip
EXPERTS_WITHOUT_GATE: Shapes = {
    name: shape for name, shape in {**EXPERTS_ONLY, **BIASED, **SHARED}.items() if "ffn_gate_" not in name
} | {"ffn_gate_inp.weight": (EXPERTS, WIDTH)}
RELU_MLP: Shapes = {
    "attn_norm.weight": (WIDTH,), "ffn_up.weight": (FEED, WIDTH), "ffn_down.weight": (WIDTH, FEED),
}  # fmt: skip
LORA = 8
GATES: Shapes = {"ssm_alpha.weight": (RANK, WIDTH), "ssm_beta.weight": (RANK, WIDTH)}
MOE: Shapes = {**EXPERTS_ONLY, **BIASED, **SHARED}
LATENT, ROPE = 32, 8
MLA: Shapes = {
    "attn_norm.weight": (WIDTH,), "attn_q_a.weight": (LATENT, WIDTH), "attn_q_a_norm.weight": (LATENT,),
    "attn_q_b.weight": (HEADS * HEAD, LATENT), "attn_kv_a_mqa.weight": (LATENT + ROPE, WIDTH),
    "attn_kv_a_norm.weight": (LATENT,), "attn_k_b.weight": (HEADS, LATENT, HEAD - ROPE),
    "attn_v_b.weight": (HEADS, HEAD, LATENT), "attn_output.weight": (WIDTH, HEADS * HEAD),
    "ffn_norm.weight": (WIDTH,),
}  # fmt: skip
INDEX_HEADS, INDEX = 2, 64
INDEXER: Shapes = {
    "indexer.k_norm.weight": (INDEX,), "indexer.k_norm.bias": (INDEX,),
    "indexer.proj.weight": (INDEX_HEADS, WIDTH), "indexer.attn_k.weight": (INDEX, WIDTH),
    "indexer.attn_q_b.weight": (INDEX_HEADS * INDEX, LATENT),
}  # fmt: skip
DSA: Shapes = {**MLA, **INDEXER, **MOE}
KDA: Shapes = {
    **{f"ssm_conv1d_{of}.weight": (WIDTH, 1, KERNEL) for of in "qkv"},
    **{f"{name}.weight": (WIDTH, WIDTH) for name in ("attn_q", "attn_k", "attn_v", "ssm_f_a", "ssm_g_a")},
    "attn_norm.weight": (WIDTH,), "ssm_beta.weight": (HEADS, WIDTH), "ssm_a": (HEADS, 1),
    "ssm_dt.bias": (WIDTH,), "ssm_norm.weight": (HEAD,), "attn_output.weight": (WIDTH, WIDTH),
    "ffn_norm.weight": (WIDTH,),
}  # fmt: skip


def _compressor(of: str, ratio: int, parts: int, width: int) -> Shapes:
    out = parts * width
    shapes = {"kv": (out, WIDTH), "gate": (out, WIDTH), "ape": (ratio, out), "norm": (width,)}
    return {f"{of}_compressor_{part}.weight": shape for part, shape in shapes.items()}


STREAMS, LONG = 4, 128  # a head's size
MIXES = (2 + STREAMS) * STREAMS
HYPER: Shapes = {
    f"hc_{of}_{part}.weight": shape
    for of in ("attn", "ffn")
    for part, shape in (("fn", (MIXES, STREAMS * WIDTH)), ("base", (MIXES,)), ("scale", (3,)))
}
HYPER_OUTPUT: Shapes = {
    "output_hc_fn.weight": (STREAMS, STREAMS * WIDTH), "output_hc_base.weight": (STREAMS,),
    "output_hc_scale.weight": (1,),
}  # fmt: skip
V4: Shapes = {
    **HYPER, **MOE, "attn_norm.weight": (WIDTH,), "attn_sinks.weight": (HEADS,), "ffn_norm.weight": (WIDTH,),
    "attn_q_a.weight": (LATENT, WIDTH), "attn_q_a_norm.weight": (LATENT,),
    "attn_q_b.weight": (HEADS * LONG, LATENT), "attn_kv.weight": (LONG, WIDTH),
    "attn_kv_a_norm.weight": (LONG,), "attn_output_a.weight": (GROUPS, LORA, HEADS * LONG // GROUPS),
    "attn_output_b.weight": (WIDTH, GROUPS * LORA),
}  # fmt: skip
COMPRESSED_BY_4: Shapes = {
    **_compressor("attn", 4, 2, LONG), **_compressor("indexer", 4, 2, INDEX),
    "indexer.proj.weight": (INDEX_HEADS, WIDTH), "indexer.attn_q_b.weight": (INDEX_HEADS * INDEX, LATENT),
}  # fmt: skip
FUSED: Shapes = {
    "attn_norm.weight": (WIDTH,), "attn_qkv.weight": ((HEADS + 2 * KV_HEADS) * HEAD, WIDTH),
    "attn_output.weight": (WIDTH, HEADS * HEAD), **FEED_FORWARD,
}  # fmt: skip
GATED_HEADS: Shapes = {
    **ATTENTION,
    **QK_NORMS,
    "attn_gate.weight": (HEADS, WIDTH),
    "ffn_norm.weight": (WIDTH,),
}
WIDE = 32  # a head's size
GEMMA: Shapes = {
    "attn_norm.weight": (WIDTH,), "attn_q.weight": (HEADS * WIDE, WIDTH), "attn_q_norm.weight": (WIDE,),
    "attn_output.weight": (WIDTH, HEADS * WIDE), **POST_NORM, **FEED_FORWARD,
    "post_ffw_norm.weight": (WIDTH,), "layer_output_scale.weight": (1,),
}  # fmt: skip
GEMMA_KEYS: Shapes = {
    "attn_k.weight": (KV_HEADS * WIDE, WIDTH), "attn_v.weight": (KV_HEADS * WIDE, WIDTH),
    "attn_k_norm.weight": (WIDE,),
}  # fmt: skip
ASSISTANT_WIDTH = 32
ASSISTANT: Shapes = {
    name: tuple(ASSISTANT_WIDTH if n == WIDTH else n for n in shape) for name, shape in GEMMA.items()
}
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
Number = float | bool | list[int]
MIXED: Mapping[str, Number] = {
    "expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": FEED,
}  # fmt: skip
SHARING: Mapping[str, Number] = {
    **MIXED, "expert_shared_count": 1, "expert_shared_feed_forward_length": FEED, "expert_gating_func": 2,
}  # fmt: skip
LATENTS: Mapping[str, Number] = {
    **SHARING, "attention.q_lora_rank": LATENT, "attention.kv_lora_rank": LATENT,
    "attention.head_count_kv": 1, "attention.key_length": LATENT + ROPE, "attention.value_length": LATENT,
    "attention.key_length_mla": HEAD, "attention.value_length_mla": HEAD, "rope.dimension_count": ROPE,
}  # fmt: skip
INDEXES: Mapping[str, Number] = {
    "attention.indexer.head_count": INDEX_HEADS, "attention.indexer.key_length": INDEX,
    "attention.indexer.top_k": 512,
}  # fmt: skip
WINDOWED: Mapping[str, Number] = {
    "attention.sliding_window": 4, "attention.sliding_window_pattern": [0, 1],
}  # fmt: skip
GEMMA_HEADS: Mapping[str, Number] = {
    "attention.sliding_window": 4, "attention.sliding_window_pattern": [1, 0],
    **{f"attention.{of}_length{swa}": WIDE for of in ("key", "value") for swa in ("", "_swa")},
    "rope.dimension_count": WIDE, "rope.dimension_count_swa": WIDE, "embedding_length_per_layer_input": 0,
}  # fmt: skip
# Architecture: its layers, and its keys. A list has a number for each layer; those that predict further
# tokens have the last one.
ARCHITECTURES: Mapping[str, tuple[tuple[Shapes, ...], Mapping[str, Number]]] = {
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
        {**DELTA_SSM, **MIXED},
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
        MIXED,
    ),
    "rwkv7": (
        (RWKV7, RWKV7),
        {
            "attention.head_count": 0, "wkv.head_size": WIDTH, "token_shift_count": 2,
            **{f"attention.{of}_lora_rank": LORA for of in ("decay", "iclr", "value_residual_mix", "gate")},
        },
    ),
    "qwen35moe": (
        ({**DELTA_NET, **GATES, **POST_NORM, **MIXTURE}, {**GATED_ATTENTION, **POST_NORM, **MIXTURE}),
        {**DELTA_SSM, **MIXED, "rope.dimension_sections": [8, 4, 4, 0]},
    ),
    "nemotron_h_moe": (
        (MAMBA2, {"attn_norm.weight": (WIDTH,), **EXPERTS_WITHOUT_GATE}, ATTENTION),
        {
            **SSM, **SHARING, "attention.head_count_kv": [0, 0, KV_HEADS],
            "feed_forward_length": [0, FEED, 0],
        },
    ),
    "bailingmoe3": (
        ({**KDA, **MOE}, {**MLA, **MOE, "attn_gate.weight": (HEADS, WIDTH)}),
        {
            **LATENTS, "attention.head_count_kv": [0, 1], "ssm.conv_kernel": KERNEL, "kda.head_dim": HEAD,
            "kda.gate_lower_bound": -5.0, "leading_dense_block_count": 0,
        },
    ),
    "glm4moe": (({**ATTENTION, **POST_NORM, **MOE},) * 2, SHARING),
    "hy_v3": (
        (
            {**ATTENTION, **QK_NORMS, **FEED_FORWARD},
            {**ATTENTION, **QK_NORMS, "ffn_norm.weight": (WIDTH,), **EXPERTS_ONLY, **SHARED,
             "exp_probs_b": (EXPERTS,)},
        ),
        SHARING,
    ),
    "cohere2moe": (
        ({**ATTENTION, **EXPERTS_ONLY, **SHARED},) * 2,
        {**SHARING, **WINDOWED, "logit_scale": 0.5, "leading_dense_block_count": 0},
    ),
    "mimo2": ((FUSED, {**FUSED, "attn_sinks.weight": (HEADS,)}),
              {**WINDOWED, "expert_feed_forward_length": FEED, "attention.value_scale": 0.7}),
    "step35": (({**GATED_HEADS, **MLP}, {**GATED_HEADS, **MOE}), {**SHARING, **WINDOWED}),
    "deepseek2": (
        ({**MLA, **MLP}, {**MLA, **MOE}), {**LATENTS, "leading_dense_block_count": 1},
    ),
    "deepseek32": ((DSA, DSA), {**LATENTS, **INDEXES}),
    "glm-dsa": ((DSA, DSA), {**LATENTS, **INDEXES}),
    "gemma4": (({**GEMMA, **GEMMA_KEYS},) * 2, GEMMA_HEADS),
    "gemma4-assistant": (
        (ASSISTANT, ASSISTANT),
        {
            **GEMMA_HEADS, "embedding_length": ASSISTANT_WIDTH, "embedding_length_out": WIDTH,
            "nextn_predict_layers": 2,
        },
    ),
    "deepseek4": (
        ({**V4, **COMPRESSED_BY_4}, {**V4, **_compressor("attn", 128, 1, LONG)}),
        {
            **SHARING, **INDEXES, "attention.sliding_window": 4, "attention.head_count_kv": 1,
            "attention.q_lora_rank": LATENT, "attention.key_length": LONG, "attention.value_length": LONG,
            "rope.dimension_count": HEAD, "expert_gating_func": 4, "expert_weights_scale": 1.0,
            "expert_weights_norm": True, "swiglu_clamp_exp": 10.0, "attention.output_group_count": GROUPS,
            "attention.output_lora_rank": LORA, "attention.compress_rope_freq_base": 1e4,
            "hyper_connection.count": STREAMS, "hyper_connection.sinkhorn_iterations": 3,
            "hyper_connection.epsilon": 1e-6, "hash_layer_count": 0, "attention.compress_ratios": [4, 128],
        },
    ),
}  # fmt: skip
# What a layer that predicts further tokens has, if not what the last layer has besides NEXT_TOKEN_HEAD.
NEXT_TOKEN_LAYERS: Mapping[str, Shapes] = {
    "deepseek4": {**V4, **NEXT_TOKEN_HEAD},
    "nemotron_h_moe": {**ATTENTION, **POST_NORM, **EXPERTS_WITHOUT_GATE, **NEXT_TOKEN_HEAD},
    "bailingmoe3": {
        **ARCHITECTURES["bailingmoe3"][0][-1], "layer_output_norm.weight": (WIDTH,),
        **{name: shape for name, shape in NEXT_TOKEN_HEAD.items() if "shared" not in name},
    },
}  # fmt: skip
# Tensors outside of layers, besides the usual ones.
OUTER: Mapping[str, Shapes] = {
    "deepseek4": HYPER_OUTPUT,
    "gemma4": {"rope_freqs.weight": (WIDE // 2,)},
    "gemma4-assistant": {
        "rope_freqs.weight": (WIDE // 2,), "nextn.pre_projection.weight": (ASSISTANT_WIDTH, 2 * WIDTH),
        "nextn.post_projection.weight": (WIDTH, ASSISTANT_WIDTH),
    },
}  # fmt: skip


RECURRENT = (
    *("mamba", "mamba2", "jamba", "granitehybrid", "falcon-h1", "lfm2", "nemotron_h", "qwen3next", "qwen35"),
    "rwkv7",
)


def write_architecture(
    path: Path, arch: str, *, seed: int = 0, next_token_heads: int = 0, quiet: bool = False
) -> Path:
    """A model with the vocabulary of `write_llama`'s.
    quiet: its blocks add little to the embeddings, so that its next-token heads are often right."""
    layers, keys = ARCHITECTURES[arch]
    if next_token_heads:
        layers += (NEXT_TOKEN_LAYERS.get(arch, {**layers[-1], **NEXT_TOKEN_HEAD}),) * next_token_heads
        per_layer = {
            key: [*value, *([0] if "compress" in key else value[-1:]) * next_token_heads]
            for key, value in keys.items()
            if isinstance(value, list) and key != "rope.dimension_sections"
        }
        keys = {**keys, **per_layer, "nextn_predict_layers": next_token_heads}
    tokens, random = byte_vocabulary(), np.random.default_rng(seed)
    writer = GGUFWriter(path, arch)
    writer.add_name("random")
    numbers: dict[str, Number] = {
        "context_length": 4096, "embedding_length": WIDTH, "block_count": len(layers),
        "feed_forward_length": FEED, "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD, "attention.value_length": HEAD, "rope.dimension_count": HEAD,
        **keys,
    }  # fmt: skip
    if numbers["attention.head_count"] == 0:
        for key in ("head_count_kv", "key_length", "value_length"):
            del numbers[f"attention.{key}"]
        del numbers["rope.dimension_count"]
    adders: dict[type, Callable[..., object]] = {
        list: writer.add_array, float: writer.add_float32, bool: writer.add_bool, int: writer.add_uint32,
    }  # fmt: skip
    for key, number in numbers.items():
        adders[type(number)](f"{arch}.{key}", number)
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

    width = numbers["embedding_length"]
    assert isinstance(width, int)
    add_tensor("token_embd.weight", (len(tokens), width))
    add_tensor("token_embd_norm.weight" if arch == "lfm2" else "output_norm.weight", (width,))
    if arch == "rwkv7":
        add_tensor("output_norm.bias", (WIDTH,))
        for part in ("weight", "bias"):
            add_tensor(f"token_embd_norm.{part}", (WIDTH,))
    for name, shape in OUTER.get(arch, {}).items():
        add_tensor(name, shape)
    if arch != "gemma4-assistant":
        add_tensor("output.weight", (len(tokens), WIDTH))
    for i, layer in enumerate(layers):
        for name, shape in layer.items():
            add_tensor(f"blk.{i}.{name}", shape)
    finish(writer)
    return path
