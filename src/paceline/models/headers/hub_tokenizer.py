"""Read tokenizer.json as llama.cpp's converter would write it to a GGUF file, for comparison.

After conversion/base.py (get_vocab_base) and gguf-py's SpecialVocab, of llama-cpp-python 0.3.36."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.models.headers import vocabulary
from paceline.models.headers.facts import TokenizerFacts
from paceline.models.headers.plain_file import exists, read_json
from paceline.speculative.errors import ModelError
from paceline.speculative.printable import truncated

Json = Mapping[str, Any]
MAX_SIZE = 64 << 20  # bytes; Gemma 3's has 33 MB
MAX_TOKENS = 1 << 22
MAX_NUMBER = 1 << 48  # of a size or count; a JSON number may have 4,300 digits
_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_LOOKS_SPECIAL = re.compile(r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<｜.*｜>|<unused.*>", re.DOTALL)
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


def read_tokenizer(folder: Path, config: Json, arch: str) -> TokenizerFacts:
    """Read a folder's tokenizer. config: config.json, the text model's part first.
    Raises ModelError for a missing or damaged tokenizer.json."""
    path = folder / "tokenizer.json"
    if not exists(path):
        why = "has no tokenizer.json, without which its vocabulary cannot be read"
        make = "make it with transformers: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        raise ModelError(f"{folder}: {why}: fetch it, or {make}")
    data, settings = read_json(path, MAX_SIZE), read_optional_json(folder / "tokenizer_config.json")
    try:
        model = data["model"]
        vocab, added = model["vocab"], data.get("added_tokens") or ()
        # Of Unigram, texts with their scores.
        pairs = [(token, text) for text, token in vocab.items()] if isinstance(vocab, dict) else []
        pairs = pairs or [(token, pair[0]) for token, pair in enumerate(vocab)]
        more = {token["id"]: (token["content"], token.get("special") is True) for token in added}
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        why = f"is no tokenizer ({type(error).__name__}: {error})"
        raise ModelError(f"{path}: {truncated(why, 80)}: fetch it again") from error
    given, padded = [*pairs, *((token, text) for token, (text, _) in more.items())], config.get("vocab_size")
    ids = [token for token, _ in given]
    size = padded if type(padded) is int else 0
    limit = min(MAX_TOKENS, 2 * len(ids) + 65536)  # a few large ids would make millions of texts
    valid = all(type(token) is int and 0 <= token < limit for token in ids)
    if not valid or size > limit or not all(isinstance(text, str) for _, text in given):
        why = "each must be a text, and ids and the vocab_size of config.json whole numbers"
        raise ModelError(f"{path}: has {len(ids):,} tokens: {why} up to {limit:,}")
    kind, size = _kind(model, data.get("pre_tokenizer"), arch), max(size, max(ids, default=-1) + 1)
    texts, types = _tokens(dict(pairs), more, kind, model.get("unk_token"), size)
    first = {text: token for token, text in reversed(list(enumerate(texts)))}
    special = _special(settings, config, first, size)
    add_bos, add_eos = _add_bos_eos(data.get("post_processor"), settings)
    return TokenizerFacts(
        kind=kind,
        pre="gemma4" if arch == "gemma4" else "",
        texts=texts,
        types=types,
        special=special,
        ends=vocabulary.end_tokens(texts, special),
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


def _kind(model: Json, pre_tokenizer: Any, arch: str) -> str:
    # llama.cpp treats Gemma 4 as BPE, though its byte tokens are those of SentencePiece.
    bpe = arch == "gemma4" or model.get("byte_fallback") is not True or "'ByteLevel'" in str(pre_tokenizer)
    kinds = {"WordPiece": "WPM", "Unigram": "UGM"}
    return kinds.get(str(model.get("type")), "BPE" if bpe else "SPM")


def _tokens(
    named: Mapping[int, str], added: Mapping[int, tuple[str, bool]], kind: str, unknown: Any, size: int
) -> tuple[list[bytes], list[int]]:
    """Return the texts and types of `size` tokens by id. Unnamed ids are padding. added: texts, and whether
    they are control tokens."""
    texts, types = [b"[PAD%d]" % token for token in range(size)], [vocabulary.UNUSED] * size
    for token, text in named.items():
        byte = kind == "SPM" and _BYTE.fullmatch(text)
        types[token] = vocabulary.BYTE if byte else vocabulary.NORMAL
        if kind == "WPM":
            text = text[2:] if text.startswith("##") else f"▁{text}"
        texts[token] = _encoded(text)
    for token, (text, special) in added.items():
        control = special or _LOOKS_SPECIAL.fullmatch(text)
        types[token] = vocabulary.CONTROL if control else vocabulary.USER_DEFINED
        if kind == "SPM" and text == unknown:
            types[token] = vocabulary.UNKNOWN
        texts[token] = _encoded(text if control else text.replace("▁", " "))
    return texts, types


def _special(settings: Json, config: Json, ids: Mapping[bytes, int], size: int) -> dict[str, int]:
    """Return special ids by role: by text in tokenizer_config.json, else by id in config.json.
    Like the converter, ignore lists of ids and generation_config.json."""
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


def _add_bos_eos(post_processor: Any, settings: Json) -> tuple[bool | None, bool | None]:
    """Return whether BOS and EOS are added, by settings or post-processor; None if unknown."""
    bos, eos = (settings.get(f"add_{role}_token") for role in ("bos", "eos"))
    if not isinstance(bos, bool):
        last = str(post_processor)
        templated = "TemplateProcessing" in last and "'single': [{'SpecialToken'" in last
        bos = True if templated else None
    return bos, eos if isinstance(eos, bool) else None


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # JSON can spell halves of a pair
