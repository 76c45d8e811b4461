"""What llama.cpp takes for granted of a model's header: where that does not hold, it ends the process.

Only what is so for every architecture (src/llama-model.cpp and llama-vocab.cpp, as of llama-cpp-python
0.3.36); what llama.cpp refuses in words of its own is left to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from paceline.core.errors import ModelError
from paceline.machine.models.facts import TokenizerFacts
from paceline.machine.models.gguf_header import Header
from paceline.machine.models.header import Metadata, read_parts, read_tokenizer
from paceline.machine.models.vocabulary import special_id, vocabulary

MAX_LAYERS, MAX_EXPERTS = 512, 1024  # constants of the build
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
EPSILONS = ("layer_norm_rms_epsilon", "layer_norm_epsilon", "group_norm_epsilon")
NO_VOCABULARY = ("none", "no_vocab")
U16 = 2  # gguf's value type
# They take one expert for none.
LENIENT = frozenset({"hunyuan-vl", "hunyuan-dense"})


def check_model(path: Path) -> None:
    """Raises ModelError for a file that no command is to work with."""
    parts = read_parts(path, tokens=True)
    check_sound(parts, read_tokenizer(Metadata(parts[0])))


def check_sound(
    parts: Sequence[Header], tokenizer: TokenizerFacts | None, *, vocab_only: bool = False
) -> None:
    """parts: a model's headers. tokenizer: the one that they tell of. vocab_only: the rest will not be read.
    Raises ModelError."""
    said = Metadata(parts[0])
    if tokenizer is not None:
        _check_vocabulary(said, tokenizer)
    for part in map(Metadata, parts[1:]):
        if part.type("split.no") not in (U16, None):
            _refuse(part, "its 'split.no' is not a number of 16 bits")
    if not vocab_only:
        if said.text("tokenizer.ggml.model") in NO_VOCABULARY:
            raise ModelError(f"{said.path}: has no vocabulary, so it writes no text; give another model")
        arch = said.text("general.architecture")
        _check_layers(said, arch)
        _check_experts(said, arch)
        _check_numbers(said, arch)


def _check_vocabulary(said: Metadata, tokenizer: TokenizerFacts) -> None:
    texts = stored(tokenizer)
    if len(set(texts)) != len(texts):
        known: dict[bytes, int] = {}
        first, second = next(
            (known[text], token) for token, text in enumerate(texts) if known.setdefault(text, token) != token
        )
        _refuse(said, f"its tokens {first:,} and {second:,} are one text, {texts[first][:40]!r}")
    vocab = vocabulary(tokenizer)
    for role, wanted in (("bos", vocab.add_bos), ("eos", vocab.add_eos)):
        if wanted and special_id(tokenizer, role) is None and tokenizer.kind in ("SPM", "BPE", "UGM"):
            _refuse(said, f"it wants {role.upper()} in each text and has no such token")


def stored(tokenizer: TokenizerFacts) -> Sequence[bytes]:
    """Each token's text as llama.cpp keeps it: to its first zero byte, and with another where it is empty."""
    texts = tokenizer.texts
    if all(texts) and b"\0" not in b"".join(texts):
        return texts
    return [text.partition(b"\0")[0] or b"[EMPTY_%d]" % token for token, text in enumerate(texts)]


def _check_layers(said: Metadata, arch: str) -> None:
    key = f"{arch}.block_count"
    if key not in said:
        return
    layers, guessing = said.number(key), said.number(f"{arch}.nextn_predict_layers")
    if not 1 <= layers <= MAX_LAYERS:
        _refuse(said, f"it claims {layers:,} layers, llama.cpp loads 1 to {MAX_LAYERS}")
    if guessing > layers:
        _refuse(said, f"it claims {guessing:,} layers that guess further tokens, of {layers:,} in all")


def _check_experts(said: Metadata, arch: str) -> None:
    def count(key: str) -> int:
        return said.number(f"{arch}.{key}")

    experts, used, groups = count("expert_count"), count("expert_used_count"), count("expert_group_count")
    if arch in LENIENT and experts <= 1:
        experts = used = 0
    if experts > MAX_EXPERTS:
        _refuse(said, f"it claims {experts:,} experts, llama.cpp loads {MAX_EXPERTS:,} at most")
    if used > experts or (experts and not used):
        _refuse(said, f"it uses {used:,} of {experts:,} experts")
    if groups and groups >= experts:
        _refuse(said, f"it has {groups:,} groups of {experts:,} experts")
    if groups > 1 and (experts % groups or not 0 < count("expert_group_used_count") < groups):
        chosen = count("expert_group_used_count")
        _refuse(said, f"it uses {chosen:,} of {groups:,} groups of {experts:,} experts")


def _check_numbers(said: Metadata, arch: str) -> None:
    for name in EPSILONS:
        value = said.real(f"{arch}.attention.{name}")
        if value is not None and not (math.isfinite(value) and value >= 0):
            _refuse(said, f"its {name} is {value:g}")
    key = f"{arch}.rope.scaling.type"
    if key in said and (scaling := said.text(key)) not in ROPE_SCALINGS:
        _refuse(said, f"its rope scaling is {scaling[:40]!r}, which llama.cpp does not know")


def _refuse(said: Metadata, why: str) -> NoReturn:
    raise ModelError(f"{said.path}: {why}: the file is damaged, fetch it again")
