"""JSON Lines files: line ends, offsets, and overlong lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench import jsonl
from paceline.bench.jsonl import Line, LineError, object_of, raw_lines


def written(folder: Path, data: bytes) -> Path:
    file = folder / "lines.jsonl"
    file.write_bytes(data)
    return file


@given(st.lists(st.binary(max_size=6)))
def test_lines_are_those_between_newlines(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    data = b"\n".join(parts)
    pieces = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    expected = [Line(number, piece) for number, piece in enumerate(pieces, 1) if piece.strip()]
    assert list(raw_lines(written(tmp_path_factory.mktemp("lines"), data))) == expected


def test_overlong_line_is_cut_and_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "LONGEST", 4)
    file = written(tmp_path, b"[12]\n" + b"x" * 23 + b"\n[34]\n" + b"y" * 5)
    lines = list(raw_lines(file))
    assert lines == [Line(1, b"[12]"), Line(2, b"xxxxx"), Line(3, b"[34]"), Line(4, b"yyyyy")]
    for line in lines[1::2]:
        with pytest.raises(LineError, match="is longer than 0 MiB"):
            object_of(line)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff", "is no JSON ('utf-8' codec can't decode byte 0xff in position 0"),
        (b'{"a": 1', "is no JSON (Expecting ',' delimiter"),
        (b"[" * 100_000, "is no JSON ("),
        (b"1" * 5000, "is no JSON (Exceeds the limit"),
        (b"[]", "is no JSON object; write one JSON object a line"),
    ],
)
def test_what_is_no_object_is_told_by_a_reason_alone(tmp_path: Path, data: bytes, why: str) -> None:
    (line,) = raw_lines(written(tmp_path, data))
    with pytest.raises(LineError) as error:
        object_of(line)
    assert str(error.value).startswith(why)
