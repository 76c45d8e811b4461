"""The facts of a model from its files, without its weights: a GGUF file, the parts of one, or a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from paceline.models.headers.cursor import MAX_STRINGS
from paceline.models.headers.end_tokens import end_tokens
from paceline.models.headers.facts import RECURRENT, ModelFacts, TokenizerFacts, memory_of
from paceline.models.headers.family import cleaned, family_of
from paceline.models.headers.gguf_header import NEWER_NAMES, GGUFHeader, SkippedArray, read_header
from paceline.models.headers.kv_bytes import AttentionShape, kv_bytes
from paceline.models.headers.plain_file import exists
from paceline.speculative.errors import ModelError

__all__ = ["GGUFMetadata", "named_parts", "read", "read_gguf", "read_header", "read_parts", "read_tokenizer"]

_KINDS = {"llama": "SPM", "bert": "WPM", "t5": "UGM", "rwkv": "RWKV", "plamo2": "PLaMo-2"}
_KINDS |= dict.fromkeys(("gpt2", "hybriddna", "whitespace", "gemma4"), "BPE")
_SAME = (
    "bos",
    "eos",
    "eot",
    "eom",
    "cls",
    "mask",
    "fim_pre",
    "fim_suf",
    "fim_mid",
    "fim_pad",
    "fim_rep",
    "fim_sep",
)
# The deprecated words first: a later one overrules.
_ROLES = {"prefix": "fim_pre", "suffix": "fim_suf", "middle": "fim_mid"}
_ROLES |= {"unknown": "unk", "seperator": "sep", "padding": "pad"} | {word: word for word in _SAME}
_TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE | re.DOTALL)
_LONGEST = 64  # characters of an architecture's name
_FEW = 1 << 14  # elements: what is told for each layer, not for each token


def read(path: str | Path, *, tokens: bool = True) -> ModelFacts:
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
    if not arch or len(arch) > _LONGEST or not arch.isprintable():
        raise ModelError(f"{path}: names no architecture: it is no language model")
    memory = memory_of(arch)
    n_vocab = first.length(_TOKENS) or first.number(f"{arch}.vocab_size")
    name, file = first.text("general.name"), parts[0].path
    return ModelFacts(
        files=tuple(part.path for part in parts),
        format="gguf",
        # Files say "models", or a hash, where a converter knew no better.
        name=cleaned(name) if family_of([name]) else file.stem,
        arch=arch,
        family=family_of([first.text("general.basename"), name, file.name]),
        parameters=sum(tensor.elements for part in parts for tensor in part.tensors) or None,
        quantisation=_quantisation(first, parts),
        size=sum(part.size for part in parts),
        n_ctx=first.number(f"{arch}.context_length"),
        n_layers=first.number(f"{arch}.block_count"),
        n_embd=first.number(f"{arch}.embedding_length"),
        n_vocab=n_vocab or _rows(parts),
        experts=first.number(f"{arch}.expert_count"),
        experts_used=first.number(f"{arch}.expert_used_count"),
        memory=memory,
        sliding_window=first.number(f"{arch}.attention.sliding_window"),
        kv_bytes=0 if memory == RECURRENT else kv_bytes(_layers(first, arch)),
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
    return count <= _FEW and not key.startswith("tokenizer.")


class GGUFMetadata:
    """A header's keys, each of the type it must have."""

    def __init__(self, header: GGUFHeader) -> None:
        self.path, self._values, self._types = header.path, header.metadata, header.types

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def text(self, key: str) -> str:
        value = self._values.get(key, "")
        if not isinstance(value, str):
            self._refuse(key, "a text")
        return value

    def number(self, key: str) -> int:
        """0 where there is none. Of a list, one for each layer, the largest."""
        return max(self.numbers(key), default=0)

    def numbers(self, key: str) -> list[int]:
        """Of a list or one alone."""
        value = self._values.get(key)
        if value is None or isinstance(value, SkippedArray):
            return []
        if isinstance(value, np.ndarray) and value.dtype.kind in "iub":
            found = list(map(int, value.tolist()))
        elif type(value) is int:
            found = [value]
        else:
            self._refuse(key, "a whole number")
        if min(found, default=0) < 0:
            self._refuse(key, "at least 0")
        return found

    def real(self, key: str) -> float | None:
        """None where there is none."""
        value = self._values.get(key)
        if value is not None and type(value) not in (int, float):
            self._refuse(key, "a number")
        return None if value is None else float(value)  # type: ignore[arg-type]

    def type(self, key: str) -> int | None:
        """gguf's value type."""
        return self._types.get(key)

    def keys(self) -> Iterable[str]:
        return self._values

    def flag(self, key: str) -> bool | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool):
            self._refuse(key, "true or false")
        return value

    def texts(self, key: str) -> list[bytes]:
        value = self._values.get(key, [])
        if not isinstance(value, list):
            self._refuse(key, "a list of texts")
        return value

    def length(self, key: str) -> int:
        value = self._values.get(key, [])
        if isinstance(value, SkippedArray):
            return value.count
        if not isinstance(value, list | np.ndarray):
            self._refuse(key, "a list")
        return len(value)

    def _refuse(self, key: str, wanted: str) -> NoReturn:
        raise ModelError(f"{self.path}: its {key!r} is not {wanted}: the file is damaged, fetch it again")


def named_parts(path: Path) -> list[Path]:
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
    paths = named_parts(header.path)
    if len(paths) != count:
        raise ModelError(
            f"{header.path}: is one of {count} parts, and llama.cpp finds them by their names only: "
            f"name them NAME-00001-of-{count:05d}.gguf and so on"
        )
    if missing := next((path for path in paths if not exists(path)), None):
        first = "" if header.path == paths[0] else f", and give the first, {paths[0]}"
        raise ModelError(f"{missing}: is missing, one of {count} parts of a model: fetch it too{first}")
    parts = [header if path == header.path else read_header(path, keep) for path in paths]
    for i, part in enumerate(parts):
        said = GGUFMetadata(part)
        if said.number("split.count") != count or said.number("split.no") != i:
            raise ModelError(f"{part.path}: is not part {i + 1} of {count}, as its name says: fetch it again")
    total, found = (
        GGUFMetadata(parts[0]).number("split.tensors.count"),
        sum(len(part.tensors) for part in parts),
    )
    if total and total != found:
        raise ModelError(f"{paths[0]}: its {count} parts have {found} tensors, not {total}: fetch them again")
    return parts


def read_tokenizer(said: GGUFMetadata) -> TokenizerFacts | None:
    """None where there is no vocabulary."""
    model = said.text("tokenizer.ggml.model")
    if model in ("", "no_vocab", "none"):
        return None
    texts, types = said.texts(_TOKENS), said.numbers(_TYPES)
    count = said.length(_TYPES)
    if count and not len(texts) <= count <= MAX_STRINGS:
        raise ModelError(f"{said.path}: has {len(texts):,} tokens and types of {count:,}: fetch it again")
    special: dict[str, int] = {}
    for word, role in _ROLES.items():
        key = f"tokenizer.ggml.{word}_token_id"
        if key in said:
            token = said.numbers(key)
            # llama.cpp keeps to its default where the number is no token's.
            special |= {role: token[0]} if token and token[0] < len(texts) else {}
    return TokenizerFacts(
        kind=_KINDS.get(model, cleaned(model)),
        pre=cleaned(said.text("tokenizer.ggml.pre")) or ("gemma4" if model == "gemma4" else ""),
        texts=texts,
        types=types[: len(texts)],
        special=special,
        ends=end_tokens(texts, special),
        add_bos=said.flag("tokenizer.ggml.add_bos_token"),
        add_eos=said.flag("tokenizer.ggml.add_eos_token"),
        add_space_prefix=said.flag("tokenizer.ggml.add_space_prefix"),
    )


def _layers(said: GGUFMetadata, arch: str) -> AttentionShape:
    def one(key: str) -> int:
        return said.number(f"{arch}.{key}")

    def each(key: str) -> list[int]:
        return said.numbers(f"{arch}.{key}")

    return AttentionShape(
        arch=arch,
        count=one("block_count") - min(one("block_count"), one("nextn_predict_layers")),
        shared=one("attention.shared_kv_layers"),
        n_embd=one("embedding_length"),
        heads=each("attention.head_count"),
        kv_heads=each("attention.head_count_kv"),
        key=one("attention.key_length"),
        value=one("attention.value_length"),
        compressed=f"{arch}.attention.key_length_mla" in said,
        recurrent=each("attention.recurrent_layers"),
        interval=one("full_attention_interval"),
        local=each("attention.sliding_window_pattern"),
        local_key=one("attention.key_length_swa"),
        local_value=one("attention.value_length_swa"),
    )


def _quantisation(said: GGUFMetadata, parts: Sequence[GGUFHeader]) -> str:
    """The file type; where it is not said, the type that most weights have."""
    from gguf.constants import GGMLQuantizationType, LlamaFileType

    if "general.file_type" in said:
        number = said.number("general.file_type") & ~LlamaFileType.GUESSED
        if number in {int(kind) for kind in LlamaFileType}:
            return str(LlamaFileType(number).name).removeprefix("MOSTLY_").removeprefix("ALL_")
    weights: dict[int, int] = {}
    for part in parts:
        for tensor in part.tensors:
            weights[tensor.type] = weights.get(tensor.type, 0) + tensor.elements
    most = max(weights, key=lambda kind: weights[kind], default=None)
    known = NEWER_NAMES | {int(kind): str(kind.name) for kind in GGMLQuantizationType}
    return "" if most is None else known.get(most, "")


def _rows(parts: Sequence[GGUFHeader]) -> int:
    shapes = {tensor.name: tensor.shape for part in parts for tensor in part.tensors}
    shape = shapes.get("output.weight") or shapes.get("token_embd.weight") or ()
    return shape[1] if len(shape) == 2 else 0
