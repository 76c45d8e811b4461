"""Models pulled by Ollama, and defects of its store."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from model_stores import ollama_blob, ollama_manifest, ollama_model
from paceline.cli.references import resolved
from paceline.models.stores import places
from paceline.models.stores.hub_cache import stated_sha256
from paceline.models.stores.ollama_store import candidates, find_ollama_model
from paceline.models.stores.reference import LocalFile, parse
from paceline.models.stores.search import FolderSearch
from paceline.speculative.errors import UsageError

LIBRARY = "registry.ollama.ai/library"
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
    monkeypatch.setattr(places, "OLLAMA_SERVICE", tmp_path / "service")
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
