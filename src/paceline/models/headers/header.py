"""Read the facts of a GGUF file, a split GGUF model, or a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from paceline.fits import ABSENT, NO_GRAPH, SEPARATE, STRIPPED, USABLE
from paceline.models.headers import facts
from paceline.models.headers.facts import ModelFacts, TokenizerFacts, family_of, printable_name
from paceline.models.headers.gguf_file import GGUFFile
from paceline.models.headers.plain_file import exists, open_regular_file, read_json
from paceline.models.headers.vocabulary import end_tokens
from paceline.models.names import model_path
from paceline.speculative.errors import ModelError, PacelineError

_KINDS = {"llama": "SPM", "bert": "WPM", "t5": "UGM", "rwkv": "RWKV", "plamo2": "PLaMo-2"}
_KINDS |= dict.fromkeys(("gpt2", "hybriddna", "whitespace", "gemma4"), "BPE")
# Deprecated names first: later entries override them.
_ROLES = {"prefix": "fim_pre", "suffix": "fim_suf", "middle": "fim_mid"}
_ROLES |= {"unknown": "unk", "seperator": "sep", "padding": "pad"}
_ROLES |= {role: role for role in ("bos", "eos", "eot", "eom", "cls", "mask")}
_ROLES |= {f"fim_{part}": f"fim_{part}" for part in ("pre", "suf", "mid", "pad", "rep", "sep")}
_TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE | re.DOTALL)
_LAYER = re.compile(r"blk\.(\d{1,9})\.")
_MAX_ARCH_CHARACTERS = 64  # of an architecture's name
_MAX_PER_LAYER_ARRAY = 1 << 14  # elements; longer arrays belong to the vocabulary
_MAX_LAYERS = 1 << 16
_F16_BYTES = 2
ASSISTANTS = ("gemma4_assistant", "gemma4_unified_assistant")  # in transformers
# Default intervals of attention layers by architecture (llama.cpp, src/models).
_ATTENTION_INTERVALS = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}


def read_model_facts(reference: Path, *, tokens: bool = True) -> ModelFacts:
    """Read a GGUF file, any part of a split model, or a folder with config.json; hf: before it is left out.
    tokens: read the vocabulary, which takes longer. Raises ModelError for damaged or other files."""
    from paceline.models.headers.hub_folder import read_folder

    path = model_path(reference)
    folder = os.path.isdir(path)  # noqa: PTH112  # Path's may raise
    return read_folder(path, tokens=tokens) if folder else read_gguf(path, tokens=tokens)


def facts_or_note(path: Path, note: Callable[[str], object], *, tokens: bool = False) -> ModelFacts | None:
    """Read a model, by default without its vocabulary. If that fails, call `note` and return None."""
    try:
        return read_model_facts(path, tokens=tokens)
    except (PacelineError, OSError) as error:
        note(f"header of {path.name}: {error}")
        return None


def read_gguf(path: Path, *, tokens: bool = True) -> ModelFacts:
    """Read a GGUF model. Raises ModelError for a damaged file or a missing part.
    Absent special tokens and flags stay unset; models/headers/vocabulary.py knows llama.cpp's defaults."""
    parts = read_parts(path, tokens=tokens)
    first = parts[0]
    arch = first.text("general.architecture")
    if not arch or len(arch) > _MAX_ARCH_CHARACTERS or not arch.isprintable():
        raise ModelError(f"{path}: names no architecture: it is no language model")
    memory = facts.cache_kind(arch)
    name, file = first.text("general.name"), first.path
    return ModelFacts(
        files=tuple(part.path for part in parts),
        format="gguf",
        # Some converters write "models" or a hash.
        name=printable_name(name) if family_of([name]) else file.stem,
        arch=arch,
        family=family_of([first.text("general.basename"), name, file.name]),
        parameters=sum(tensor.elements for part in parts for tensor in part.tensors.values()) or None,
        quantisation=_quantisation(first),
        size=sum(part.size for part in parts),
        n_ctx=first.number(f"{arch}.context_length"),
        n_layers=first.number(f"{arch}.block_count"),
        n_vocab=first.length(_TOKENS) or first.number(f"{arch}.vocab_size"),
        experts=first.number(f"{arch}.expert_count"),
        experts_used=first.number(f"{arch}.expert_used_count"),
        memory=memory,
        sliding_window=first.number(f"{arch}.attention.sliding_window"),
        kv_bytes=0 if memory == facts.RECURRENT else kv_bytes_per_token(first, arch),
        pooling=first.number(f"{arch}.pooling_type") or int(first.flag(f"{arch}.attention.causal") is False),
        mtp=mtp_state(parts, arch),
        mtp_cost=mtp_cost(parts, arch),
        chat_template=first.text("tokenizer.chat_template") or None,
        tokenizer=read_tokenizer(first) if tokens else None,
    )


def read_parts(path: Path, *, tokens: bool) -> list[GGUFFile]:
    """Return the headers of all parts in order. tokens: with the vocabulary. Raises ModelError."""

    def keep(key: str, count: int) -> bool:
        per_layer = count <= _MAX_PER_LAYER_ARRAY and not key.startswith("tokenizer.")
        return per_layer or (tokens and key in (_TOKENS, _TYPES))

    header = GGUFFile(path, keep)
    count = header.number("split.count")
    if count <= 1:
        return [header]
    paths = split_part_paths(path)
    if len(paths) != count:
        why = f"is one of {count} parts, and llama.cpp finds them by their names only"
        raise ModelError(f"{path}: {why}: name them NAME-00001-of-{count:05d}.gguf and so on")
    if missing := next((part for part in paths if not exists(part)), None):
        raise ModelError(f"{missing}: is missing, one of {count} parts of a model: fetch it too")
    parts = [header if part == path else GGUFFile(part, keep) for part in paths]
    for i, part in enumerate(parts):
        if part.number("split.count") != count or part.number("split.no") != i:
            raise ModelError(f"{part.path}: is not part {i + 1} of {count}, as its name says: fetch it again")
    return parts


def split_part_paths(path: Path) -> list[Path]:
    """Return the paths of all parts by the name of one, existing or not; of an unsplit model its path."""
    named = _PART.fullmatch(path.name)
    count = int(named[3]) if named else 0
    if named is None or not 1 <= int(named[2]) <= count:
        return [path]
    return [path.with_name(f"{named[1]}-{i:05d}-of-{named[3]}{named[4]}") for i in range(1, count + 1)]


def read_tokenizer(header: GGUFFile) -> TokenizerFacts | None:
    """Return the tokenizer; None for a model without a vocabulary."""
    model = header.text("tokenizer.ggml.model")
    if model in ("", "no_vocab", "none"):
        return None
    texts, types = header.texts(_TOKENS), header.numbers(_TYPES)
    special: dict[str, int] = {}
    for word, role in _ROLES.items():
        token = header.numbers(f"tokenizer.ggml.{word}_token_id")
        if token and token[0] < len(texts):  # llama.cpp ignores an invalid id, too
            special[role] = token[0]
    return TokenizerFacts(
        kind=_KINDS.get(model, printable_name(model)),
        pre=printable_name(header.text("tokenizer.ggml.pre")) or ("gemma4" if model == "gemma4" else ""),
        texts=texts,
        types=types[: len(texts)],
        special=special,
        ends=end_tokens(texts, special),
        add_bos=header.flag("tokenizer.ggml.add_bos_token"),
        add_eos=header.flag("tokenizer.ggml.add_eos_token"),
        add_space_prefix=header.flag("tokenizer.ggml.add_space_prefix"),
    )


def mtp_state(parts: Sequence[GGUFFile], arch: str) -> str:
    """Return whether the model's layers for multi-token prediction can draft (TargetTraits.mtp)."""
    layers = _mtp_layers(parts[0], arch)
    if arch == "gemma4":
        return SEPARATE
    if arch not in facts.MTP_ARCHS:
        return NO_GRAPH if layers else ABSENT
    if not layers:
        return ABSENT if arch in facts.SOMETIMES_MTP else STRIPPED
    name = f"blk.{layers[0]}.nextn.eh_proj.weight"
    return USABLE if any(name in part.tensors for part in parts) else STRIPPED


def _mtp_layers(first: GGUFFile, arch: str) -> range:
    end = first.number(f"{arch}.block_count")
    if end > _MAX_LAYERS:
        return range(0)
    return range(max(0, end - first.number(f"{arch}.nextn_predict_layers")), end)


def mtp_cost(parts: Sequence[GGUFFile], arch: str) -> float:
    """See ModelFacts. A step reads its layer and the output matrix; of experts those that a token uses."""
    used, experts = (parts[0].number(f"{arch}.expert_{what}count") for what in ("used_", ""))
    read = {
        tensor.name: tensor.length * (used / experts if experts and "_exps" in tensor.name else 1.0)
        for part in parts
        for tensor in part.tensors.values()
    }
    layers = _mtp_layers(parts[0], arch)
    own = [name for name in read if (of := _LAYER.match(name)) and int(of[1]) in layers]
    return facts.step_cost(read, own, len(layers), "token_embd.weight", "output.weight")


def is_assistant(path: Path) -> bool:
    """Return whether a file or folder only has layers for multi-token prediction that read another model's
    cache. A GGUF file's first key is the architecture; nothing else is read."""
    with suppress(ModelError):
        if os.path.isdir(path):  # noqa: PTH112  # Path's may raise
            return read_json(path / "config.json").get("model_type") in ASSISTANTS
        with open_regular_file(path) as file:
            return facts.ASSISTANT_ARCH.encode() in file.read(96)
    return False


def kv_bytes_per_token(header: GGUFFile, arch: str) -> int:
    """Return the bytes of a token in the KV cache at F16; 0 if unknown.
    Sliding-window layers and shared caches count in full."""

    def number(key: str) -> int:
        return header.number(f"{arch}.{key}")

    def at_layer(values: Sequence[int], i: int) -> int:
        """Return the value of layer i from a list of one per layer, or of one for all layers."""
        return values[i] if i < len(values) else values[-1] if len(values) == 1 else 0

    heads = header.numbers(f"{arch}.attention.head_count")
    kv_heads = header.numbers(f"{arch}.attention.head_count_kv") or heads
    blocks = number("block_count")
    attention_blocks = blocks - min(blocks, number("nextn_predict_layers"))  # without multi-token prediction
    if not any(heads) or attention_blocks > _MAX_LAYERS:
        return 0
    head_dim = number("embedding_length") // max(heads)
    # Multi-head latent attention (DeepSeek) has one vector for keys and values.
    mla = f"{arch}.attention.key_length_mla" in header.values
    value_dim = 0 if mla else number("attention.value_length") or head_dim
    recurrent = header.numbers(f"{arch}.attention.recurrent_layers")
    interval = number("full_attention_interval") or _ATTENTION_INTERVALS.get(arch, 1)
    n_heads = sum(
        at_layer(kv_heads, i)
        for i in range(attention_blocks)
        if (not at_layer(recurrent, i) if len(recurrent) > 1 else (i + 1) % interval == 0)
    )
    key_dim = number("attention.key_length") or head_dim
    return _F16_BYTES * (key_dim + value_dim) * n_heads


def _quantisation(header: GGUFFile) -> str:
    from gguf.constants import LlamaFileType

    number = header.number("general.file_type") & ~LlamaFileType.GUESSED
    if "general.file_type" not in header.values or number not in {int(kind) for kind in LlamaFileType}:
        return ""
    return str(LlamaFileType(number).name).removeprefix("MOSTLY_").removeprefix("ALL_")
