"""Ollama's store: names and their files, and manifests that are not what they should be."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from model_stores import OLLAMA, ollama_blob, ollama_manifest, ollama_model
from paceline.cli.references import resolved
from paceline.models.stores import search as store_search
from paceline.models.stores.hub_cache import stated_sha256
from paceline.models.stores.ollama_store import candidates, find_ollama_model
from paceline.models.stores.reference import LocalFile, parse
from paceline.models.stores.search import FolderSearch
from paceline.speculative.errors import UsageError

HOST = "registry.ollama.ai"
LIBRARY = f"{HOST}/library"
LIST = '{"mediaType": "application/vnd.ollama.manifest.list.v2+json", "manifests": %s}'
ANY = f"sha256:{'a' * 64}"
WEIGHTS = b"GGUF weights"
HEX = hashlib.sha256(WEIGHTS).hexdigest()


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(WEIGHTS)
    return path


def test_a_model_is_its_blob_under_names_of_other_users_and_hosts_too(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    for name in (f"{LIBRARY}/small/latest", "registry.ollama.ai/me/mine/v1", "hf.co/me/mine/Q8_0"):
        blob = ollama_model(tmp_path, name, weights)
    for text in ("ollama:small", "ollama:me/mine:v1", "ollama:hf.co/me/mine:Q8_0"):
        assert find_ollama_model(parse(text)) == LocalFile(blob, len(WEIGHTS), HEX)
    with pytest.raises(UsageError, match="not in Ollama's store on this machine: `ollama pull me/mine:v2`"):
        find_ollama_model(parse("ollama:me/mine:v2"))


def test_an_adapter_is_refused_and_a_projector_is_noted(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    blob = ollama_blob(tmp_path, weights)
    for kind in ("adapter", "projector"):
        layers = [("model", *blob), (kind, f"sha256:{'0' * 64}", 5)]
        ollama_manifest(tmp_path, f"{LIBRARY}/{kind}/latest", layers)
    with pytest.raises(UsageError, match="has an adapter"):
        resolved("ollama:adapter")
    assert resolved("ollama:projector").name == blob[0].replace(":", "-")
    assert "images" in capsys.readouterr().err
    search = FolderSearch()
    assert [found.path for found in candidates(tmp_path, search)] == [resolved("ollama:projector")]
    assert "has an adapter" in " ".join(search.notes)


@pytest.fixture
def two_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The user's, and the service's."""
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(store_search, "OLLAMA_SERVICE", tmp_path / "service")
    return tmp_path / ".ollama/models", tmp_path / "service"


@pytest.mark.parametrize("wrong", ["dangling", "damaged", "elsewhere", "capitals", "both hosts"])
def test_what_is_listed_is_what_a_name_leads_to(
    two_stores: tuple[Path, Path], weights: Path, tmp_path: Path, wrong: str
) -> None:
    (tmp_path / "others").write_bytes(b"other weights")
    first, second = two_stores
    name = f"{LIBRARY}/small/latest"
    blob = ollama_model(first, name, weights)
    manifest = first / "manifests" / name
    ollama_model(second, name, tmp_path / "others")
    if wrong == "dangling":
        blob.unlink()
    elif wrong == "damaged":
        manifest.write_text("{")
    elif wrong == "elsewhere":
        manifest.rename(tmp_path / "manifest")
        manifest.symlink_to(tmp_path / "manifest")
    elif wrong == "capitals":
        manifest.write_text(manifest.read_text().replace(HEX, HEX.upper()))
    else:
        ollama_model(first, name.replace("registry.ollama.ai", "ollama.com"), tmp_path / "others")
    listed = [candidate for root in two_stores for candidate in candidates(root, FolderSearch())]
    assert {one.reference for one in listed} == {"ollama:small:latest"}
    found = find_ollama_model(parse("ollama:small"))
    assert found.path == listed[0].path
    assert found.sha256 == hashlib.sha256(found.path.read_bytes()).hexdigest()
    assert stated_sha256(found.path) == found.sha256


def found(root: Path) -> tuple[dict[str, Path], list[str]]:
    search = FolderSearch()
    return {candidate.reference: candidate.path for candidate in candidates(root, search)}, search.notes


def test_links_to_manifests_and_lists_of_them_are_read(tmp_path: Path, weights: Path) -> None:
    digest, size = ollama_blob(tmp_path, weights)
    child = {"layers": [{"mediaType": f"{OLLAMA}model", "digest": digest, "size": size}]}
    inner = tmp_path / "inner.json"
    inner.write_text(json.dumps(child))
    manifests = [{"runner": "mlx", "layers": []}, {"digest": ollama_blob(tmp_path, inner)[0]}]
    outer = tmp_path / "outer.json"
    outer.write_text(LIST % json.dumps(manifests))
    blob = tmp_path / "blobs" / ollama_blob(tmp_path, outer)[0].replace(":", "-")
    link = tmp_path / "manifests-v2/ollama.com/library/m/x"
    link.parent.mkdir(parents=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    # What the newer folder has is not looked up in the older one.
    ollama_manifest(tmp_path, f"{LIBRARY}/m/x", "damaged")
    assert found(tmp_path) == ({"ollama:m:x": tmp_path / "blobs" / digest.replace(":", "-")}, [])


def test_what_is_not_complete_is_noted_with_what_to_do(tmp_path: Path, weights: Path) -> None:
    digest, size = ollama_blob(tmp_path, weights)
    for model, layer in {"cut": (digest, size + 1), "dangling": ("sha256:" + "b" * 64, size)}.items():
        ollama_manifest(tmp_path, f"{LIBRARY}/{model}/x", [("model", *layer)])
    ollama_manifest(tmp_path, f"{LIBRARY}/cloud/x", [])
    models, notes = found(tmp_path)
    assert models == {}
    assert sorted(notes) == [
        "ollama:cloud:x: has 0 GGUF files on this machine; only Ollama can run it",
        "ollama:cut:x: its file is not complete; ollama pull cut:x",
        "ollama:dangling:x: its file is not complete; ollama pull dangling:x",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"layers": 3}',
        '{"layers": [{"mediaType": 3, "digest": 4, "size": 5}]}',
        *(
            json.dumps({"layers": [{"mediaType": f"{OLLAMA}model", "digest": digest, "size": size}]})
            for digest, size in (("sha256:../../../etc", 1), (ANY, -1), (ANY, "1"))
        ),
        *(LIST % manifests for manifests in ("[4]", '{"a": 4}')),
        "[" * 100_000,
        '{"a": "' + "x" * (2 << 20) + '"}',
        "\udcff",
    ],
    ids=lambda text: repr(text[:20]),
)
def test_damaged_manifest_is_one_note(tmp_path: Path, text: str) -> None:
    manifest = ollama_manifest(tmp_path, f"{LIBRARY}/m/x", "{}")
    manifest.write_bytes(text.encode("utf-8", "surrogateescape"))
    models, notes = found(tmp_path)
    assert (models, len(notes)) == ({}, 1)


def test_a_manifest_outside_of_the_store_is_not_read(tmp_path: Path, weights: Path) -> None:
    root = tmp_path / "store"
    blob = ollama_model(root, f"{LIBRARY}/inside/x", weights)
    outside = tmp_path / "x"
    manifest = root / "manifests" / LIBRARY / "inside/x"
    manifest.rename(outside)
    manifest.symlink_to(outside)
    assert found(root) == ({}, ["ollama:inside:x: its manifest leads out of the store"])
    # A folder of the store may well be on another disk.
    outside.rename(manifest)
    (root / "manifests").rename(tmp_path / "elsewhere")
    (root / "manifests").symlink_to(tmp_path / "elsewhere")
    assert found(root) == ({"ollama:inside:x": blob}, [])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipes_and_links_in_circles_hold_nobody(tmp_path: Path, weights: Path) -> None:
    ollama_model(tmp_path, f"{LIBRARY}/m/x", weights)
    os.mkfifo(tmp_path / "manifests" / LIBRARY / "m/pipe")
    (tmp_path / "manifests" / HOST / "loop").symlink_to(tmp_path / "manifests")
    assert list(found(tmp_path)[0]) == ["ollama:m:x"]
