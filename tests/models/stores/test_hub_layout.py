"""The Hugging Face cache's layout: where it is, which links count, and what names state."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from huggingface_hub import constants as library

from paceline.models.stores.hub_cache import is_repository_file, repo_folder, stated_sha256


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"HF_HOME": "/data/hf"},
        {"HF_HOME": "$HOME/hf"},
        {"HF_HOME": "/data/hf", "HF_HUB_CACHE": "/cache/$USER_X"},
        {"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "~/new"},
        {"XDG_CACHE_HOME": "/xdg"},
    ],
)
def test_the_cache_is_where_the_library_has_it(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    constants = runpy.run_path(str(library.__file__))
    assert repo_folder("user/repo").parent == Path(constants["HF_HUB_CACHE"])


def test_stores_state_the_hash_by_the_name(tmp_path: Path) -> None:
    digest = "0a" * 32
    for name in (digest, f"sha256-{digest}"):
        (tmp_path / name).touch()
        (tmp_path / f"{name}.gguf").symlink_to(name)
        assert stated_sha256(tmp_path / f"{name}.gguf") == stated_sha256(tmp_path / name) == digest
    assert stated_sha256(tmp_path / "m.gguf") == stated_sha256(tmp_path / f"{digest}0") == ""


def test_links_that_lead_in_circles_are_nobodys(tmp_path: Path) -> None:
    pointer, blob = tmp_path / "r/snapshots/c/m.gguf", tmp_path / "r/blobs" / ("0a" * 32)
    for path in (blob, pointer):
        path.parent.mkdir(parents=True)
    pointer.symlink_to(pointer)
    assert not is_repository_file(tmp_path / "r", pointer)
    assert stated_sha256(pointer) == ""
    pointer.unlink()
    pointer.symlink_to(f"../../blobs/{blob.name}")
    blob.symlink_to(blob)
    assert not is_repository_file(tmp_path / "r", pointer)
