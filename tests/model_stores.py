"""Stores as other programs keep them, made for a test."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

OLLAMA = "application/vnd.ollama.image."
REVISION = "0123456789abcdef0123456789abcdef01234567"


def ollama_blob(root: Path, source: Path) -> tuple[str, int]:
    """Copy a file into Ollama's blobs and return its digest and size."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    shutil.copy(source, root / "blobs" / f"sha256-{digest}")
    return f"sha256:{digest}", source.stat().st_size


def ollama_manifest(root: Path, name: str, said: Any) -> Path:
    """name: HOST/NAMESPACE/MODEL/TAG. said: the layers, or the whole text."""
    path = root / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(said, list):
        layers = [{"mediaType": OLLAMA + kind, "digest": digest, "size": n} for kind, digest, n in said]
        said = json.dumps({"schemaVersion": 2, "config": {}, "layers": layers})
    path.write_text(said)
    return path


def ollama_model(root: Path, name: str, source: Path) -> Path:
    """The model's file."""
    digest, size = ollama_blob(root, source)
    ollama_manifest(root, name, [("template", f"sha256:{'0' * 64}", 5), ("model", digest, size)])
    return root / "blobs" / digest.replace(":", "-")


def hub_file(
    root: Path, repository: str, name: str, source: Path, revision: str = REVISION, main: bool = True
) -> Path:
    """A file of a repository in the Hugging Face cache: the link to it."""
    folder = root / f"models--{repository.replace('/', '--')}"
    blob = folder / "blobs" / hashlib.sha256(source.read_bytes()).hexdigest()
    link = folder / "snapshots" / revision / name
    for path in (blob, link, folder / "refs" / "main"):
        path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, blob)
    link.symlink_to(Path(*[".."] * len(link.parent.relative_to(folder).parts), "blobs", blob.name))
    if main:
        (folder / "refs" / "main").write_text(revision)
    return link


def hub_folder(path: Path) -> Path:
    """A model as transformers saves it, with one weight."""
    path.mkdir(parents=True)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 2048}
    config |= {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 10}
    (path / "config.json").write_text(json.dumps(config))
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    return path
