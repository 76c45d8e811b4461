"""The facts of a model and of its tokenizer, and its family, guessed from its names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline.fits import ABSENT, LLAMA_CPP, TRANSFORMERS, TargetTraits

ATTENTION, HYBRID, RECURRENT = "attention", "hybrid", "recurrent"
# Architectures without a plain KV cache, by llama.cpp's names (src/llama-arch.cpp of 0.3.36).
RECURRENT_ARCHS = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
HEAD_ARCHS = frozenset({"eagle3", "dflash"})  # draft heads
HYBRID_ARCHS = frozenset(
    {
        *("jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"),
        *("qwen3next", "qwen35", "qwen35moe", "qwen4exp", "kimi-linear", "kimi-k3", "bailingmoe3"),
        *("glm5-next", "deepseek4", "minimax-01"),
    }
)
# Architectures whose layers for multi-token prediction have a graph there (graph_mtp in src/models); that of
# glm5-next throws "not implemented yet".
MTP_ARCHS = frozenset(
    {
        *("bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe", "hy_v3"),
        *("mimo2", "nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next", "step35"),
    }
)
ASSISTANT_ARCH = "gemma4-assistant"  # MTP layers in a file of their own
SOMETIMES_MTP = frozenset({"cohere2moe", "deepseek2", "nemotron_h_moe"})  # models without are whole, too


@dataclass(frozen=True)
class TokenizerFacts:
    """A tokenizer as a model's files define it; None means unspecified.
    kind: llama.cpp's type (SPM, BPE, WPM, UGM, RWKV, PLaMo-2). pre: pre-tokenizer.
    texts: token texts by id. types: llama.cpp's token types (see vocabulary.py), or empty.
    special: ids by role (bos, eos, eot, eom, unk, sep, pad, mask, fim_pre, ...). ends: ids of end tokens."""

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
    """The facts of a model; None, 0 or empty means unknown or absent.
    files: all files of the model; the first, for hf the folder, is loaded. format: gguf or hf.
    family: a guess from names, in lower case, without size (qwen2.5, llama-3.2).
    quantisation: the file type (Q4_K_M, BF16, ...). size: bytes of the files, for hf of the weights.
    n_ctx: trained context. memory: ATTENTION, HYBRID or RECURRENT.
    kv_bytes: KV cache bytes of one token at F16. pooling: not 0 for embedding and non-causal models.
    mtp: see TargetTraits. mtp_cost: bytes that a step of these layers reads, relative to a pass, or 0."""

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
    n_vocab: int = 0
    experts: int = 0
    experts_used: int = 0
    memory: str = ATTENTION
    sliding_window: int = 0
    kv_bytes: int = 0
    pooling: int = 0
    mtp: str = ABSENT
    mtp_cost: float = 0.0
    chat_template: str | None = None
    tokenizer: TokenizerFacts | None = None

    @property
    def path(self) -> Path:
        return self.files[0]

    @property
    def traits(self) -> TargetTraits:
        """What decides which drafts fit the model (fits.py), for its format's backend."""
        return TargetTraits(
            LLAMA_CPP if self.format == "gguf" else TRANSFORMERS,
            "free" if self.memory == ATTENTION else "restore",
            is_mixture=0 < self.experts_used < self.experts,
            is_windowed=self.sliding_window > 0,
            mtp=self.mtp,
        )


def step_cost(
    read: Mapping[str, float], own: Collection[str], layers: int, embedding: str, output: str
) -> float:
    """Return ModelFacts.mtp_cost. read: bytes of tensors, or of the part that a token uses. own: names of
    those of MTP layers."""
    layer, matrix = sum(read[name] for name in own), read.get(output, read.get(embedding, 0.0))
    total = sum(read.values()) - layer - read.get(embedding, 0.0) * (output in read)
    return (layer / layers + matrix) / total if layer and total > 0 else 0.0


def cache_kind(arch: str) -> str:
    """Return ATTENTION, HYBRID or RECURRENT for an architecture of llama.cpp."""
    return RECURRENT if arch in RECURRENT_ARCHS else HYBRID if arch in HYBRID_ARCHS else ATTENTION


# File name endings such as "-Q4_K_M", ".IQ2_XXS", "-UD-Q4_K_XL" and "_f16".
_QUANTISED = re.compile(
    r"[-_. ](?:ud[-_])?(?:i?q\d(?:_[0-9a-z]+)*|tq\d_\d|bf16|fp?16|fp?32|fp8|mxfp4(?:_moe)?|nvfp4|[48]bit)$"
)
_ENDINGS = re.compile(r"\.gguf$|-\d{5}-of-\d{5}$|[-_. ](?:imatrix|imat|i1|gguf|ggml|awq|gptq|exl2|mlx|hf)$")
_SIZE = re.compile(r"(?:\d+x)?[ae]?\d+(?:\.\d+)?[bm]|\d+(?:\.\d+)?[bm]-a\d+(?:\.\d+)?b|\d+e|\d+k")
_DATE_WORD = re.compile(r"\d{4}|\d{6}|\d{8}")
_RELEASE = re.compile(r"v\d+(?:\.\d+)*")
# Variants and sizes within a family.
_VARIANT_WORDS = re.compile(
    "instruct|chat|it|base|pt|sft|dpo|rlhf|thinking|reasoning|preview|text|instruction|tuned|uncensored"
    "|abliterated|qat|release|hf|gguf|ud|imatrix|draft|target|mini|medium|tiny|nano|micro|lite|air"
)
_MAKERS = frozenset({"meta", "google", "microsoft", "mistralai", "ibm"})
# Names of unnamed files.
_PLACEHOLDER_NAMES = frozenset(
    {"", "model", "models", "ggml", "gguf", "unknown", "none", "snapshots", "main", "unsloth"}
)
_HASH = re.compile(r"(?:sha256-)?[0-9a-f]{16,}")


def family_of(names: Iterable[str]) -> str:
    """Return the family of the first meaningful name: "qwen2.5-coder" for "Qwen2.5-Coder-0.5B-Instruct"."""
    for name in names:
        family = _family(name)
        placeholder = _PLACEHOLDER_NAMES.issuperset(family.split("-")) or _HASH.fullmatch(family)
        if not placeholder and re.search(r"[a-z]{2}", family):
            return family
    return ""


def _family(name: str) -> str:
    text = name[:256].strip().lower().replace("\\", "/").rstrip("/").rpartition("/")[2]
    before = ""
    while text != before:
        before, text = text, _QUANTISED.sub("", _ENDINGS.sub("", text))
    text = re.sub(r"(?<=\d)_(?=\d)", ".", text)
    words: list[str] = []
    after_size = False  # a release number after the size belongs to the model, not to its family
    for word in re.split(r"[-_\s:()\[\],]+", text):
        if _SIZE.fullmatch(word) or _VARIANT_WORDS.fullmatch(word):
            after_size = True
        elif not word or (not words and word in _MAKERS) or (words and _DATE_WORD.fullmatch(word)):
            continue
        elif not (after_size and _RELEASE.fullmatch(word)):
            words.append(word)
    return printable_name("-".join(words))


def printable_name(text: str) -> str:
    """Return the printable characters of a name from a file, at most 512."""
    return "".join(c for c in text[:512] if c.isprintable()).strip()
