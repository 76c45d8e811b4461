"""The Hugging Face cache: which names lead to which files."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_stores import hub_file
from paceline.models.stores.hub_cache import candidates
from paceline.models.stores.search import FolderSearch


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(b"GGUF and so on")
    return path


def found(folder: Path) -> tuple[dict[str, Path], list[str]]:
    search = FolderSearch()
    return {candidate.reference: candidate.path for candidate in candidates(folder, search)}, search.notes


def test_files_are_known_by_repository_and_quantisation(tmp_path: Path, weights: Path) -> None:
    link = hub_file(tmp_path, "user/repo-GGUF", "m-Q4_K_M.gguf", weights)
    below = hub_file(tmp_path, "user/repo-GGUF", "Q8_0/m-Q8_0-00001-of-00002.gguf", weights)
    hub_file(tmp_path, "user/repo-GGUF", "Q8_0/m-Q8_0-00002-of-00002.gguf", weights)
    folder = tmp_path / "models--user--repo-GGUF"
    assert found(folder) == ({"user/repo-GGUF:Q4_K_M": link, "user/repo-GGUF:Q8_0": below}, [])


def test_files_of_one_quantisation_are_told_apart_by_their_names(tmp_path: Path, weights: Path) -> None:
    for name in ("a-Q8_0", "b-Q8_0", "model"):
        hub_file(tmp_path, "user/repo", f"{name}.gguf", weights)
    models, notes = found(tmp_path / "models--user--repo")
    assert {reference: path.name for reference, path in models.items()} == {
        "user/repo:a-Q8_0.gguf": "a-Q8_0.gguf",
        "user/repo:b-Q8_0.gguf": "b-Q8_0.gguf",
        "user/repo:model.gguf": "model.gguf",
    }
    assert notes == []


def test_what_no_name_leads_to_is_known_by_its_path(tmp_path: Path, weights: Path) -> None:
    older = hub_file(tmp_path, "user/repo", "m-Q4_0.gguf", weights, revision="f" * 40)
    newer = hub_file(tmp_path, "user/repo", "m-Q8_0.gguf", weights)
    odd = hub_file(tmp_path, "user/repo", "a;b c.gguf", weights)
    models, notes = found(tmp_path / "models--user--repo")
    assert models == {str(older): older, "user/repo:Q8_0": newer, str(odd): odd}
    assert notes == []


@pytest.mark.parametrize("said", ["", "../../..", "main"])
def test_a_reference_that_names_no_revision_gives_no_names(tmp_path: Path, weights: Path, said: str) -> None:
    link = hub_file(tmp_path, "user/repo", "m-Q8_0.gguf", weights)
    (tmp_path / "models--user--repo" / "refs" / "main").write_text(said)
    assert found(tmp_path / "models--user--repo") == ({str(link): link}, [])


def test_a_link_out_of_the_cache_has_no_name(tmp_path: Path, weights: Path) -> None:
    link = hub_file(tmp_path, "user/repo", "m-Q8_0.gguf", weights)
    link.unlink()
    link.symlink_to(weights)
    assert found(tmp_path / "models--user--repo") == ({str(link): link}, [])
