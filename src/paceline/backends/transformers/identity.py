"""What the costs of a transformers model depend on. They are kept on disk by it, so what it says must not
change."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.backends.transformers.loading import libraries
from paceline.models.names import place_of
from paceline.system.identity import fingerprint

# How HfTarget runs a model where nothing else is said.
SETTINGS: Mapping[str, Any] = {
    "threads": 1,
    "device": "auto",
    "dtype": "auto",
    "attention": "auto",
}
WEIGHTS = ("*.safetensors", "*.bin", "*.json", "tokenizer.model")


def identity(path: Path, settings: Mapping[str, Any], /) -> dict[str, Any]:
    """Raises OSError where `path` is not there and MissingExtraError without the libraries."""
    return told(weights(place_of(path)), settings)


def identity_of(model: Any, settings: Mapping[str, Any], /) -> dict[str, Any]:
    """Of a model in memory: its configuration, and some of its numbers."""
    digest = hashlib.sha256(model.config.to_json_string().encode())
    for name, weight in model.named_parameters():
        digest.update(f"{name}{tuple(weight.shape)}{weight.flatten()[:4].tolist()}".encode())
    return told(digest.hexdigest(), settings)


def told(model: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    torch, transformers = libraries()
    return {
        "model": model,
        "engine": f"transformers {transformers.__version__}, torch {torch.__version__}",
        **{name: settings.get(name, usual) for name, usual in SETTINGS.items()},
    }


def weights(place: Path) -> str:
    """A fingerprint of a file, or of all files of a folder that say what the model is."""
    if place.is_file():
        return fingerprint(place)
    if not place.is_dir():
        raise FileNotFoundError(str(place))
    digest = hashlib.sha256()
    for file in sorted({file for pattern in WEIGHTS for file in place.glob(pattern)}):
        digest.update(f"{file.name}\0{fingerprint(file)}\0".encode())
    return digest.hexdigest()
