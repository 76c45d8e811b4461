"""Tiny transformers models with random weights, of many architectures, as folders on the disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

# PACELINE_TEST_DEVICE=cuda tries the engine on a GPU.
DEVICE = os.environ.get("PACELINE_TEST_DEVICE", "cpu")
V = 96
NUMBERS: dict[str, Any] = {"vocab_size": V, "bos_token_id": 0, "eos_token_id": 1}
ATTENTION: dict[str, Any] = {
    **NUMBERS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
}  # fmt: skip
LIKE_LLAMA: dict[str, Any] = {
    **ATTENTION, "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 1,
    "tie_word_embeddings": False,
}  # fmt: skip
LIKE_GPT: dict[str, Any] = {**NUMBERS, "n_embd": 32, "n_head": 4, "n_positions": 256}
HEAD = {"head_dim": 8}
EXPERTS = {"num_experts_per_tok": 2}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": LIKE_LLAMA,
    "qwen3": {**LIKE_LLAMA, **HEAD},
    "gemma3_text": {
        **LIKE_LLAMA, **HEAD, "num_hidden_layers": 4, "sliding_window": 12, "query_pre_attn_scalar": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "mistral": {**LIKE_LLAMA, **HEAD, "sliding_window": 10},
    "phi3": {**LIKE_LLAMA, "sliding_window": None},
    "gpt_neox": {**LIKE_LLAMA, "rotary_pct": 0.5},
    "olmo2": LIKE_LLAMA,
    "gpt2": {**LIKE_GPT, "n_layer": 3},
    "mixtral": {**LIKE_LLAMA, **EXPERTS, "num_local_experts": 4, "sliding_window": None},
    "qwen3_moe": {
        **LIKE_LLAMA, **HEAD, **EXPERTS, "num_experts": 4, "moe_intermediate_size": 24,
        "norm_topk_prob": True,
    },
    "bloom": {**NUMBERS, "hidden_size": 32, "n_layer": 2, "n_head": 4},
}  # fmt: skip
HYBRID: dict[str, Any] = {**LIKE_LLAMA, "num_hidden_layers": 2, "head_dim": 8}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_expand": 2}
DELTA_NET = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
RECURRENT: dict[str, dict[str, Any]] = {
    "mamba": {**NUMBERS, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "pad_token_id": 1},
    "mamba2": {
        **NUMBERS, "hidden_size": 32, "state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1,
        "num_hidden_layers": 2, "pad_token_id": 1,
    },
    "jamba": {
        **HYBRID, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "num_experts": 2,
        "num_experts_per_tok": 1, "mamba_d_state": 8, "mamba_dt_rank": 4, "use_mamba_kernels": False,
    },
    "bamba": {**HYBRID, **MAMBA2, "attn_layer_indices": [1], "attn_rotary_emb": 8},
    "falcon_h1": {**HYBRID, **MAMBA2, "mamba_d_ssm": 64},
    "granitemoehybrid": {
        **HYBRID, **MAMBA2, "layer_types": ["mamba", "attention"], "num_local_experts": 0,
        "shared_intermediate_size": 48,
    },
    "lfm2": {**HYBRID, "layer_types": ["conv", "full_attention"], "block_ff_dim": 48},
    "qwen3_next": {
        **HYBRID, **DELTA_NET, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 24,
    },
    "qwen3_5_text": {**HYBRID, **DELTA_NET},
}  # fmt: skip
# Families that can do less than they seem to, or cannot be decoded, and those with layers of their own.
ODD: dict[str, dict[str, Any]] = {
    "gpt_neo": {
        **NUMBERS, "hidden_size": 32, "intermediate_size": 48, "num_layers": 4, "num_heads": 4,
        "attention_types": [[["global", "local"], 2]], "max_position_embeddings": 256, "window_size": 24,
    },
    "recurrent_gemma": {**ATTENTION, "attention_window_size": 64, "pad_token_id": 1},
    "rwkv": {**NUMBERS, "hidden_size": 32, "num_hidden_layers": 2, "context_length": 128},
    "openai-gpt": {**LIKE_GPT, "n_layer": 2},
    "roberta": {**LIKE_LLAMA, "is_decoder": True},
    "minimax": {
        **LIKE_LLAMA, **HEAD, "num_hidden_layers": 2, "num_local_experts": 2, "num_experts_per_tok": 1,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "falcon": {
        **NUMBERS, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "alibi": False,
    },
    "mpt": {**NUMBERS, "d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 256},
    "opt": {
        **NUMBERS, "hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "max_position_embeddings": 256, "pad_token_id": 1,
    },
}  # fmt: skip
# Families whose layers for multi-token prediction transformers has.
MIXTURE: dict[str, Any] = {
    **LIKE_LLAMA, **HEAD, **EXPERTS, "num_hidden_layers": 2, "n_routed_experts": 4,
    "moe_intermediate_size": 24, "first_k_dense_replace": 1, "num_mtp_layers": 1,
}  # fmt: skip
MTP: dict[str, dict[str, Any]] = {
    "glm4_moe": MIXTURE,
    "deepseek_v3": {
        **MIXTURE, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8, "v_head_dim": 8, "n_group": 1, "topk_group": 1,
    },
    "mellum": {
        **MIXTURE, "num_experts": 4, "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "inkling_text": {
        **MIXTURE, "num_mtp_layers": 2, "local_layer_ids": [0], "d_rel": 4, "rel_extent": 16,
        "swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8, "n_shared_experts": 1,
        "sliding_window_size": 8, "logits_mup_width_multiplier": 1.0,
    },
}  # fmt: skip


def model_of(kind: str, seed: int = 0, **changes: Any) -> Any:
    """Return a random model with weights large enough that tokens differ in their logits."""
    import torch
    import transformers

    known = ARCHITECTURES | RECURRENT | ODD | MTP
    config = transformers.AutoConfig.for_model(kind, **{**known[kind], **changes})
    torch.manual_seed(seed)
    return with_large_weights(transformers.AutoModelForCausalLM.from_config(config))


def with_large_weights(model: Any) -> Any:
    import torch

    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 2.0 / weight.shape[-1] ** 0.5)
    return model.eval()


def tokenizer_of() -> Any:
    """Byte-level BPE without merges: a token is a printable letter; two control tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [chr(code) for code in range(33, 33 + V - 3)]
    vocab = {piece: id_ for id_, piece in enumerate(["<s>", "</s>", "Ġ", *letters])}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


def folder_of(kind: str, folder: Path, **changes: Any) -> Path:
    """A model as people have it: configuration, weights, tokenizer."""
    out = folder / kind
    if not out.exists():
        model_of(kind, **changes).save_pretrained(out)
        tokenizer_of().save_pretrained(out)
    return out
