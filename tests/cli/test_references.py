"""Names of models for -m and its like: the file they stand for, and the line that says so."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from hub_server import COMMIT, own_cache
from paceline.cli import output
from paceline.cli.references import resolve_models, resolved
from paceline.models import zoo
from paceline.models.stores.hub_cache import repo_folder
from paceline.settings import LoadOptions
from paceline.system.home import file_fingerprint

Capture = pytest.CaptureFixture[str]
DATA = b"GGUF weights"
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in the hub's cache, as its programs lay it there."""
    own_cache(monkeypatch, tmp_path / "hub")
    folder = repo_folder("user/repo")
    snapshot = folder / "snapshots" / COMMIT
    for made in (folder / "blobs", snapshot):
        made.mkdir(parents=True)
    (folder / "blobs" / SHA).write_bytes(DATA)
    (snapshot / "m-Q8_0.gguf").symlink_to(f"../../blobs/{SHA}")
    return snapshot / "m-Q8_0.gguf"


def test_a_path_stays_as_it_was_given(capsys: Capture) -> None:
    given = LoadOptions("./missing.gguf")
    assert resolve_models(given) == given
    assert capsys.readouterr() == ("", "")


def test_a_names_file_and_hash_are_printed_with_verbose_only(
    capsys: Capture, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolve_models(LoadOptions("user/repo")) == LoadOptions(cached)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(output, "verbose", True)
    assert resolve_models(LoadOptions("user/repo")) == LoadOptions(cached)
    assert capsys.readouterr().err == f"user/repo is {cached} (sha256 {SHA[:16]})\n"
    path = zoo.target_path()
    assert resolved("zoo:target") == path
    assert capsys.readouterr().err == f"zoo:target is {path} (fingerprint {file_fingerprint(path)[:16]})\n"
    for i in (1, 2):
        (cached.parent / f"n-Q6_K-0000{i}-of-00002.gguf").write_bytes(DATA)
    assert resolved("user/repo:Q6_K") == cached.parent / "n-Q6_K-00001-of-00002.gguf"
    assert capsys.readouterr().err.endswith(", the first of 2 parts)\n")


def test_a_typed_name_stands_in_for_its_path_in_notes_and_records(capsys: Capture, cached: Path) -> None:
    resolved("user/repo")
    output.print_note(f"{cached}: cannot be loaded")
    assert capsys.readouterr().err == "user/repo: cannot be loaded\n"
    output.print_note(f"{cached}-b and /x{cached} are others")
    assert capsys.readouterr().err == f"{cached}-b and /x{cached} are others\n"
    record = {"draft": None, "rows": [("file", f"run -m {cached}")]}
    assert output.with_typed_names(record) == {"draft": None, "rows": [["file", "run -m user/repo"]]}


@pytest.mark.parametrize("args", [["--verbose", "run"], ["run", "--verbose"], ["run", "--", "--verbose"]])
def test_verbose_is_an_option_of_every_command(args: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "verbose", False)
    rest = output.take_verbose(args)
    assert output.verbose == ("--" not in args)
    assert rest == (args if "--" in args else ["run"])
