"""What a model's files say of it, without its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ATTENTION, HYBRID, RECURRENT = "attention", "hybrid", "recurrent"
# llama.cpp's names of architectures (0.3.36's, src/llama-arch.cpp) that have no plain KV cache.
RECURRENT_ARCHS = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
HYBRID_ARCHS = frozenset(
    {
        *("jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"),
        *("qwen3next", "qwen35", "qwen35moe", "qwen4exp", "kimi-linear", "kimi-k3", "bailingmoe3"),
        *("glm5-next", "deepseek4", "minimax-01"),
    }
)


@dataclass(frozen=True)
class TokenizerFacts:
    """kind: llama.cpp's word for the type (SPM, BPE, WPM, UGM, RWKV, PLaMo-2). pre: the pre-tokenizer, as the
    file names it; empty where it does not. texts: every token as the file spells it, by id; types: those of
    llama.cpp (1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte), may be empty. special: role
    (bos, eos, eot, eom, unk, sep, pad, mask, fim_pre, ...) to id, of those that the file names. add_bos,
    add_eos, add_space_prefix: None where the file does not say. ends: every id that is known to end a
    generation."""

    kind: str
    pre: str
    texts: Sequence[bytes]
    types: Sequence[int] = ()
    special: Mapping[str, int] = field(default_factory=dict)
    ends: frozenset[int] = frozenset()
    add_bos: bool | None = None
    add_eos: bool | None = None
    add_space_prefix: bool | None = None


@dataclass(frozen=True)
class ModelFacts:
    """files: all that belong to the model, the first one being what is loaded (of the format hf the folder).
    format: gguf or hf (a folder with config.json). family: as its makers call it, in small letters, without
    size (qwen2.5, llama-3.2); a guess from names. parameters: of all tensors; None where unknown.
    quantisation: the file type (Q4_K_M, BF16, ...). size: bytes on disk, of an hf folder its weights. n_ctx:
    trained context. experts, experts_used: 0 without. memory: how it remembers (ATTENTION, HYBRID,
    RECURRENT). sliding_window: 0 without. kv_bytes: of one token of context at F16 in the cache, with those
    layers that stop growing at a window; 0 where unknown. pooling: not 0: its states are pooled, or it is not
    causal: no language model. tokenizer: None where it was not read, or there is none."""

    files: tuple[Path, ...]
    format: str
    name: str
    arch: str
    family: str = ""
    parameters: int | None = None
    quantisation: str = ""
    size: int = 0
    n_ctx: int = 0
    n_layers: int = 0
    n_embd: int = 0
    n_vocab: int = 0
    experts: int = 0
    experts_used: int = 0
    memory: str = ATTENTION
    sliding_window: int = 0
    kv_bytes: int = 0
    pooling: int = 0
    chat_template: str | None = None
    tokenizer: TokenizerFacts | None = None

    @property
    def path(self) -> Path:
        return self.files[0]


def cache_kind(arch: str) -> str:
    """Return the kind of memory of llama.cpp's architecture of this name."""
    return RECURRENT if arch in RECURRENT_ARCHS else HYBRID if arch in HYBRID_ARCHS else ATTENTION
