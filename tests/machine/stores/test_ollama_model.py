"""What Ollama has pulled, and what is broken in its store."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import UsageError
from paceline.machine.stores.ollama_model import in_ollama
from paceline.machine.stores.reference import Held, parse

LIBRARY = "registry.ollama.ai/library"
WEIGHTS = b"GGUF weights"
HEX = hashlib.sha256(WEIGHTS).hexdigest()
LAYER = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{HEX}", "size": len(WEIGHTS)}
OTHER = {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:00", "size": 1}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / f"sha256-{HEX}").write_bytes(WEIGHTS)
    return tmp_path


def write_manifest(store: Path, said: Any, name: str = f"{LIBRARY}/small", tag: str = "latest") -> Path:
    path = store / "manifests" / name / tag
    path.parent.mkdir(parents=True)
    path.write_text(said if isinstance(said, str) else json.dumps(said))
    return path


def test_a_model_of_ollamas_is_its_blob(store: Path) -> None:
    write_manifest(store, {"layers": [OTHER, LAYER]})
    assert in_ollama(parse("ollama:small")) == Held(store / "blobs" / f"sha256-{HEX}", len(WEIGHTS), HEX)


def test_names_of_other_users_and_other_hosts(store: Path) -> None:
    write_manifest(store, {"layers": [LAYER]}, "registry.ollama.ai/me/mine", "v1")
    write_manifest(store, {"layers": [LAYER]}, "hf.co/me/mine", "Q8_0")
    assert in_ollama(parse("ollama:me/mine:v1")) == in_ollama(parse("ollama:hf.co/me/mine:Q8_0"))
    with pytest.raises(UsageError, match="not in Ollama's store on this machine: `ollama pull me/mine:v2`"):
        in_ollama(parse("ollama:me/mine:v2"))


def test_a_newer_store_has_other_folders_and_lists(store: Path) -> None:
    other = json.dumps({"layers": [OTHER]}).encode()
    child = json.dumps({"layers": [LAYER]}).encode()
    for data in (other, child):
        (store / "blobs" / f"sha256-{hashlib.sha256(data).hexdigest()}").write_bytes(data)
    digests = [{"digest": f"sha256:{hashlib.sha256(data).hexdigest()}"} for data in (other, child)]
    path = store / "manifests-v2/ollama.com/library/small/latest"
    path.parent.mkdir(parents=True)
    elsewhere = {"digest": "sha256:" + "2" * 64}
    path.write_text(json.dumps({"manifests": [elsewhere, *digests]}))
    assert in_ollama(parse("ollama:small")).sha256 == HEX
    path.write_text(json.dumps({"manifests": [{"layers": [OTHER]}, {"layers": [LAYER]}]}))
    assert in_ollama(parse("ollama:small")).sha256 == HEX
    path.write_text(json.dumps({"manifests": [elsewhere]}))
    with pytest.raises(UsageError, match="there is none on this machine; only Ollama can run it"):
        in_ollama(parse("ollama:small"))


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ("{", "is no manifest of Ollama's; `ollama pull small:latest` makes it anew"),
        ("[" * 100_000, "is no manifest"),
        ([], "is no manifest"),
        ({"layers": [1]}, "is no manifest"),
        ({"layers": [{"mediaType": LAYER["mediaType"], "digest": 5}]}, "is no manifest"),
        ({"layers": [LAYER | {"size": []}]}, "is no manifest"),
        ({"layers": [LAYER | {"size": float("inf")}]}, "is no manifest"),
        ({"other": []}, "is no manifest"),
        ({"manifests": [{"digest": "sha256:../x"}]}, "is no manifest"),
        ({"layers": None}, "wants one GGUF file"),
        ({"layers": []}, "wants one GGUF file, and there is none"),
        (
            {"layers": [LAYER | {"digest": "sha256:../../../../etc/passwd"}]},
            "wants one GGUF file, and there is none",
        ),
        ({"layers": [LAYER, LAYER]}, "there is one in 2 parts; only Ollama can run it"),
        ({"layers": [LAYER | {"size": 99}]}, "its weights have 12 of 99 bytes"),
        ({"layers": [LAYER | {"digest": "sha256:" + "0" * 64}]}, "has lost its weights in Ollama's store"),
        ({"layers": [LAYER | {"digest": "sha256:" + "1" * 64}]}, "is not completely downloaded in Ollama's"),
    ],
)
def test_a_broken_store_is_said_and_what_mends_it(store: Path, manifest: Any, words: str) -> None:
    (store / "blobs" / f"sha256-{'1' * 64}-partial-0").write_bytes(b"")
    write_manifest(store, manifest)
    with pytest.raises(UsageError) as caught:
        in_ollama(parse("ollama:small"))
    assert words in str(caught.value)


def test_a_manifest_that_links_to_itself_is_none(store: Path) -> None:
    path = store / "manifests" / LIBRARY / "loop" / "latest"
    path.parent.mkdir(parents=True)
    path.symlink_to(path)
    with pytest.raises(UsageError, match="is not in Ollama's store"):
        in_ollama(parse("ollama:loop"))
