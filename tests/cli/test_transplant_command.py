"""`paceline transplant`: what it prints, and what it leaves on the disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from gguf_files import write_llama
from paceline.cli.transplant import transplant
from paceline.models import zoo
from paceline.speculative.errors import UsageError

Capture = pytest.CaptureFixture[str]


def transplanted(*args: str | Path) -> None:
    app = typer.Typer()
    app.command()(transplant)
    app([str(arg) for arg in args], standalone_mode=False)


def test_the_path_of_a_complete_file_goes_to_stdout(
    capsys: Capture, foreign_draft: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    transplanted(foreign_draft, "--vocab-of", zoo.target_path(), "-o", out, "--type", "q8_0")
    shown = capsys.readouterr()
    assert shown.out == f"{out}\n"
    assert shown.err.startswith("8,192 tokens: 2,256 of the draft's own, 5,935 made of 2.4 pieces, ")
    assert f"Q8_0, two matrices, {out.stat().st_size / 1e6:.1f} MB" in shown.err


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    draft = write_llama(tmp_path / "draft.gguf", extra_tokens=("ab",))
    return draft, write_llama(tmp_path / "target.gguf", extra_tokens=("cd",), vocab_only=True)


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["kept.gguf"], r"kept\.gguf exists: choose another name, or overwrite it with --force"),
        (["DRAFT", "--force"], "is what it would be made from: choose another name"),
        (["out.gguf", "--vocab-of", "DRAFT"], "already: use it as it is"),
    ],
)
def test_what_cannot_work_is_refused_and_leaves_the_disk_alone(
    foreign_draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kept.gguf").write_bytes(b"precious")
    before = foreign_draft.read_bytes()
    given = [str(foreign_draft) if arg == "DRAFT" else arg for arg in args]
    with pytest.raises(UsageError, match=complaint):
        transplanted(foreign_draft, "--vocab-of", zoo.target_path(), "-o", *given)
    assert [path.name for path in tmp_path.iterdir()] == ["kept.gguf"]
    assert Path("kept.gguf").read_bytes() == b"precious"
    assert foreign_draft.read_bytes() == before


def test_force_overwrites_and_json_holds_what_was_made(
    capsys: Capture, pair: tuple[Path, Path], tmp_path: Path
) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"old")
    transplanted(pair[0], "--vocab-of", pair[1], "-o", out, "--force", "--json")
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert (shown.err, record["out"], record["size"]) == ("", str(out), out.stat().st_size)
    assert (record["same"], record["special"], record["tied"], record["type"]) == (257, 1, False, "F32")
