"""The Hugging Face cache: where it is, which names lead to which files, and what the names state."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from huggingface_hub import constants as library

from model_stores import hub_file
from paceline.models.stores.hub_cache import candidates, is_repository_file, repo_folder, stated_sha256
from paceline.models.stores.search import FolderSearch

DIGEST = "0a" * 32
VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME")


@pytest.mark.parametrize(
    "given",
    [
        {}, {"HF_HOME": "/data/hf"}, {"HF_HOME": "$HOME/hf"}, {"XDG_CACHE_HOME": "/xdg"},
        {"HF_HOME": "/data/hf", "HF_HUB_CACHE": "/cache/$USER_X"},
        {"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "~/new"},
    ],
)  # fmt: skip
def test_cache_is_where_the_library_has_it(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    constants = runpy.run_path(str(library.__file__))
    assert repo_folder("user/repo").parent == Path(constants["HF_HUB_CACHE"])


def test_stores_state_the_hash_by_the_name(tmp_path: Path) -> None:
    for name in (DIGEST, f"sha256-{DIGEST}"):
        (tmp_path / name).touch()
        (tmp_path / f"{name}.gguf").symlink_to(name)
        assert stated_sha256(tmp_path / f"{name}.gguf") == stated_sha256(tmp_path / name) == DIGEST
    assert stated_sha256(tmp_path / "m.gguf") == stated_sha256(tmp_path / f"{DIGEST}0") == ""


def test_links_in_circles_are_no_repository_files(tmp_path: Path) -> None:
    pointer, blob = tmp_path / "r/snapshots/c/m.gguf", tmp_path / "r/blobs" / DIGEST
    for path in (blob, pointer):
        path.parent.mkdir(parents=True)
    pointer.symlink_to(pointer)
    assert not is_repository_file(tmp_path / "r", pointer)
    assert stated_sha256(pointer) == ""
    pointer.unlink()
    pointer.symlink_to(f"../../blobs/{blob.name}")
    blob.symlink_to(blob)
    assert not is_repository_file(tmp_path / "r", pointer)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"GGUF and so on")
    return path


def found(root: Path) -> tuple[dict[str, Path], list[str]]:
    """The models of the cache's one repository, and the notes."""
    search = FolderSearch()
    (folder,) = root.glob("models--*")
    return {candidate.reference: candidate.path for candidate in candidates(folder, search)}, search.notes


ALIKE = ["a-Q8_0.gguf", "b-Q8_0.gguf", "model.gguf"]
FIRST, SECOND = (f"Q8_0/m-Q8_0-0000{i}-of-00002.gguf" for i in (1, 2))


@pytest.mark.parametrize(
    ("names", "tags"),
    [
        (["m-Q4_K_M.gguf", FIRST, SECOND], {"Q4_K_M": "m-Q4_K_M.gguf", "Q8_0": FIRST}),
        (ALIKE, dict(zip(ALIKE, ALIKE, strict=True))),
    ],
    ids=["by quantisation", "by name if the quantisation is not unique"],
)
def test_files_have_the_shortest_unique_reference(
    tmp_path: Path, weights: Path, names: list[str], tags: dict[str, str]
) -> None:
    links = {name: hub_file(tmp_path, "user/repo-GGUF", name, weights) for name in names}
    assert found(tmp_path) == ({f"user/repo-GGUF:{tag}": links[name] for tag, name in tags.items()}, [])


def test_file_that_no_name_leads_to_is_known_by_its_path(tmp_path: Path, weights: Path) -> None:
    older = hub_file(tmp_path, "user/repo", "m-Q4_0.gguf", weights, revision="f" * 40)
    newer = hub_file(tmp_path, "user/repo", "m-Q8_0.gguf", weights)
    odd = hub_file(tmp_path, "user/repo", "a;b c.gguf", weights)
    assert found(tmp_path) == ({str(older): older, "user/repo:Q8_0": newer, str(odd): odd}, [])


@pytest.mark.parametrize("main", ["", "../../..", "main", None])
def test_ref_that_names_no_revision_and_link_out_of_the_cache_give_no_name(
    tmp_path: Path, weights: Path, main: str | None
) -> None:
    link = hub_file(tmp_path, "user/repo", "m-Q8_0.gguf", weights)
    if main is None:
        link.unlink()
        link.symlink_to(weights)
    else:
        (tmp_path / "models--user--repo" / "refs" / "main").write_text(main)
    assert found(tmp_path) == ({str(link): link}, [])
