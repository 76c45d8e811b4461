"""Models of which the header tells that llama.cpp survives them: of an architecture whose every assertion is
known here, and with nothing in the header that is not.

What is not ordinary may be a good model all the same; it only has to be tried. The assertions are those of
src/models/llama.cpp, qwen2.cpp and qwen3.cpp, as of llama-cpp-python 0.3.36, and ggml's of the operations in
them. Whether tensors have the shapes that the numbers say, llama.cpp checks itself, and refuses in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.machine.models.facts import TokenizerFacts
from paceline.machine.models.gguf_header import Header
from paceline.machine.models.header import Metadata
from paceline.machine.models.soundness import stored
from paceline.machine.models.vocabulary import BYTE, NORMAL

ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})
MODELS = {"llama": "SPM", "gpt2": "BPE"}  # kinds of vocabulary
COUNTS = frozenset({"context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size"})
HEADS, KV_HEADS = "attention.head_count", "attention.head_count_kv"
WIDTHS = ("attention.key_length", "attention.value_length", "rope.dimension_count")
EPSILON = "attention.layer_norm_rms_epsilon"
SCALES = frozenset({"rope.freq_base", "rope.scaling.factor", "rope.scaling.attn_factor"})
OTHERS = frozenset({"rope.scaling.type", "rope.scaling.original_context_length", "rope.scaling.finetuned"})
KEYS = COUNTS | SCALES | OTHERS | {HEADS, KV_HEADS, *WIDTHS, EPSILON}

F32 = 0
# Those that a matrix of weights may have: all but those of whole numbers, of F64, and of what only ever is a
# step of a computation.
MATRICES = frozenset({0, 1, 2, 3, 6, 7, 8, *range(10, 15), *range(16, 24), 29, 30, 34, 35, 39})
ALIGNMENT = 32  # TENSOR_ALIGNMENT of weights that are mapped
MAX_WIDTH = 1 << 20
MAX_HEAD = 512
MAX_TEXT = 16 << 20  # bytes of all tokens: llama.cpp takes a while for each; a vocabulary of 262,000 has 2 MB


def is_ordinary(
    parts: Sequence[Header], tokenizer: TokenizerFacts | None, *, vocab_only: bool = False
) -> bool:
    """As check_sound, which they have passed."""
    said = Metadata(parts[0])
    if not _vocabulary(said, tokenizer):
        return False
    return vocab_only or (_numbers(said, said.text("general.architecture")) and _tensors(parts))


def _vocabulary(said: Metadata, tokenizer: TokenizerFacts | None) -> bool:
    if tokenizer is None or tokenizer.kind != MODELS.get(said.text("tokenizer.ggml.model")):
        return False
    if not tokenizer.texts or not all(NORMAL <= kind <= BYTE for kind in set(tokenizer.types)):
        return False
    if sum(map(len, tokenizer.texts)) > MAX_TEXT:
        return False
    # Text that no token spells is spelled by its bytes.
    return tokenizer.kind != "SPM" or {b"<0x%02X>" % byte for byte in range(256)} <= set(stored(tokenizer))


def _numbers(said: Metadata, arch: str) -> bool:
    start = f"{arch}."
    keys = {key.removeprefix(start) for key in said.keys() if key.startswith(start)}  # noqa: SIM118
    if (
        arch not in ARCHITECTURES
        or not keys <= KEYS
        or not {*WIDTHS[2:], HEADS, EPSILON} <= keys | {WIDTHS[2]}
    ):
        return False

    def one(key: str, default: int = 0) -> int:
        """0 for a list."""
        found = said.numbers(start + key) if key in keys else [default]
        return found[0] if len(found) == 1 else 0

    heads, width = one(HEADS), one("embedding_length")
    kept = one(KV_HEADS, heads)
    if not (heads and kept and heads % kept == 0 and all(0 < one(key, 1) <= 2**31 - 1 for key in COUNTS)):
        return False
    widths = {one(key, width // heads) for key in WIDTHS}
    if len(widths) != 1 or not 2 <= min(widths) <= MAX_HEAD or min(widths) % 2 or width > MAX_WIDTH:
        return False
    scales = [said.real(start + key) for key in SCALES & keys]
    return all(scale is not None and math.isfinite(scale) and scale > 0 for scale in scales)


def _tensors(parts: Sequence[Header]) -> bool:
    return all(
        min(tensor.shape, default=0) > 0
        and tensor.type in (MATRICES if len(tensor.shape) == 2 else (F32,))
        and len(tensor.shape) <= 2
        and (part.data + tensor.offset) % ALIGNMENT == 0
        for part in parts
        for tensor in part.tensors
    )
