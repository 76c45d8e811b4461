"""The facts of a model from its files, without its weights: a GGUF file, the parts of one, or a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
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

__all__ = [
    "GGUFMetadata",
    "read_gguf",
    "read_header",
    "read_model_facts",
    "read_parts",
    "read_tokenizer",
    "split_part_paths",
]

_KINDS = {"llama": "SPM", "bert": "WPM", "t5": "UGM", "rwkv": "RWKV", "plamo2": "PLaMo-2"}
_KINDS |= dict.fromkeys(("gpt2", "hybriddna", "whitespace", "gemma4"), "BPE")
_SAME = (
    *("bos", "eos", "eot", "eom", "cls", "mask"),
    *("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"),
)
# The deprecated words first: a later one overrules.
_ROLES = {"prefix": "fim_pre", "suffix": "fim_suf", "middle": "fim_mid"}
_ROLES |= {"unknown": "unk", "seperator": "sep", "padding": "pad"} | {word: word for word in _SAME}
_TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE | re.DOTALL)
_MAX_ARCH_CHARACTERS = 64  # characters of an architecture's name
_MAX_PER_LAYER_ARRAY = 1 << 14  # elements: what is told for each layer, not for each token


def read_model_facts(path: str | Path, *, tokens: bool = True) -> ModelFacts:
    """Of a GGUF file, any part of one, or a folder with config.json. tokens: with the vocabulary, which takes
    longer. Raises ModelError for anything else, and for files that are damaged or lie."""
    from paceline.models.headers.hub_folder import read_folder

    path = Path(path)
    folder = os.path.isdir(path)  # noqa: PTH112  # Path's may raise
    return read_folder(path, tokens=tokens) if folder else read_gguf(path, tokens=tokens)


def read_gguf(path: str | Path, *, tokens: bool = True) -> ModelFacts:
    """What the file does not say stays unset: special tokens and flags have defaults in llama.cpp, which
    models/headers/vocabulary.py knows. Raises ModelError: see read_header; and for a part that is missing."""

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
        # Files say "models", or a hash, where a converter knew no better.
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
    """The headers of all files of a model, the first one's first. tokens: with the vocabulary. Raises
    ModelError."""
    keep = _with_tokens if tokens else _without_tokens
    return _parts(read_header(path, keep), keep)


def _with_tokens(key: str, count: int) -> bool:
    return (key in (_TOKENS, _TYPES) and count <= MAX_STRINGS) or _without_tokens(key, count)


def _without_tokens(key: str, count: int) -> bool:
    return count <= _MAX_PER_LAYER_ARRAY and not key.startswith("tokenizer.")


class GGUFMetadata:
    """A header's keys, each of the type it must have."""

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
        """Return 0 where there is none; of a list, one for each layer, the largest."""
        return max(self.numbers(key), default=0)

    def numbers(self, key: str) -> list[int]:
        """Return a list, or one number alone."""
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
    """All that a model has by the name of one of them, there or not; of any other name this one."""
    named = _PART.fullmatch(path.name)
    count = int(named[3]) if named else 0
    if named is None or not 1 <= int(named[2]) <= count:
        return [path]
    return [path.with_name(f"{named[1]}-{i:05d}-of-{named[3]}{named[4]}") for i in range(1, count + 1)]


def _parts(header: GGUFHeader, keep: Callable[[str, int], bool]) -> list[GGUFHeader]:
    """All headers of a model that was split into several files; this one alone where it was not."""
    count = GGUFMetadata(header).number("split.count")
    if count <= 1:
        return [header]
    paths = split_part_paths(header.path)
    if len(paths) != count:
        raise ModelError(
            f"{header.path}: is one of {count} parts, and llama.cpp finds them by their names only: "
            f"name them NAME-00001-of-{count:05d}.gguf and so on"
        )
    if missing := next((path for path in paths if not exists(path)), None):
        raise ModelError(f"{missing}: is missing, one of {count} parts of a model: fetch it too")
    parts = [header if path == header.path else read_header(path, keep) for path in paths]
    for i, part in enumerate(parts):
        value = GGUFMetadata(part)
        if value.number("split.count") != count or value.number("split.no") != i:
            raise ModelError(f"{part.path}: is not part {i + 1} of {count}, as its name says: fetch it again")
    return parts


def read_tokenizer(metadata: GGUFMetadata) -> TokenizerFacts | None:
    """None where there is no vocabulary."""
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
            # llama.cpp keeps to its default where the number is no token's.
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
