"""Files of heads: a folder with config.json, and weights as safetensors (or as PyTorch's pickles); or a GGUF
file (sidecar.py).

A trained head is written in speculators' layout (EAGLE-3, blocks), or in the same style for other kinds."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.heads.config import (
    EAGLE3_VARIANTS,
    KIND_KEY,
    SPECULATORS_KEY,
    VERSION,
    HeadConfig,
    as_kangaroo,
    layer_entries,
    read_config,
)
from paceline.heads.entries import prefix_errors
from paceline.heads.sidecar import read_sidecar, sidecar_config
from paceline.models.stores.reference import HEAD_CONFIG, HEAD_EXTRAS, HEAD_KEYS, HEAD_WEIGHTS
from paceline.speculative.errors import MissingExtraError, ModelError, UsageError
from paceline.system.atomic import atomic_write, write_json
from paceline.system.strict_json import parse_json

CONFIG, WEIGHTS = HEAD_CONFIG, HEAD_WEIGHTS[0]
CARD, SAMPLE = HEAD_EXTRAS
# Rows of the target's embedding, by which it is recognised; other programs would refuse unknown weights.
SAMPLE_NAME = "embedding"
MAX_CONFIG_BYTES = 1 << 20
MAX_HEADER_BYTES = 100_000_000  # of safetensors
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}
# speculators' names and classes.
PUBLISHED = {"eagle3": ("eagle3", "Eagle3DraftModel"), "block": ("dspark", "DSparkDraftModel")}
LAYER_NAME = re.compile(r"^midlayer\.")  # SafeAILab's; its older files number the layer
MEDUSA_NAME = re.compile(r"(\d+)\.(\d+)\.(linear\.\w+|weight|bias)")  # head, part and weight

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class HeadFiles:
    """A head read from its folder or file. sample: rows of its target's embedding, if it has them."""

    path: Path
    config: HeadConfig
    weights: Arrays
    sample: NDArray[np.float32] | None


def head_config(path: Path) -> HeadConfig | None:
    """Return the configuration of a head's folder or file; None for anything else. Raises ModelError."""
    file = path / CONFIG
    try:
        if path.is_file():
            return sidecar_config(path)
        if not file.is_file() or file.stat().st_size > MAX_CONFIG_BYTES:
            return None
        data = parse_json(file.read_bytes())
    except OSError:
        return None  # whoever opens the folder as a model reports it
    except ValueError as error:
        if any(path.glob("tokenizer*")):  # a model, whose backend may read more
            return None
        raise ModelError(f"{path}: {CONFIG} is damaged ({error}): fetch or train it again") from error
    is_model = any(path.glob("tokenizer*")) and HEAD_KEYS.isdisjoint(data)
    config = None
    # The config.json of a model may resemble a head's.
    with suppress(ModelError) if is_model else nullcontext(), prefix_errors(path):
        config = read_config(data)
    # A Llama of one layer has the same config.json as an EAGLE head, which comes without a tokenizer.
    may_be_llama = config is not None and config.kind == "eagle" and KIND_KEY not in data
    if may_be_llama and any(path.glob("tokenizer*")):
        return None
    return as_kangaroo(config) if config is not None and may_be_llama and lacks_fc(path) else config


def lacks_fc(path: Path) -> bool:
    """Return whether no weight is named fc.weight, as in published Kangaroo adapters and unlike in EAGLE."""
    try:
        file = weights_file(path)
        with file.open("rb") as opened:
            if file.suffix == ".safetensors":
                size = min(int.from_bytes(opened.read(8), "little"), MAX_HEADER_BYTES)
                return b'"fc.weight"' not in opened.read(size)
            with zipfile.ZipFile(opened) as archive:  # a pickle of the names beside the data
                name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
                return b"fc.weight" not in archive.read(name)
    except (OSError, ModelError, ValueError, OverflowError, zipfile.BadZipFile, StopIteration):
        return False  # reading the weights reports it


def read_head(path: Path) -> HeadFiles:
    """Read a head. Raises UsageError for another folder, ModelError for a damaged one."""
    config = head_config(path)
    if config is None:
        raise UsageError(f"{path}: is no draft head: it has no config.json of one")
    try:
        if path.is_file():
            return HeadFiles(path, *read_sidecar(path, config), None)
        file = weights_file(path)
        found = read_safetensors(file) if file.suffix == ".safetensors" else _unpickled(file)
        weights = {renamed(str(name), config): value for name, value in found.items()}
        file = path / SAMPLE
        sample = read_safetensors(file).get(SAMPLE_NAME) if file.is_file() else None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from error
    return HeadFiles(path, config, weights, sample)


def weights_file(path: Path) -> Path:
    """Return the file of a head's weights. Raises ModelError without one."""
    if path.is_file():
        return path
    for name in HEAD_WEIGHTS:
        if (path / name).is_file():
            return path / name
    raise ModelError(f"{path}: has no weights ({WEIGHTS})")


def renamed(name: str, config: HeadConfig) -> str:
    """Return our name of a published weight."""
    if config.kind == "medusa" and (found := MEDUSA_NAME.fullmatch(name)):
        head, part, rest = found.groups()
        return f"blocks.{head}.{part}.{rest}" if rest.startswith("linear") else f"lm_head.{head}.{rest}"
    return LAYER_NAME.sub("layers.0.", name)


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Read all tensors; floats become float32. Raises ModelError for a damaged file, or OSError."""
    from safetensors import SafetensorError, deserialize

    try:
        entries: Any = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
        return {name: _array(entry) for name, entry in entries}
    except (SafetensorError, KeyError, ValueError) as error:
        raise ModelError(f"{path}: is cut short or damaged ({error}): download or train it again") from error


def _array(entry: Mapping[str, Any]) -> NDArray[Any]:
    kind, shape, data = entry["dtype"], entry["shape"], entry["data"]
    if kind == "BF16":  # the upper half of a float32
        wide = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    out = np.frombuffer(data, TYPES[kind]).reshape(shape)
    return out.astype(np.float32) if out.dtype.kind == "f" else out.copy()


def _unpickled(path: Path) -> dict[str, NDArray[Any]]:
    """Read PyTorch's format, which needs torch; only tensors are let in."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError(f"{path}: is in PyTorch's format: pip install 'paceline[hf]'") from error
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        return {
            name: (value.float() if value.is_floating_point() else value).numpy()
            for name, value in state.items()
        }
    except Exception as error:  # PyTorch raises its own errors, pickle's and others
        raise ModelError(
            f"{path}: is damaged, or holds more than tensors, and is not opened: {error!r}"
        ) from error


def write_safetensors(path: Path, weights: Arrays) -> None:
    """Write tensors; float32 becomes bfloat16, rounded to nearest. Raises OSError."""
    from safetensors import TensorSpec, serialize

    stored = {name: _stored(np.ascontiguousarray(value)) for name, value in weights.items()}
    specs = {
        name: TensorSpec(dtype=kind, shape=data.shape, data_ptr=data.ctypes.data, data_len=data.nbytes)
        for name, (kind, data) in stored.items()
    }
    with atomic_write(path) as part:
        part.write_bytes(serialize(specs, {"format": "pt"}))


def _stored(value: NDArray[Any]) -> tuple[str, NDArray[Any]]:
    """Return safetensors' name of a type, and the data in it."""
    if value.dtype != np.float32:
        return value.dtype.name, value
    bits = value.view(np.uint32)
    return "bfloat16", ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def write_head(
    folder: Path,
    config: HeadConfig,
    weights: Mapping[str, NDArray[Any]],
    ids: NDArray[np.int64],
    sample: NDArray[np.float32],
    card: Mapping[str, Any],
) -> None:
    """Write a head into a folder; weights come first, so that a folder with config.json is complete.
    ids: the draft vocabulary. sample: see heads/target.py. Raises OSError."""
    size = config.target.vocab
    out: dict[str, NDArray[Any]] = {name: np.asarray(value, np.float32) for name, value in weights.items()}
    if len(ids) != size:
        is_drafted = np.zeros(size, np.bool_)
        is_drafted[ids] = True
        out |= {"d2t": ids - np.arange(len(ids)), "t2d": is_drafted}
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / WEIGHTS, out)
    write_safetensors(folder / SAMPLE, {SAMPLE_NAME: sample})
    for name, data in ((CARD, card), (CONFIG, config_entries(config))):
        write_json(folder / name, data)


def config_entries(config: HeadConfig) -> dict[str, Any]:
    """Return the head's config.json."""
    if config.kind not in PUBLISHED:
        exits = {"exits": [asdict(facts) for facts in config.exits], "default_exit": config.default_exit}
        return {
            KIND_KEY: config.kind,
            "version": VERSION,
            "target": asdict(config.target),
            "draft_vocab_size": config.draft_vocab,
            "layer_ids": list(config.layer_ids),
            "num_hidden_layers": config.n_layers,
            "depth": config.depth,
            "layer": layer_entries(config.shape),
            **(exits if config.exits else {}),
        }
    name, class_name = PUBLISHED[config.kind]
    layer = layer_entries(config.shape) | {
        "model_type": "llama" if name == "eagle3" else "qwen3",
        "num_hidden_layers": config.n_layers,
        "vocab_size": config.target.vocab,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }
    out = {
        SPECULATORS_KEY: name,
        "architectures": [class_name],
        "draft_vocab_size": config.draft_vocab,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": name,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.depth or 5}],
            "verifier": {"name_or_path": config.target.name, "architectures": []},
        },
        "target_hidden_size": config.target.hidden,
        "paceline": {"version": VERSION, "target": asdict(config.target)},
    }
    if name == "eagle3":
        return out | {
            "eagle_aux_hidden_state_layer_ids": list(config.layer_ids),
            **{name: getattr(config, name) for name in EAGLE3_VARIANTS},
        }
    return out | {
        "aux_hidden_state_layer_ids": list(config.layer_ids),
        "block_size": config.depth + (not config.from_root),
        "mask_token_id": config.mask_token,
        "markov_rank": config.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": False,
        "sample_from_anchor": config.from_root,
    }
