"""Ollama's store: names, and manifests that are not what they should be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from model_stores import OLLAMA, ollama_blob, ollama_manifest, ollama_model
from paceline.models.stores.ollama_store import candidates
from paceline.models.stores.search import FolderSearch

HOST = "registry.ollama.ai"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"GGUF and so on")
    return path


def found(root: Path) -> tuple[dict[str, Path], list[str]]:
    search = FolderSearch()
    return {candidate.reference: candidate.path for candidate in candidates(root, search)}, search.notes


def test_links_to_manifests_and_lists_of_them_are_read(tmp_path: Path, weights: Path) -> None:
    digest, size = ollama_blob(tmp_path, weights)
    child = {"layers": [{"mediaType": f"{OLLAMA}model", "digest": digest, "size": size}]}
    inner = tmp_path / "inner.json"
    inner.write_text(json.dumps(child))
    said = {
        "mediaType": "application/vnd.ollama.manifest.list.v2+json",
        "manifests": [{"runner": "mlx", "layers": []}, {"digest": ollama_blob(tmp_path, inner)[0]}],
    }
    outer = tmp_path / "outer.json"
    outer.write_text(json.dumps(said))
    blob = tmp_path / "blobs" / ollama_blob(tmp_path, outer)[0].replace(":", "-")
    link = tmp_path / "manifests-v2/ollama.com/library/m/x"
    link.parent.mkdir(parents=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    # What the newer folder has is not looked up in the older one.
    ollama_manifest(tmp_path, f"{HOST}/library/m/x", "damaged")
    assert found(tmp_path) == ({"ollama:m:x": tmp_path / "blobs" / digest.replace(":", "-")}, [])


def test_what_is_not_complete_is_noted_with_what_to_do(tmp_path: Path, weights: Path) -> None:
    digest, size = ollama_blob(tmp_path, weights)
    for model, layer in {"cut": (digest, size + 1), "dangling": ("sha256:" + "b" * 64, size)}.items():
        ollama_manifest(tmp_path, f"{HOST}/library/{model}/x", [("model", *layer)])
    ollama_manifest(tmp_path, f"{HOST}/library/cloud/x", [])
    models, notes = found(tmp_path)
    assert models == {}
    assert sorted(notes) == [
        "ollama:cloud:x: has 0 GGUF files on this machine; only Ollama can run it",
        "ollama:cut:x: its file is not complete; ollama pull cut:x",
        "ollama:dangling:x: its file is not complete; ollama pull dangling:x",
    ]


@pytest.mark.parametrize(
    "said",
    [
        "",
        "{",
        '{"layers": 3}',
        '{"layers": [{"mediaType": 3, "digest": 4, "size": 5}]}',
        json.dumps({"layers": [{"mediaType": f"{OLLAMA}model", "digest": "sha256:../../../etc", "size": 1}]}),
        json.dumps({"layers": [{"mediaType": f"{OLLAMA}model", "digest": f"sha256:{'a' * 64}", "size": -1}]}),
        json.dumps(
            {"layers": [{"mediaType": f"{OLLAMA}model", "digest": f"sha256:{'a' * 64}", "size": "1"}]}
        ),
        '{"mediaType": "application/vnd.ollama.manifest.list.v2+json", "manifests": [4]}',
        '{"mediaType": "application/vnd.ollama.manifest.list.v2+json", "manifests": {"a": 4}}',
        "[" * 100_000,
        '{"a": "' + "x" * (2 << 20) + '"}',
        "\udcff",
    ],
    ids=lambda said: repr(said[:20]),
)
def test_a_manifest_that_is_none_is_one_note(tmp_path: Path, said: str) -> None:
    ollama_manifest(tmp_path, f"{HOST}/library/m/x", "{}").write_bytes(
        said.encode("utf-8", "surrogateescape")
    )
    models, notes = found(tmp_path)
    assert models == {}
    assert len(notes) == 1


def test_a_manifest_outside_of_the_store_is_not_read(tmp_path: Path, weights: Path) -> None:
    root = tmp_path / "store"
    blob = ollama_model(root, f"{HOST}/library/inside/x", weights)
    outside = tmp_path / "x"
    (root / "manifests" / HOST / "library/inside/x").rename(outside)
    (root / "manifests" / HOST / "library/inside/x").symlink_to(outside)
    models, notes = found(root)
    assert models == {}
    assert notes == ["ollama:inside:x: its manifest leads out of the store"]
    # A folder of the store may well be on another disk.
    outside.rename(root / "manifests" / HOST / "library/inside/x")
    (root / "manifests").rename(tmp_path / "elsewhere")
    (root / "manifests").symlink_to(tmp_path / "elsewhere")
    assert found(root) == ({"ollama:inside:x": blob}, [])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipes_and_links_in_circles_hold_nobody(tmp_path: Path, weights: Path) -> None:
    ollama_model(tmp_path, f"{HOST}/library/m/x", weights)
    os.mkfifo(tmp_path / "manifests" / HOST / "library/m/pipe")
    (tmp_path / "manifests" / HOST / "loop").symlink_to(tmp_path / "manifests")
    models, _ = found(tmp_path)
    assert list(models) == ["ollama:m:x"]
