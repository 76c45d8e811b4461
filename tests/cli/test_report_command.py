"""`paceline report`: what it writes, and what it refuses in one line."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from bench_records import drafted, plain, record
from command_line import Done, command
from paceline.bench.run_file import FORMAT
from paceline.bench.system import ItemMeasurements

Capture = pytest.CaptureFixture[str]
RESULTS = record([plain(), drafted("lookup|<b>", (2.0, 1.9, 2.1))]) | {"plan": {}}
FIGURES = ("steps", "drafted", "accepted", "rejected", "draft_seconds", "decode_seconds", "own_speed")


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """The run of a bench that was killed while it wrote the second round of an item."""
    file = tmp_path / "run.jsonl"
    head = {"format": FORMAT, "started": "", "folder": "", "plan": {}, "provenance": RESULTS["provenance"]}
    measured = {
        name: {"system": name, "tokens": 8, "n_tokens": 8, "seconds": seconds, "first": 1.0}
        | dict.fromkeys(FIGURES)
        for name, seconds in (("plain", 4.0), ("lookup", 2.0), ("wrong", 1.0))
    }
    outcomes = {"plain": "identical", "lookup": "identical", "wrong": "from token 3 on"}
    lines = [head, asdict(ItemMeasurements(0, "a", "code", measured, outcomes))]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"round": 1, "item": "a')
    return file


def report(capsys: Capture, *args: str | Path) -> Done:
    return command(capsys, "report", *args)


def test_an_interrupted_bench_is_shown_with_what_it_measured(capsys: Capture, bench: Path) -> None:
    done = report(capsys, bench, "--md")
    assert (done.code, done.err) == (0, "")
    assert "| status | interrupted: what was measured until then |" in done.out
    rows = [
        line.split(" | ")[:3]
        for line in done.out.splitlines()
        if line.startswith(("| plain", "| lookup", "| wrong"))
    ]
    assert rows == [["| plain", "2.0", "1.00x"], ["| lookup", "4.0", "~2.00x"], ["| wrong", "-", "-"]]


def test_markdown_escapes_what_would_be_markup(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(RESULTS))
    done = report(capsys, tmp_path / "a.json", "--md", "-o", tmp_path / "a.md")
    assert (done.code, done.out, done.err) == (0, f"{tmp_path / 'a.md'}\n", "")
    text = (tmp_path / "a.md").read_text()
    assert "\n| lookup\\|\\<b> | 80.0 ± 0.5 | 2.00x [1.90, 2.10] | 0.60 |" in text
    assert "**fastest: lookup\\|\\<b> 2.00x [1.90, 2.10] plain decoding**" in text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is no record of bench"),
        ('{"a": 1}', "is no record of bench"),
        (RESULTS | {"format": FORMAT + 1}, "format 3 of `paceline bench` is another version's"),
        (RESULTS | {"results": []}, "has no results yet"),
        (RESULTS | {"results": [{"system": "plain"}]}, "is damaged, or of another version"),
        (RESULTS | {"results": [RESULTS["results"][0] | {"speed": float("nan")}]}, "is damaged"),
        ({"certified": True}, "of `paceline certify` (KeyError: 'provenance')"),
        ({"kind": "tune", "format": 1}, "is no record of `paceline tune`"),
    ],
)  # fmt: skip
def test_what_is_no_complete_record_is_refused_by_name(
    content: Any, words: str, capsys: Capture, tmp_path: Path
) -> None:
    file, good = tmp_path / "a.json", tmp_path / "good.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    good.write_text(json.dumps(RESULTS))
    report(capsys, good, file, "-o", tmp_path / "out.html").refused(2, f"{file}: ", words)
    assert not (tmp_path / "out.html").exists()


def test_outputs_need_a_name_and_replace_no_file_unless_forced(
    capsys: Capture, bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.html"
    report(capsys, bench).refused(2, "nothing to write", "-o report.html")
    report(capsys, tmp_path / "none", "--md").refused(2, "none: cannot be read (No such file or directory)")
    monkeypatch.setenv("PATH", "")
    report(capsys, bench, "--png", tmp_path).refused(2, "none is on PATH", "PNG buttons of the page")
    for _ in range(2):
        assert report(capsys, bench, "-o", out, "--force").code == 0
    report(capsys, bench, "-o", out).refused(2, "exists", "--force")
    report(capsys, bench, "-o", bench, "--force").refused(2, "is what it would be made from")


def test_png_writes_each_plot(capsys: Capture, bench: Path, browser: object, tmp_path: Path) -> None:
    done = report(capsys, bench, "--png", tmp_path / "plots")
    assert (done.code, done.err) == (0, "")
    files = [Path(line) for line in done.out.splitlines()]
    assert [file.name for file in files] == ["bench-speed-all-texts-1.png"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
