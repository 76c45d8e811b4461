"""Read the facts of a transformers folder: config.json and the files beside it.

tokenizer.json is read as llama.cpp's converter would write it to a GGUF file, for comparison: after
conversion/base.py (get_vocab_base) and gguf-py's SpecialVocab, of llama-cpp-python 0.3.36."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paceline.fits import ABSENT, NO_GRAPH, SEPARATE, STRIPPED, USABLE
from paceline.models.headers import facts, vocabulary
from paceline.models.headers.facts import ModelFacts, TokenizerFacts, family_of, printable_name
from paceline.models.headers.plain_file import (
    exists,
    no_model_folder,
    os_error_reason,
    read_json,
    read_tensors,
    read_text,
)
from paceline.speculative.errors import ModelError
from paceline.speculative.printable import truncated

Json = Mapping[str, Any]
MAX_TEMPLATE = 4 << 20
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
WIDTHS = {"BF16": 2, "F16": 2, "F32": 4}  # bytes of a weight
_JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
_FILES = (*_JSON_FILES, "chat_template.jinja")
# The language model's part of a multimodal config.
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
# llama.cpp's names that differ by more than dashes and underscores.
_ARCHS = dict.fromkeys(("mistral", "mixtral", "smollm"), "llama")
_ARCHS |= {"phi": "phi2", "cohere": "command-r", "gpt_bigcode": "starcoder", "minimax": "minimax-01"}
_ARCHS |= {"deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "falcon_mamba": "mamba"}
_ARCHS |= {"qwen3_5": "qwen35", "qwen3_5_moe": "qwen35moe", "granitemoehybrid": "granitehybrid"}
# Architectures unknown to llama.cpp.
_RECURRENT = frozenset({"rwkv", "rwkv5", "xlstm"})
_HYBRID = frozenset({"bamba", "zamba", "zamba2", "recurrent_gemma"})
# Models of which transformers has the layers for multi-token prediction (MtpModel), with the numbers that it
# knows them by, if any; their weights, and copies of the model's own.
_MTP_LAYERS: dict[str, tuple[int, ...]] = {
    "deepseek_v3": (61,), "sarvam_mla": (61,), "glm4_moe": (46, 92), "sarvam_moe": (46, 92),
    "inkling_text": (), "mellum": (),
}  # fmt: skip
_MTP_WEIGHT = re.compile(r"(?:^|\.)mtp\.|^model\.layers\.(\d{1,9})\.")
_COPIES = re.compile(r"\.layers\..*\.(embed_tokens|shared_head\.head)\.weight$")
_MAX_INDEX_BYTES = 64 << 20
_MAX_WEIGHT_FILES = 4096
_PATH = re.compile(r"[/\\:\0]")
# Recurrent layers in layer_types and layers_block_type.
_STATES = frozenset({"linear_attention", "mamba", "mamba2", "recurrent", "conv", "short_conv"})


def read_folder(folder: Path, *, tokens: bool = True) -> ModelFacts:
    """Read a folder. tokens: read the vocabulary from tokenizer.json, which must exist then.
    Raises ModelError for a folder without config.json, and for damaged files."""
    whole = _config(folder)
    config = next((part for key in _TEXT_PARTS if isinstance(part := whole.get(key), dict)), whole)
    model_type = _word(config, "model_type") or _word(whole, "model_type")
    if not model_type:
        raise ModelError(f"{folder / 'config.json'}: names no model_type: it is no model of transformers")
    arch = arch_of(model_type)
    memory = _cache_kind(arch, config)
    weights, size = read_weights(folder)
    quantisation = _quantisation(whole, config)
    tokenizer = read_tokenizer(folder, {**whole, **config}, arch) if tokens else None
    sliding, number = config.get("use_sliding_window") is not False, partial(_first_number, config)
    experts = number("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
    used = number("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk")
    layers = number("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    keys = "num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers"
    heads = number(*keys) or _first_number(whole, *keys)
    mtp, mtp_cost = _mtp(model_type, weights, heads, layers, used / experts if experts else 1.0)
    names = [folder.absolute().name, _word(whole, "_name_or_path")]
    if folder.parent.name == "snapshots":  # of the hub's cache, where a revision's hash is the folder's name
        names.insert(0, folder.parent.parent.name.rpartition("--")[2])
    return ModelFacts(
        files=(folder, *(folder / name for name in _FILES if exists(folder / name)), *weights),
        format="hf",
        name=printable_name(next((name for name in names if family_of([name])), names[0])),
        arch=arch,
        family=family_of(names),
        parameters=size // WIDTHS[quantisation] or None if quantisation in WIDTHS else None,
        quantisation=quantisation,
        size=size,
        n_ctx=number("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "seq_length"),
        n_layers=layers,
        n_vocab=number("vocab_size") or len(tokenizer.texts if tokenizer else ()),
        experts=experts,
        experts_used=used,
        memory=memory,
        mtp=mtp,
        mtp_cost=mtp_cost,
        sliding_window=number("sliding_window") if sliding else 0,
        chat_template=_template(folder),
        tokenizer=tokenizer,
    )


def read_weights(folder: Path) -> tuple[list[Path], int]:
    """Return the weight files of a folder, if any, and their bytes. Raises ModelError for a missing one."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        files = _listed(index) if exists(index) else [folder / name] if exists(folder / name) else []
        try:
            if files:
                return files, sum(file.stat().st_size for file in files)
        except OSError as error:
            raise ModelError(f"{folder}: {error.filename} {os_error_reason(error)}: fetch it too") from error
    return [], 0


def _listed(index: Path) -> list[Path]:
    table = read_json(index, _MAX_INDEX_BYTES).get("weight_map")
    names = {str(name) for name in table.values()} if isinstance(table, dict) else {""}
    # A lone surrogate is not printable.
    valid = [name for name in names if name.strip(".") and name.isprintable() and not _PATH.search(name)]
    if len(names) > _MAX_WEIGHT_FILES or len(valid) < len(names):
        raise ModelError(f"{index}: its weight_map does not name files of its folder")
    return [index.with_name(name) for name in sorted(names)]


def arch_of(model_type: str) -> str:
    """Return llama.cpp's name of an architecture; the same name if llama.cpp has none."""
    from gguf.constants import MODEL_ARCH_NAMES

    word = model_type.removesuffix("_text")
    for name in (_ARCHS.get(word, word), word.replace("_", ""), word.replace("_", "-")):
        if name in MODEL_ARCH_NAMES.values() or facts.cache_kind(name) != facts.ATTENTION:
            return name
    return word


def _config(folder: Path) -> dict[str, Any]:
    try:
        if exists(folder / "config.json"):
            return read_json(folder / "config.json")
        problem = no_model_folder(folder)
    except OSError as error:
        problem = os_error_reason(error)
    raise ModelError(f"{folder}: {problem}")


def _word(config: Json, key: str) -> str:
    value = config.get(key)
    return printable_name(value) if isinstance(value, str) else ""


def _first_number(config: Json, *keys: str) -> int:
    """Return the number of the first key that has one, of a list the largest; 0 without."""
    for key in keys:
        value = config.get(key)
        values = value if isinstance(value, list) else [value]
        if found := [number for number in values if type(number) is int and 0 <= number < MAX_NUMBER]:
            return max(found)
    return 0


def _mtp(model_type: str, weights: Sequence[Path], heads: int, layers: int, used: float) -> tuple[str, float]:
    """Return ModelFacts.mtp and mtp_cost. used: the share of experts that a token uses."""
    if model_type.startswith("gemma4"):
        return SEPARATE, 0.0
    if not heads or model_type not in _MTP_LAYERS:
        return NO_GRAPH if heads else ABSENT, 0.0
    found = {name: info for file in weights for name, info in read_tensors(file).items()}
    read = {
        name: size * (used if ".experts." in name else 1.0)
        for name, (_, size) in found.items()
        if not _COPIES.search(name)
    }
    layer_of = {name: int(of[1] or layers) for name in read if (of := _MTP_WEIGHT.search(name))}
    own = [name for name, layer in layer_of.items() if layer >= layers]
    if not own:
        return STRIPPED if found else NO_GRAPH, 0.0  # MtpModel reads safetensors only
    is_known = not _MTP_LAYERS[model_type] or {layer_of[name] for name in own} <= {*_MTP_LAYERS[model_type]}
    is_plain = {found[name][0] for name in own} <= WIDTHS.keys()  # MtpModel ignores the scales of others
    cost = facts.step_cost(read, own, heads, "model.embed_tokens.weight", "lm_head.weight")
    return USABLE if is_known and is_plain else NO_GRAPH, cost


def _cache_kind(arch: str, config: Json) -> str:
    lists = (config.get(key) for key in ("layer_types", "layers_block_type"))
    layers = next((kinds for kinds in lists if isinstance(kinds, list) and len(kinds) <= 1 << 16), [])
    recurrent = [isinstance(layer, str) and layer in _STATES for layer in layers]
    if arch in _RECURRENT or (recurrent and all(recurrent)):
        return facts.RECURRENT
    return facts.HYBRID if arch in _HYBRID or any(recurrent) else facts.cache_kind(arch)


def _quantisation(whole: Json, config: Json) -> str:
    settings = whole.get("quantization_config", config.get("quantization_config"))
    if isinstance(settings, dict):
        return (_word(settings, "quant_method") or "quantised").upper()
    dtypes = [_word(part, key) for part in (config, whole) for key in ("dtype", "torch_dtype")]
    return next((DTYPES[name] for name in dtypes if name in DTYPES), "")


def _template(folder: Path) -> str | None:
    """Return the template in chat_template.jinja, or the default one in tokenizer_config.json."""
    if exists(file := folder / "chat_template.jinja"):
        return read_text(file, MAX_TEMPLATE)
    template = read_optional_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(template, list):
        by_name = {
            str(entry.get("name")): entry.get("template") for entry in template if isinstance(entry, dict)
        }
        template = by_name.get("default", next(iter(by_name.values()), None))
    return template if isinstance(template, str) and template else None


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
