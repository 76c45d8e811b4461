"""Small system files below any root, and lists of processors as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.hardware.files import SystemFiles, cpu_list


def test_a_list_of_processors_is_read_as_it_is_spelled() -> None:
    assert cpu_list("0-3, 8,\n10-10") == frozenset([0, 1, 2, 3, 8, 10])


@pytest.mark.parametrize("text", ["x", "1-", "3-1", "0-99999999999", "٣-٢"])
def test_what_is_no_such_list_is_none(text: str) -> None:
    assert cpu_list(text) is None


def test_what_cannot_be_read_is_none_and_noted(tmp_path: Path) -> None:
    files = SystemFiles(tmp_path)
    (tmp_path / "text").write_text("no number\n")
    assert (files.text("/text"), files.number("/text"), files.cpus("/none")) == ("no number", None, None)
    for name in ("text", "none"):
        files.note_read_error("size", f"/{name}")
    assert files.read_errors == ["size: /text cannot be used", "size: /none is not there"]
