"""The fingerprint of the file that a measurement belongs to, and the SHA-256 of whole files, kept."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from paceline.system.home import BLOCK, file_fingerprint, sha256_of


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    path = tmp_path / "file"
    path.write_bytes(b"some weights")
    return path


def never(*_: object) -> None:
    raise AssertionError("computed")


def test_a_file_is_read_once_and_again_where_it_changed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = sha256_of(file)
    assert first == hashlib.sha256(b"some weights").hexdigest()
    with monkeypatch.context() as patch:
        patch.setattr("hashlib.file_digest", never)
        assert sha256_of(file) == first
        os.utime(file, ns=(1, 1))
        with pytest.raises(AssertionError, match="computed"):
            sha256_of(file)
    file.write_bytes(b"other weights")
    assert sha256_of(file) == hashlib.sha256(b"other weights").hexdigest()


def test_what_changes_while_it_is_read_is_not_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.file_digest

    def slow(stream: object, kind: str) -> object:
        found = digest(stream, kind)  # type: ignore[arg-type]
        file.write_bytes(b"changed meanwhile")
        return found

    with monkeypatch.context() as patch:
        patch.setattr("hashlib.file_digest", slow)
        sha256_of(file)
    assert sha256_of(file) == hashlib.sha256(b"changed meanwhile").hexdigest()


def test_a_files_size_beginning_and_end_are_its_fingerprint(tmp_path: Path) -> None:
    def of(name: str, data: bytes) -> str:
        (tmp_path / name).write_bytes(data)
        return file_fingerprint(tmp_path / name)

    whole = bytes(BLOCK) + b"a" + bytes(BLOCK)
    assert of("a", whole) == of("b", whole)
    assert of("a", whole) == of("c", whole.replace(b"a", b"b"))  # the middle is not read
    others = [whole + b"\0", b"x" + whole[1:], whole[:-1] + b"x", b"", b"x"]
    assert len({of(f"d{i}", data) for i, data in enumerate([whole, *others])}) == 6
