"""Published draft heads in small: their reference values, and folders of them as a hub has them."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paceline.backends.interface import OutputHead
from paceline.backends.toy import ToyTarget
from paceline.heads.files import read_head
from paceline.heads.target import HeadTarget
from paceline.speculative.tree import chain

HEADS = Path(__file__).parent / "data" / "heads"
REFERENCE_LAYERS = 6  # of a reference's target
TOLERANCE = 1e-4  # of logits
Container = Literal["safetensors", "torch"]
Dtype = Literal["F32", "F16", "BF16"]
FILES = {
    "speculators": ("model.safetensors", "pytorch_model.bin"),
    "safeailab": ("model.safetensors", "pytorch_model.bin"),
    "kangaroo": ("model.safetensors", "pytorch_model.bin"),
    "medusa": ("medusa_lm_head.safetensors", "medusa_lm_head.pt"),
}
"""The file of the weights, by layout: as safetensors, and as torch saves it."""


@dataclass(frozen=True)
class HeadReference:
    """A head with its inputs, and what its authors' class computes from them (tools/heads)."""

    name: str
    about: dict[str, Any]
    config: dict[str, Any]
    weights: dict[str, np.ndarray]
    target: dict[str, np.ndarray]
    values: dict[str, np.ndarray]


class ReferenceTarget(ToyTarget):
    """A target of the dimensions of a reference, which lends what the head's files lack."""

    def __init__(self, reference: HeadReference) -> None:
        features = reference.values["features"]
        n_layers = 3 if reference.about["kind"] in ("eagle3", "dflash", "dspark") else 1
        super().__init__(96, width=features.shape[1] // n_layers, layers=REFERENCE_LAYERS)
        self._reference = reference

    def token_embeddings(self, tokens: Sequence[int]) -> Any:
        rows: np.ndarray = self._reference.target["model.embed_tokens.weight"][list(tokens)]
        return rows

    def output_head(self) -> OutputHead:
        target = self._reference.target
        found = [target[name] for name in ("lm_head.weight", "model.embed_tokens.weight") if name in target]
        return OutputHead(None, found[0]) if found else super().output_head()


def reference_names(*kinds: str) -> list[str]:
    """Return the names of all references, or of those of some kinds."""
    names = sorted(path.stem for path in HEADS.glob("*.npz"))
    return [name for name in names if not kinds or load_reference(name).about["kind"] in kinds]


def load_reference(name: str) -> HeadReference:
    """Read a reference file."""
    with np.load(HEADS / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    return HeadReference(
        name=name,
        about=json.loads(str(arrays.pop("about"))),
        config=json.loads(str(arrays.pop("config"))),
        weights={key[2:]: value for key, value in arrays.items() if key.startswith("w:")},
        target={key[2:]: value for key, value in arrays.items() if key.startswith("t:")},
        values={key: value for key, value in arrays.items() if key[1] != ":"},
    )


def write_layout(
    reference: HeadReference,
    folder: Path,
    *,
    container: Container = "safetensors",
    dtype: Dtype = "F32",
    config: dict[str, Any] | None = None,
) -> Path:
    """Write a head's folder as it is published. All weights are exact in every dtype."""
    folder.mkdir(parents=True, exist_ok=True)
    written = json.dumps(config or reference.config, indent=2)
    (folder / "config.json").write_text(written, encoding="utf-8")
    safetensors, saved_by_torch = FILES[reference.about["layout"]]
    if container == "safetensors":
        write_safetensors(folder / safetensors, reference.weights, dtype)
    else:
        write_with_torch(folder / saved_by_torch, reference.weights, dtype)
    return folder


def with_older_rope(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration of `speculators` as older releases of transformers write it."""
    layer = dict(config["transformer_layer_config"])
    layer |= {"rope_theta": layer.pop("rope_parameters")["rope_theta"], "rope_scaling": None}
    return config | {"transformer_layer_config": layer}


def zlab_config(config: dict[str, Any], target_layers: int = 6) -> dict[str, Any]:
    """Return a DFlash head's configuration as z-lab, its authors, write it.

    Its weights have the same names. It numbers the outputs of the target's layers, not the inputs.
    """
    layer = dict(config["transformer_layer_config"])
    rope = layer.pop("rope_parameters")
    return layer | {
        "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": config["block_size"],
        "dflash_config": {
            "mask_token_id": config["mask_token_id"],
            "target_layer_ids": [layer_id - 1 for layer_id in config["aux_hidden_state_layer_ids"]],
        },
        "dtype": "bfloat16",
        "num_target_layers": target_layers,
        "rope_scaling": None,
        "rope_theta": rope["rope_theta"],
    }


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], dtype: Dtype) -> None:
    """Write a safetensors file: a header of JSON, then the tensors one after another."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, tensor in tensors.items():
        kind, data = encode(tensor, dtype)
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": offsets}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def encode(tensor: np.ndarray, dtype: Dtype) -> tuple[str, bytes]:
    """Return the dtype's name in safetensors, and the data."""
    if tensor.dtype == np.int64:
        return "I64", tensor.tobytes()
    if tensor.dtype == np.bool_:
        return "BOOL", tensor.tobytes()
    if dtype == "BF16":
        return dtype, (tensor.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return dtype, tensor.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()


def write_with_torch(path: Path, tensors: dict[str, np.ndarray], dtype: Dtype) -> None:
    """Write a state dictionary as `torch.save` does."""
    import torch

    kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    state = {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}
    torch.save({name: t.to(kind) if t.is_floating_point() else t for name, t in state.items()}, path)


def require_agreement(path: Path, reference: HeadReference) -> HeadTarget:
    """Load a head, and compare one greedy draft with its authors' one."""
    head = HeadTarget(read_head(path), ReferenceTarget(reference))
    values, kind = reference.values, reference.about["kind"]
    n = len(values["features"])
    features = values["features"].reshape(n, len(head.config.layer_ids), -1)
    session = head.open()
    if kind in ("dflash", "dspark"):
        n = int(values["anchors"][0])
        tokens, drafted = values["tokens"][: n + 1], values["draft_tokens"][0]
        expected = values["draft_logits"][0]
    elif kind == "medusa":
        expected = values["logits"][:, -1]
        tokens = drafted = np.zeros(n + 1, int)
    else:
        tokens, drafted, expected = values["tokens"][: n + 1], values["draft_tokens"], values["draft_logits"]
    session.observe(0, features[:n])
    session.extend(tokens.tolist())
    _, rows = session.compute(chain(drafted[: len(expected) - 1].tolist(), "x"))
    assert len(rows) == len(expected)
    assert np.abs(np.array(rows) - expected).max() < TOLERANCE
    full = head.scatter(rows[0])
    assert len(full) == 96
    assert np.isfinite(full).sum() == len(rows[0])
    if kind != "medusa":
        assert full.argmax() == drafted[0]  # the target's own ids
    return head
