"""Everything a machine has is found, and what is in the way is a note."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from gguf_files import finish, write_llama
from model_stores import hub_file, hub_folder, ollama_model
from paceline.cli.references import resolved
from paceline.models.headers import header
from paceline.models.stores import inventory as stores
from paceline.models.stores import search
from paceline.models.stores.inventory import Inventory, list_models

HOST = "registry.ollama.ai"


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the models of Ollama's service on this machine."""
    monkeypatch.setattr(search, "OLLAMA_SERVICE", tmp_path / "service")
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "paceline"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, and one with experts."""
    folder = tmp_path_factory.mktemp("made")
    write_llama(folder / "plain.gguf", width=16, layers=1)
    write_llama(folder / "experts.gguf", width=16, layers=1, experts=4)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    path = tmp_path / "user"
    path.mkdir()
    return path


def look(home: Path, *folders: Path, **environ: str) -> Inventory:
    return list_models(folders, environ={"HOME": str(home)} | environ)


def put(source: Path, to: Path) -> Path:
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_bytes(source.read_bytes() + str(to).encode())  # of a content of its own
    return to


def test_every_store_is_looked_into(home: Path, made: Path) -> None:
    plain = made / "plain.gguf"
    blob = ollama_model(home / ".ollama/models", f"{HOST}/library/tiny/1b", plain)
    hub_file(home / ".cache/huggingface/hub", "user/repo", "m-Q8_0.gguf", put(plain, home / "other.gguf"))
    studio = put(plain, home / ".lmstudio/models/user/repo/m.gguf")
    llama = put(plain, home / ".cache/llama.cpp/user_repo_m.gguf")
    (llama.parent / "manifest=user=repo=latest.json").write_text("{}")
    given = put(plain, home / "given/m.gguf")
    configured = put(made / "experts.gguf", home / "more/deep/e.gguf")
    environ = {
        "PACELINE_MODELS": os.pathsep.join(["", "~/nowhere", str(home / "more")]),
        "LLAMA_CACHE": str(llama.parent),  # not everywhere below .cache
    }
    found = look(home, home / "given", **environ)
    stores = {("LM Studio", str(studio)), ("Ollama", "ollama:tiny:1b"), ("llama.cpp", str(llama))}
    stores |= {("Hugging Face", "user/repo:Q8_0"), ("folder", str(configured)), ("folder", str(given))}
    assert {(model.store, model.reference) for model in found.models} == stores
    assert len(found.models) == 6
    assert [model.facts.path for model in found.models if model.store == "Ollama"] == [blob]
    assert [model.facts.experts for model in found.models].count(4) == 1
    (note,) = found.notes
    assert note.endswith("nowhere: no such folder")
    assert ("folder", home / "more") in found.places


def test_one_file_under_two_names_is_one_model(home: Path, made: Path) -> None:
    root = home / ".ollama/models"
    blob = ollama_model(root, f"{HOST}/library/tiny/1b", made / "plain.gguf")
    ollama_model(root, f"{HOST}/library/mine/latest", made / "plain.gguf")
    linked = home / "linked" / "m.gguf"
    linked.parent.mkdir()
    linked.symlink_to(blob)
    found = look(home, linked.parent, linked.parent)
    assert [(model.reference, model.also) for model in found.models] == [
        ("ollama:mine:latest", ("ollama:tiny:1b", str(linked)))
    ]
    assert found.notes == []


def test_one_content_in_two_places_is_one_model_and_has_the_name(home: Path, made: Path) -> None:
    hub = home / ".cache/huggingface/hub"
    hub_file(hub, "user/repo", "m-Q8_0.gguf", made / "plain.gguf")
    copied, other = home / "given/m.gguf", put(made / "plain.gguf", home / "given/other.gguf")
    shutil.copy(made / "plain.gguf", copied)
    found = look(home, copied.parent)
    assert {(model.reference, model.also) for model in found.models} == {
        ("user/repo:Q8_0", (str(copied),)),
        (str(other), ()),
    }


def test_every_name_leads_where_the_command_line_looks(
    home: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home))
    for name in ("OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    root = home / ".ollama/models"
    for name in (f"{HOST}/library/tiny/1b", f"{HOST}/someone/tiny/latest", "hf.co/user/repo-GGUF/Q8_0"):
        ollama_model(root, name, made / ("experts.gguf" if "someone" in name else "plain.gguf"))
    for name in ("m-Q8_0", "m-UD-Q4_K_XL", "n-Q8_0", "m"):
        copy = put(made / "plain.gguf", home / f"{name}.gguf")
        with copy.open("ab") as file:
            file.write(name.encode())
        hub_file(home / ".cache/huggingface/hub", "user/repo", f"{name}.gguf", copy)
    models = look(home).models
    assert len(models) == 6
    for model in models:
        for name in (model.reference, *model.also):
            assert resolved(name) == model.facts.path


def test_what_belongs_to_models_is_none(home: Path, made: Path) -> None:
    folder = home / "models"
    for name in ("mmproj-F16", "MTP-m", "m.imatrix"):
        put(made / "plain.gguf", folder / f"{name}.gguf")
    (folder / "m.gguf.downloadInProgress").touch()
    write_llama(folder / "vocab.gguf", vocab_only=True)
    for arch, kind in (("llama", "adapter"), ("clip", "mmproj"), ("eagle3", "eagle3-m")):
        writer = GGUFWriter(folder / f"{kind}.gguf", arch)
        writer.add_type(kind)
        finish(writer)
    lora = folder / "lora"
    lora.mkdir()
    for name in ("adapter_config.json", "config.json", "adapter_model.safetensors"):
        (lora / name).touch()
    (hub_folder(folder / "vision") / "config.json").write_text('{"model_type": "vit"}')
    found = look(home, folder)
    assert found.models == []
    told = {Path(note.partition(":")[0]).name: note for note in found.notes}
    assert [head.path for head in found.heads] == [folder / "eagle3-m.gguf"]
    assert len(found.notes) == len(told) == 9
    reasons = {"adapter": "an adapter", "vocab": "vocabulary only", "MTP-m": "MTP layers"}
    for name, reason in (reasons | {"mmproj": "projector"}).items():
        assert reason in told[f"{name}.gguf"]
    assert "half-way" in told["m.gguf.downloadInProgress"]
    assert "no language model" in told["vision"]


@pytest.mark.skipif(sys.platform == "darwin", reason="names are UTF-8 there")
def test_files_that_are_no_models_are_one_note_each(home: Path, made: Path) -> None:
    folder = home / "models"
    good = put(made / "plain.gguf", folder / "good.gguf")
    (folder / "empty.gguf").touch()
    (folder / "text.gguf").write_text("no model")
    (folder / "cut.gguf").write_bytes(good.read_bytes()[:5000])
    (folder / "bad\x1b[31m\n.gguf").write_bytes(b"GGUF")
    (folder / os.fsdecode(b"\xff.gguf")).write_bytes(b"GGUF0")
    (folder / "gone.gguf").symlink_to("nowhere")
    (folder / "loop.gguf").symlink_to("loop.gguf")
    found = look(home, folder)
    assert [model.reference for model in found.models] == [str(good)]
    assert len(found.notes) == 7
    assert all(note.isprintable() for note in found.notes)


def test_what_was_read_is_not_read_again_until_it_changes(
    home: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, saved = put(made / "plain.gguf", home / "models/m.gguf"), hub_folder(home / "models/saved")
    first, anew = look(home, home / "models"), list[Path]()

    def noted(path: Path, **options: bool) -> Any:
        anew.append(path)
        return header.read_model_facts(path, **options)

    monkeypatch.setattr(stores, "read_model_facts", noted)
    assert look(home, home / "models") == first
    assert anew == []
    for changed in (path, saved / "config.json"):
        os.utime(changed, ns=(1, 1))
    assert look(home, home / "models") == first
    assert sorted(anew) == [path, saved]
    for entry in (home.parent / "paceline" / "facts").iterdir():
        entry.write_text(entry.read_text().replace('"arch"', '"ark"'))  # of another version
    assert look(home, home / "models") == first
