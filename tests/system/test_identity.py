"""The fingerprint of the file that a measurement belongs to."""

from __future__ import annotations

from pathlib import Path

from paceline.system.home import BLOCK, file_fingerprint


def test_a_files_size_beginning_and_end_are_its_fingerprint(tmp_path: Path) -> None:
    def of(name: str, data: bytes) -> str:
        (tmp_path / name).write_bytes(data)
        return file_fingerprint(tmp_path / name)

    whole = bytes(BLOCK) + b"a" + bytes(BLOCK)
    assert of("a", whole) == of("b", whole)
    assert of("a", whole) == of("c", whole.replace(b"a", b"b"))  # the middle is not read
    others = [whole + b"\0", b"x" + whole[1:], whole[:-1] + b"x", b"", b"x"]
    assert len({of(f"d{i}", data) for i, data in enumerate([whole, *others])}) == 6
