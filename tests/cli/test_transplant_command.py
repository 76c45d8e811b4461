"""`paceline transplant`: what it prints, and what it leaves on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Done, command
from gguf_files import write_llama
from paceline.models import zoo

Capture = pytest.CaptureFixture[str]


def transplanted(capsys: Capture, *args: str | Path) -> Done:
    return command(capsys, "transplant", *args)


def test_path_of_the_complete_file_is_printed(capsys: Capture, foreign_draft: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    shown = transplanted(capsys, foreign_draft, "--vocab-of", zoo.target_path(), "-o", out, "--type", "q8_0")
    assert shown.out == f"{out}\n"
    assert shown.err.startswith("8,192 tokens: 2,256 of the draft's own, 5,935 made of 2.4 pieces, ")
    assert f"Q8_0, two matrices, {out.stat().st_size / 1e6:.1f} MB" in shown.err


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    draft = write_llama(tmp_path / "draft.gguf", extra_tokens=("ab",))
    return draft, write_llama(tmp_path / "target.gguf", extra_tokens=("cd",), vocab_only=True)


def test_refusal_leaves_the_disk_unchanged(capsys: Capture, foreign_draft: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept.gguf"
    out.write_bytes(b"precious")
    given = (foreign_draft, "-o", out, "--vocab-of")
    transplanted(capsys, *given, zoo.target_path()).refused(2, "kept.gguf: exists; choose another name")
    transplanted(capsys, *given, foreign_draft, "--force").refused(2, "already: use it as it is")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("kept.gguf", b"precious")]


def test_force_overwrites_and_json_reports(capsys: Capture, pair: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"old")
    shown = transplanted(capsys, pair[0], "--vocab-of", pair[1], "-o", out, "--force", "--json")
    record = shown.json
    assert (shown.err, record["out"], record["size"]) == ("", str(out), out.stat().st_size)
    assert (record["same"], record["special"], record["tied"], record["type"]) == (257, 1, False, "F32")
