"""A file appears whole or not at all, with the modes it should have, and errors name the file asked for."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.speculative.errors import PacelineError, UsageError
from paceline.system.atomic import atomic_write, check_output, private_file, write_output


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file of more than 64 kB: what a full disk is to one who writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def only(folder: Path) -> Path:
    (found,) = folder.iterdir()
    return found


def test_until_it_is_whole_there_is_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with atomic_write(path) as part:
        part.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert only(tmp_path).read_bytes() == b"new"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "out").write_bytes(b"old")

    def work() -> None:
        with atomic_write(tmp_path / "out") as part:
            part.write_bytes(b"half")
            raise error

    with pytest.raises(error):
        work()
    assert only(tmp_path).read_bytes() == b"old"


def test_modes_are_the_umasks_or_those_of_the_file_before_or_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        for name, given in (("usual", {}), ("secret", {"private": True}), ("kept", {})):
            if name == "kept":
                (tmp_path / name).touch()
                (tmp_path / name).chmod(0o660)
            with atomic_write(tmp_path / name, **given) as part:
                assert mode(part) == {"usual": 0o644, "secret": 0o600, "kept": 0o660}[name]
            assert mode(tmp_path / name) == {"usual": 0o644, "secret": 0o600, "kept": 0o660}[name]
        (tmp_path / "secret").chmod(0o644)
        with atomic_write(tmp_path / "secret", private=True) as part:
            assert mode(part) == 0o600
        assert mode(tmp_path / "secret") == 0o600
        with private_file(tmp_path / "file") as file:
            file.write(b"text")
        assert mode(tmp_path / "file") == 0o600
    finally:
        os.umask(before)


def test_a_link_goes_on_to_point_to_what_was_written(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "out")
    with atomic_write(tmp_path / "link") as part:
        part.write_bytes(b"new")
    assert (tmp_path / "link").is_symlink()
    assert only(tmp_path / "folder").read_bytes() == b"new"


def test_what_is_no_regular_file_is_never_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name in ("fifo", "folder"):
        with pytest.raises(OSError, match="is no regular file") as caught, atomic_write(tmp_path / name):
            pass
        assert caught.value.filename == str(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "folder"]
    with pytest.raises(UsageError, match="fifo: is no regular file; give the name of a file to write"):
        check_output(tmp_path / "fifo", force=True)


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_is_told_of_the_file_that_was_asked_for_and_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_bytes(b"old")
    with (
        pytest.raises(PacelineError, match=r"/out: cannot be written \(File too large\); make room"),
        write_output(path) as part,
        part.open("wb") as file,
    ):
        file.write(bytes(1 << 17))
    assert only(tmp_path).read_bytes() == b"old"


def test_errors_of_what_is_read_meanwhile_are_not_blamed_on_what_is_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, write_output(tmp_path / "out"):
        (tmp_path / "source").read_bytes()
    assert caught.value.filename == str(tmp_path / "source")
    with pytest.raises(BrokenPipeError), write_output(tmp_path / "out"):
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")


@pytest.mark.parametrize("name", ["source", "hard", "soft", "folder/../source"])
def test_an_output_that_is_an_input_by_whatever_name_is_refused(tmp_path: Path, name: str) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "hard").hardlink_to(source)
    (tmp_path / "soft").symlink_to(source)
    with pytest.raises(UsageError, match="is what it would be made from; choose another name"):
        check_output(tmp_path / name, tmp_path / "other", source, force=True)


def test_a_folder_that_cannot_be_written_is_told_before_hours_of_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)  # root may write everywhere
    with pytest.raises(UsageError, match="cannot be written to; choose another folder"):
        check_output(tmp_path / "out", force=False)
