"""Read tokenizer.json as llama.cpp's converter would write it to a GGUF file, for comparison.

After conversion/base.py (get_vocab_base) and gguf-py's SpecialVocab, of llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline.models.headers.facts import TokenizerFacts
from paceline.models.headers.plain_file import exists, read_json
from paceline.models.headers.vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    end_tokens,
)
from paceline.speculative.errors import ModelError

Json = Mapping[str, Any]
MAX_SIZE = 64 << 20  # bytes; Gemma 3's has 33 MB
MAX_TOKENS = 1 << 22
MAX_NUMBER = 1 << 48  # of a size or count; a JSON number may have 4,300 digits
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_LOOKS_SPECIAL = re.compile(r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<｜.*｜>|<unused.*>", re.DOTALL)
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def read_tokenizer(folder: Path, config: Json, arch: str) -> TokenizerFacts:
    """Read a folder's tokenizer. config: config.json, the text model's part first.

    Raises ModelError for a missing or damaged tokenizer.json.
    """
    path = folder / "tokenizer.json"
    if not exists(path):
        raise ModelError(
            f"{folder}: has no tokenizer.json, without which its vocabulary cannot be read: fetch it, or "
            "make it with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    data = read_json(path, MAX_SIZE)
    settings = read_optional_json(folder / "tokenizer_config.json")
    model = data.get("model")
    if not isinstance(model, dict):
        raise ModelError(f"{path}: names no model of a tokenizer")
    kind = _kind(data, model, arch)
    size = config.get("vocab_size")
    texts, types = _tokens(path, _vocab(path, model), _added_tokens(path, data), kind, model)
    if type(size) is int:
        if size > MAX_TOKENS:
            config_path = folder / "config.json"
            raise ModelError(
                f"{config_path}: its vocab_size is more than {MAX_TOKENS:,}: no model has so many"
            )
        texts += [b"[PAD%d]" % token for token in range(len(texts), size)]
        types += [UNUSED] * (size - len(types))  # none for a larger vocabulary
    ids = {text: token for token, text in reversed(list(enumerate(texts)))}
    special = _special(settings, config, ids, len(texts))
    add_bos, add_eos = _add_bos_eos(data, settings)
    return TokenizerFacts(
        kind=kind,
        pre="gemma4" if arch == "gemma4" else "",
        texts=texts,
        types=types,
        special=special,
        ends=end_tokens(texts, special),
        add_bos=add_bos,
        add_eos=add_eos,
    )


def read_optional_json(path: Path) -> dict[str, Any]:
    """Return a file's JSON object; empty without a file. Raises ModelError."""
    return read_json(path) if exists(path) else {}


def numbers(value: Any) -> list[int]:
    """Return the valid sizes, counts or ids in a value or a list."""
    values = value if isinstance(value, list) else [value]
    return [number for number in values if type(number) is int and 0 <= number < MAX_NUMBER]


def _kind(data: Json, model: Json, arch: str) -> str:
    name = model.get("type")
    if name == "WordPiece":
        return "WPM"
    if name == "Unigram":
        return "UGM"
    # llama.cpp treats Gemma 4 as BPE, though its byte tokens are those of SentencePiece.
    if (
        model.get("byte_fallback") is True
        and arch != "gemma4"
        and "'ByteLevel'" not in str(data.get("pre_tokenizer"))
    ):
        return "SPM"
    return "BPE"


def _vocab(path: Path, model: Json) -> Iterable[tuple[str, int]]:
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        found = list(vocab.items())
    elif isinstance(vocab, list):  # Unigram: texts with their scores
        found = [(pair[0] if isinstance(pair, list) and pair else None, i) for i, pair in enumerate(vocab)]
    else:
        raise ModelError(f"{path}: has no vocabulary")
    for text, token in found:
        if not isinstance(text, str) or type(token) is not int or not 0 <= token < MAX_TOKENS:
            raise ModelError(f"{path}: its vocabulary has {str(text)[:40]!r} as token {str(token)[:40]}")
    return found


def _added_tokens(path: Path, data: Json) -> dict[int, tuple[str, bool]]:
    """Return the text of each added token by id, and True for special tokens."""
    listed = data.get("added_tokens") or []
    found: dict[int, tuple[str, bool]] = {}
    for it in listed if isinstance(listed, list) else [listed]:
        token, text = (it.get("id"), it.get("content")) if isinstance(it, dict) else (None, None)
        if not isinstance(text, str) or type(token) is not int or not 0 <= token < MAX_TOKENS:
            raise ModelError(f"{path}: has an added token {str(it)[:60]!r}")
        found[token] = (text, it.get("special") is True)
    return found


def _tokens(
    path: Path,
    vocab: Iterable[tuple[str, int]],
    added: Mapping[int, tuple[str, bool]],
    kind: str,
    model: Json,
) -> tuple[list[bytes], list[int]]:
    """Return token texts and types by id. Unnamed ids are padding."""
    named = {token: text for text, token in vocab}
    size = max((*named, *added), default=-1) + 1
    if size > 2 * (len(named) + len(added)) + 65536:  # a few large ids would make millions of texts
        raise ModelError(f"{path}: has {len(named) + len(added):,} tokens with ids up to {size - 1:,}")
    unknown = model.get("unk_token")
    texts = [b"[PAD%d]" % token for token in range(size)]
    types = [UNUSED] * size
    for token, text in named.items():
        if token in added:
            continue
        types[token] = NORMAL
        if kind == "SPM" and _BYTE.fullmatch(text):
            types[token] = BYTE
        elif kind == "WPM":
            text = text[2:] if text.startswith("##") else f"▁{text}"
        texts[token] = _encoded(text)
    for token, (text, special) in added.items():
        control = special or bool(_LOOKS_SPECIAL.fullmatch(text))
        types[token] = CONTROL if control else USER_DEFINED
        if kind == "SPM" and text == unknown:
            types[token] = UNKNOWN
        texts[token] = _encoded(text if control else text.replace("▁", " "))
    return texts, types


def _special(settings: Json, config: Json, ids: Mapping[bytes, int], size: int) -> dict[str, int]:
    """Return special ids by role: by text in tokenizer_config.json, else by id in config.json.

    Like the converter, ignore lists of ids and generation_config.json.
    """
    found: dict[str, int] = {}
    for role in _ROLES:
        entry = settings.get(f"{role}_token")
        text = entry.get("content") if isinstance(entry, dict) else entry
        token = ids.get(_encoded(text)) if isinstance(text, str) else None
        if token is None:
            id_ = config.get(f"{role}_token_id")
            token = id_ if type(id_) is int and 0 <= id_ < size else None
        if token is not None:
            found[role] = token
    return found


def _add_bos_eos(data: Json, settings: Json) -> tuple[bool | None, bool | None]:
    """Return whether BOS and EOS are added, by settings or post-processor; None if unknown."""
    bos, eos = (settings.get(f"add_{role}_token") for role in ("bos", "eos"))
    if not isinstance(bos, bool):
        last = str(data.get("post_processor"))
        templated = "TemplateProcessing" in last and "'single': [{'SpecialToken'" in last
        bos = True if templated else None
    return bos, eos if isinstance(eos, bool) else None


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # JSON can spell halves of a pair
