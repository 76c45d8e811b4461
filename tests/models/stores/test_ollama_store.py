"""Ollama's store: names, and manifests that are not what they should be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from model_stores import OLLAMA, ollama_blob, ollama_manifest, ollama_model
from paceline.models.stores.ollama_store import candidates, manifests_of, short
from paceline.models.stores.search import FolderSearch

HOST = "registry.ollama.ai"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"GGUF and so on")
    return path


def found(root: Path, named: bool = True) -> tuple[dict[str, Path], list[str]]:
    search = FolderSearch()
    return {one.reference: one.path for one in candidates(root, search, named=named)}, search.notes


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ((HOST, "library", "llama3.2", "3b"), "llama3.2:3b"),
        (("ollama.com", "library", "llama3.2", "3b"), "llama3.2:3b"),
        ((HOST, "someone", "tuned", "latest"), "someone/tuned:latest"),
        (("hf.co", "bartowski", "Qwen-GGUF", "Q4_K_M"), "hf.co/bartowski/Qwen-GGUF:Q4_K_M"),
        (("localhost:5000", "library", "m", "x"), "localhost:5000/library/m:x"),
    ],
)
def test_names_are_as_ollama_lists_them(parts: tuple[str, ...], name: str) -> None:
    assert short(*parts) == name


def test_a_name_leads_to_the_file_that_its_manifest_names(tmp_path: Path, weights: Path) -> None:
    blob = ollama_model(tmp_path, f"{HOST}/library/llama3.2/3b", weights)
    assert found(tmp_path) == ({"ollama:llama3.2:3b": blob}, [])
    assert found(tmp_path, named=False) == ({str(blob): blob}, [])


def test_a_name_that_cannot_be_typed_is_a_path(tmp_path: Path, weights: Path) -> None:
    blob = ollama_model(tmp_path, "localhost:5000/library/m/x", weights)
    assert found(tmp_path) == ({str(blob): blob}, [])


def test_manifests_are_looked_for_as_ollama_does(tmp_path: Path) -> None:
    said = manifests_of(tmp_path, HOST, "library", "m", "x")
    assert [path.relative_to(tmp_path).parts[:2] for path in said] == [
        ("manifests-v2", HOST),
        ("manifests-v2", "ollama.com"),
        ("manifests", HOST),
        ("manifests", "ollama.com"),
    ]
    assert len(manifests_of(tmp_path, "hf.co", "user", "repo", "Q8_0")) == 2


def test_the_older_spelling_of_blobs_is_read(tmp_path: Path, weights: Path) -> None:
    blob = ollama_model(tmp_path, f"{HOST}/library/m/x", weights)
    older = blob.rename(blob.with_name(blob.name.replace("-", ":")))
    assert found(tmp_path) == ({"ollama:m:x": older}, [])


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


def test_a_list_of_manifests_has_an_end(tmp_path: Path, weights: Path) -> None:
    digest, size = ollama_blob(tmp_path, weights)
    whole = {"layers": [{"mediaType": f"{OLLAMA}model", "digest": digest, "size": size}]}
    for before, models in ((63, ["ollama:m:x"]), (64, [])):
        said = json.dumps({"manifests": [{"layers": []}] * before + [whole]})
        ollama_manifest(tmp_path, f"{HOST}/library/m/x", said)
        assert list(found(tmp_path)[0]) == models


def test_what_is_not_complete_is_noted_with_what_to_do(tmp_path: Path, weights: Path) -> None:
    digest, size = ollama_blob(tmp_path, weights)
    other = "sha256:" + "a" * 64
    (tmp_path / "blobs" / f"sha256-{'a' * 64}-partial").touch()
    for model, layer in {
        "cut": (digest, size + 1),
        "grown": (digest, size - 1),
        "downloading": (other, size),
        "dangling": ("sha256:" + "b" * 64, size),
    }.items():
        ollama_manifest(tmp_path, f"{HOST}/library/{model}/x", [("model", *layer)])
    ollama_manifest(tmp_path, f"{HOST}/library/cloud/x", [])
    ollama_manifest(tmp_path, f"{HOST}/library/mlx/x", [("tensor", digest, size)])
    models, notes = found(tmp_path)
    assert models == {}
    by_name = {note.split(":")[1]: note for note in notes}
    assert by_name["cut"].endswith("has 14 bytes, its manifest says 15; ollama pull cut:x")
    assert by_name["grown"].endswith("has 14 bytes, its manifest says 13; ollama pull grown:x")
    assert "is being downloaded" in by_name["downloading"]
    assert "its file is missing; ollama pull dangling:x" in by_name["dangling"]
    assert "may run in the cloud" in by_name["cloud"]
    assert "safetensors" in by_name["mlx"]
    assert len(notes) == 6


def test_an_adapter_is_told_of(tmp_path: Path, weights: Path) -> None:
    digest, size = ollama_blob(tmp_path, weights)
    ollama_manifest(tmp_path, f"{HOST}/library/m/x", [("adapter", digest, size), ("model", digest, size)])
    models, notes = found(tmp_path)
    assert list(models) == ["ollama:m:x"]
    assert len(notes) == 1
    assert "adapter, which is left out" in notes[0]


@pytest.mark.parametrize(
    "said",
    [
        "",
        "[]",
        "null",
        "{",
        '{"layers": 3}',
        '{"layers": [3]}',
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
        "1" * 5000,
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


def test_odd_names_are_noted_and_printable(tmp_path: Path, weights: Path) -> None:
    ollama_model(tmp_path, f"{HOST}/library/m/x\x1b[31m", weights)
    ollama_model(tmp_path, f"{HOST}/li..brary/m/x", weights)
    ollama_model(tmp_path, f"{HOST}/library/m/a b;rm", weights)
    (tmp_path / "manifests" / HOST / "library/m" / ".DS_Store").touch()
    models, notes = found(tmp_path)
    assert models == {}
    assert len(notes) == 3
    assert all(note.isprintable() and "no name that Ollama gives" in note for note in notes)


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
