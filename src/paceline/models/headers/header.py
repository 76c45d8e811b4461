"""Read the facts of a GGUF file, a split GGUF model, or a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from paceline.models.headers.cursor import MAX_STRINGS
from paceline.models.headers.end_tokens import end_tokens
from paceline.models.headers.facts import RECURRENT, ModelFacts, TokenizerFacts, cache_kind
from paceline.models.headers.family import family_of, printable_name
from paceline.models.headers.gguf_header import GGUFHeader, SkippedArray, read_header
from paceline.models.headers.kv_bytes import AttentionShape, kv_bytes_per_token
from paceline.models.headers.plain_file import exists
from paceline.speculative.errors import ModelError

_KINDS = {"llama": "SPM", "bert": "WPM", "t5": "UGM", "rwkv": "RWKV", "plamo2": "PLaMo-2"}
_KINDS |= dict.fromkeys(("gpt2", "hybriddna", "whitespace", "gemma4"), "BPE")
_SAME = (
    *("bos", "eos", "eot", "eom", "cls", "mask"),
    *("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"),
)
# Deprecated names first: later entries override them.
_ROLES = {"prefix": "fim_pre", "suffix": "fim_suf", "middle": "fim_mid"}
_ROLES |= {"unknown": "unk", "seperator": "sep", "padding": "pad"} | {word: word for word in _SAME}
_TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE | re.DOTALL)
_MAX_ARCH_CHARACTERS = 64  # of an architecture's name
_MAX_PER_LAYER_ARRAY = 1 << 14  # elements; longer arrays belong to the vocabulary


def read_model_facts(path: str | Path, *, tokens: bool = True) -> ModelFacts:
    """Read a GGUF file, any part of a split model, or a folder with config.json.

    tokens: read the vocabulary, which takes longer. Raises ModelError for damaged or other files.
    """
    from paceline.models.headers.hub_folder import read_folder

    path = Path(path)
    folder = os.path.isdir(path)  # noqa: PTH112  # Path's may raise
    return read_folder(path, tokens=tokens) if folder else read_gguf(path, tokens=tokens)


def read_gguf(path: str | Path, *, tokens: bool = True) -> ModelFacts:
    """Read a GGUF model. Raises ModelError for a damaged file or a missing part.

    Absent special tokens and flags stay unset; models/headers/vocabulary.py knows llama.cpp's defaults.
    """
    path = Path(path)
    parts = read_parts(path, tokens=tokens)
    first = GGUFMetadata(parts[0])
    arch = first.text("general.architecture")
    if not arch or len(arch) > _MAX_ARCH_CHARACTERS or not arch.isprintable():
        raise ModelError(f"{path}: names no architecture: it is no language model")
    memory = cache_kind(arch)
    name, file = first.text("general.name"), parts[0].path
    return ModelFacts(
        files=tuple(part.path for part in parts),
        format="gguf",
        # Some converters write "models" or a hash.
        name=printable_name(name) if family_of([name]) else file.stem,
        arch=arch,
        family=family_of([first.text("general.basename"), name, file.name]),
        parameters=sum(tensor.elements for part in parts for tensor in part.tensors) or None,
        quantisation=_quantisation(first),
        size=sum(part.size for part in parts),
        n_ctx=first.number(f"{arch}.context_length"),
        n_layers=first.number(f"{arch}.block_count"),
        n_embd=first.number(f"{arch}.embedding_length"),
        n_vocab=first.length(_TOKENS) or first.number(f"{arch}.vocab_size"),
        experts=first.number(f"{arch}.expert_count"),
        experts_used=first.number(f"{arch}.expert_used_count"),
        memory=memory,
        sliding_window=first.number(f"{arch}.attention.sliding_window"),
        kv_bytes=0 if memory == RECURRENT else kv_bytes_per_token(_layers(first, arch)),
        pooling=first.number(f"{arch}.pooling_type") or int(first.flag(f"{arch}.attention.causal") is False),
        chat_template=first.text("tokenizer.chat_template") or None,
        tokenizer=read_tokenizer(first) if tokens else None,
    )


def read_parts(path: Path, *, tokens: bool) -> list[GGUFHeader]:
    """Return the headers of all parts in order. tokens: with the vocabulary. Raises ModelError."""

    def keep(key: str, count: int) -> bool:
        if tokens and key in (_TOKENS, _TYPES):
            return count <= MAX_STRINGS
        return count <= _MAX_PER_LAYER_ARRAY and not key.startswith("tokenizer.")

    header = read_header(path, keep)
    count = GGUFMetadata(header).number("split.count")
    if count <= 1:
        return [header]
    paths = split_part_paths(path)
    if len(paths) != count:
        raise ModelError(
            f"{path}: is one of {count} parts, and llama.cpp finds them by their names only: "
            f"name them NAME-00001-of-{count:05d}.gguf and so on"
        )
    if missing := next((part for part in paths if not exists(part)), None):
        raise ModelError(f"{missing}: is missing, one of {count} parts of a model: fetch it too")
    parts = [header if part == path else read_header(part, keep) for part in paths]
    for i, part in enumerate(parts):
        metadata = GGUFMetadata(part)
        if metadata.number("split.count") != count or metadata.number("split.no") != i:
            raise ModelError(f"{part.path}: is not part {i + 1} of {count}, as its name says: fetch it again")
    return parts


class GGUFMetadata:
    """Typed access to a header's metadata. All methods raise ModelError for a value of a wrong type."""

    def __init__(self, header: GGUFHeader) -> None:
        self.path, self._values = header.path, header.metadata

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str) -> str:
        value: str = self._get(key, "", str, "a text")
        return value

    def flag(self, key: str) -> bool | None:
        value: bool | None = self._get(key, None, bool | None, "true or false")
        return value

    def texts(self, key: str) -> list[bytes]:
        value: list[bytes] = self._get(key, [], list, "a list of texts")
        return value

    def length(self, key: str) -> int:
        value = self._get(key, [], list | np.ndarray | SkippedArray, "a list")
        return value.count if isinstance(value, SkippedArray) else len(value)

    def number(self, key: str) -> int:
        """Return a number, 0 if absent; of a list with a number per layer, the largest."""
        return max(self.numbers(key), default=0)

    def numbers(self, key: str) -> list[int]:
        """Return a list of numbers; a single number becomes a list."""
        value = self._get(key, None, int | np.ndarray | SkippedArray | None, "a whole number")
        found = np.ravel([] if value is None or isinstance(value, SkippedArray) else value)
        if found.size and (found.dtype.kind not in "iub" or isinstance(value, bool) or found.min() < 0):
            raise self._refused(key, "a whole number of at least 0")
        return [int(one) for one in found.tolist()]

    def _get(self, key: str, default: Any, kind: Any, wanted: str) -> Any:
        value = self._values.get(key, default)
        if not isinstance(value, kind):
            raise self._refused(key, wanted)
        return value

    def _refused(self, key: str, wanted: str) -> ModelError:
        return ModelError(f"{self.path}: its {key!r} is not {wanted}: the file is damaged, fetch it again")


def split_part_paths(path: Path) -> list[Path]:
    """Return the paths of all parts by the name of one, existing or not; of an unsplit model its path."""
    named = _PART.fullmatch(path.name)
    count = int(named[3]) if named else 0
    if named is None or not 1 <= int(named[2]) <= count:
        return [path]
    return [path.with_name(f"{named[1]}-{i:05d}-of-{named[3]}{named[4]}") for i in range(1, count + 1)]


def read_tokenizer(metadata: GGUFMetadata) -> TokenizerFacts | None:
    """Return the tokenizer; None for a model without a vocabulary."""
    model = metadata.text("tokenizer.ggml.model")
    if model in ("", "no_vocab", "none"):
        return None
    texts, types = metadata.texts(_TOKENS), metadata.numbers(_TYPES)
    count = metadata.length(_TYPES)
    if count and not len(texts) <= count <= MAX_STRINGS:
        raise ModelError(f"{metadata.path}: has {len(texts):,} tokens and types of {count:,}: fetch it again")
    special: dict[str, int] = {}
    for word, role in _ROLES.items():
        key = f"tokenizer.ggml.{word}_token_id"
        if key in metadata:
            token = metadata.numbers(key)
            # llama.cpp ignores an invalid id, too.
            special |= {role: token[0]} if token and token[0] < len(texts) else {}
    return TokenizerFacts(
        kind=_KINDS.get(model, printable_name(model)),
        pre=printable_name(metadata.text("tokenizer.ggml.pre")) or ("gemma4" if model == "gemma4" else ""),
        texts=texts,
        types=types[: len(texts)],
        special=special,
        ends=end_tokens(texts, special),
        add_bos=metadata.flag("tokenizer.ggml.add_bos_token"),
        add_eos=metadata.flag("tokenizer.ggml.add_eos_token"),
        add_space_prefix=metadata.flag("tokenizer.ggml.add_space_prefix"),
    )


def _layers(metadata: GGUFMetadata, arch: str) -> AttentionShape:
    def one(key: str) -> int:
        return metadata.number(f"{arch}.{key}")

    def each(key: str) -> list[int]:
        return metadata.numbers(f"{arch}.{key}")

    return AttentionShape(
        arch=arch,
        count=one("block_count") - min(one("block_count"), one("nextn_predict_layers")),
        n_embd=one("embedding_length"),
        heads=each("attention.head_count"),
        kv_heads=each("attention.head_count_kv"),
        key=one("attention.key_length"),
        value=one("attention.value_length"),
        mla=f"{arch}.attention.key_length_mla" in metadata,
        recurrent=each("attention.recurrent_layers"),
        interval=one("full_attention_interval"),
    )


def _quantisation(metadata: GGUFMetadata) -> str:
    from gguf.constants import LlamaFileType

    number = metadata.number("general.file_type") & ~LlamaFileType.GUESSED
    if "general.file_type" not in metadata or number not in {int(kind) for kind in LlamaFileType}:
        return ""
    return str(LlamaFileType(number).name).removeprefix("MOSTLY_").removeprefix("ALL_")
