"""Draft heads as GGUF files, as llama.cpp's converter writes them: EAGLE-3 and DFlash, which is DSpark with a
Markov head (src/models/eagle3.cpp and dflash.cpp, conversion/llama.py and qwen.py)."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.heads.config import SPECULATORS_KEY, HeadConfig, read_config
from paceline.heads.decoder import LayerShape
from paceline.heads.entries import MAX_COUNT, prefix_errors
from paceline.models.headers.gguf_file import GGUFFile, TensorRows
from paceline.speculative.errors import ModelError

EAGLE3, DFLASH = "eagle3", "dflash"  # llama.cpp's architectures
PEEKED_BYTES = 1 << 16  # the first keys, before the tokenizer's
ARCHITECTURE = re.compile(rb"general\.architecture\x08\0{3}(.)\0{7}", re.DOTALL)
SEES_ALL = 1 << 30  # a window
# Our names of weights, and llama.cpp's.
NAMES = {
    "fc": "fc",
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "markov_head.markov_w1": "markov_w1",
    "markov_head.markov_w2": "markov_w2",
}
ENCODER_NORMS = {EAGLE3: "input_norm", DFLASH: "hidden_norm"}
LLAMA_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LAYER_NAMES = {  # attn_norm norms EAGLE-3's embeddings, attn_norm_2 its hidden states
    **LLAMA_LAYER_NAMES,
    "hidden_norm": "attn_norm_2",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
DRAFT_IDS, ROPE_FACTORS, MARKOV = "d2t", "rope_freqs.weight", "markov_w1.weight"
UNUSED = {DRAFT_IDS, ROPE_FACTORS, "conf_proj.weight", "conf_proj.bias"}  # besides the names above
INT64 = 27  # a type of ggml
# The keys of config.json and of a layer there, and llama.cpp's.
KEYS = {
    "input_embedding_scale": "embedding_scale",
    **{key: key for key in ("target_hidden_size", "norm_before_residual", "norm_before_fc", "block_size")},
    "sample_from_anchor": "sample_from_anchor",
}
LAYER_KEYS = {
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "num_hidden_layers": "block_count",
    "sliding_window": "attention.sliding_window",
}


def sidecar_config(path: Path) -> HeadConfig | None:
    """Return the configuration of a head in a GGUF file; None for another file.
    Raises ModelError or OSError."""
    with path.open("rb") as opened:
        start = opened.read(PEEKED_BYTES)
    found = ARCHITECTURE.search(start) if start.startswith(b"GGUF") else None
    arch = "" if found is None else start[found.end() :][: found[1][0]].decode(errors="replace")
    return _config(_open(path)) if arch in ENCODER_NORMS else None


def _open(path: Path) -> GGUFFile:
    return GGUFFile(path, lambda key, count: count <= MAX_COUNT and not key.startswith("tokenizer."))


def _value(file: GGUFFile, key: str) -> Any:
    """Return an unchecked value of the architecture's metadata, None if it is absent."""
    found = file.values.get(f"{file.text('general.architecture')}.{key}")
    return found.tolist() if isinstance(found, np.ndarray) else found


def layer_values(file: GGUFFile) -> dict[str, Any]:
    """Return the dimensions of a layer under the names of config.json, unchecked."""
    return {ours: _value(file, theirs) for ours, theirs in LAYER_KEYS.items()}


def _config(file: GGUFFile) -> HeadConfig | None:
    """Translate the metadata into the layout of speculators, whose reader checks it."""
    if (arch := file.text("general.architecture")) not in ENCODER_NORMS:
        return None
    value, layer = partial(_value, file), layer_values(file)
    slides = np.ravel(value("attention.sliding_window_pattern") or [])
    layer["layer_types"] = ["sliding_attention" if it else "full_attention" for it in slides]
    layer["vocab_size"] = n_vocab = file.length("tokenizer.ggml.tokens") or value("vocab_size")
    if (kind := value("rope.scaling.type")) not in (None, "none"):
        layer["rope_scaling"] = {"rope_type": kind, "factor": value("rope.scaling.factor")}
    drafted, markov = file.tensors.get(DRAFT_IDS), file.tensors.get(MARKOV)
    is_causal, prefix = bool(value("attention.causal")) and arch == DFLASH, "eagle_" * (arch == EAGLE3)
    entries = {
        **{ours: value(theirs) for ours, theirs in KEYS.items()},
        SPECULATORS_KEY: arch if markov is None else "dspark",
        "draft_vocab_size": n_vocab if drafted is None else drafted.elements,
        f"{prefix}aux_hidden_state_layer_ids": value("target_layers"),
        "sliding_window_non_causal": not is_causal,
        "mask_token_id": file.values.get("tokenizer.ggml.mask_token_id"),
        "markov_rank": None if markov is None else (*markov.shape, 0)[0],
        "transformer_layer_config": layer,
        "speculators_config": {"verifier": {"name_or_path": file.text("general.base_model.0.name")}},
    }
    with prefix_errors(file.path):
        config = read_config(entries, "the header")
    assert config is not None
    plain = {
        "attention.scale": float(np.float32(config.shape.head_dim**-0.5)),
        "attention.value_scale": 1.0,
        "hidden_act": "silu",
        "rope.dimension_count": config.shape.head_dim,
    }
    for key, expected in plain.items():
        if (found := value(key)) not in (None, 0, expected):
            raise _unknown_variant(file.path, arch, f"{key} is {found}")
    if not is_causal:
        return config
    windows = tuple(window or SEES_ALL for window in config.windows or (0,) * config.n_layers)
    return replace(config, windows=windows, causal_windows=True)


def _unknown_variant(path: Path, arch: str, why: str) -> ModelError:
    return ModelError(f"{path}: is a variant of {arch} that Paceline does not know: {why}")


def read_sidecar(path: Path, config: HeadConfig) -> tuple[HeadConfig, dict[str, NDArray[Any]]]:
    """Return the configuration with what only weights tell, and the weights under our names.
    Raises ModelError or OSError."""
    file = _open(path)
    arch = file.text("general.architecture")
    layers = [f"layers.{i}.{name}" for i in range(config.n_layers) for name in LAYER_NAMES]
    names = [f"{name}.weight" for name in (*NAMES, ENCODER_NORMS[arch], *layers)]
    ours = {gguf_name(name, arch): name for name in names} | {ROPE_FACTORS: ROPE_FACTORS}
    if others := set(file.tensors) - set(ours) - UNUSED:
        raise _unknown_variant(path, arch, f"it has {min(others)}")
    weights = dict[str, NDArray[Any]]()
    try:
        for name, tensor in file.tensors.items():
            if name == DRAFT_IDS:
                ids = file.weights(tensor).view("<i8" if tensor.type == INT64 else "u1")
                weights[name] = ids - np.arange(len(ids))  # the folders' files have offsets
            elif name in ours:
                rows = TensorRows(file, tensor).rows(slice(None)).reshape(tensor.shape[::-1])
                if arch == EAGLE3:  # DFlash's graph rotates halves, as ours do
                    rows = reordered(ours[name], rows, config.shape, (-1, 2))
                weights[ours[name]] = rows
    except (ValueError, IndexError) as error:
        raise ModelError(f"{path}: its weights do not fit its configuration ({error})") from error
    if (factors := weights.pop(ROPE_FACTORS, None)) is not None:
        scaling = {"rope_type": "factors", "factors": factors}
        config = replace(config, shape=replace(config.shape, rope_scaling=scaling))
    if arch == DFLASH and "embed_tokens.weight" in weights:
        weights.setdefault("lm_head.weight", weights["embed_tokens.weight"])
    return config, weights


def gguf_name(name: str, arch: str) -> str:
    """Return llama.cpp's name of a weight."""
    stem = name.removesuffix(".weight")
    if stem == ENCODER_NORMS.get(arch):
        return "enc.output_norm.weight"
    if stem in NAMES:
        return f"{NAMES[stem]}.weight"
    _layers, number, rest = stem.split(".", 2)
    return f"blk.{number}.{LAYER_NAMES[rest]}.weight"


def reordered(
    name: str, weight: NDArray[np.float32], shape: LayerShape, parts: tuple[int, int]
) -> NDArray[np.float32]:
    """Reorder the rows of a query or key matrix, of no other weight: for parts of (2, -1) from halves to
    neighbours, as llama.cpp rotates them, and back for (-1, 2)."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return weight
    heads = shape.heads if name.endswith("q_proj.weight") else shape.kv_heads
    return weight.reshape(heads, *parts, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
