"""`paceline run --cross-vocab`: a draft model of another vocabulary, from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import command
from paceline.models import zoo

Capture = pytest.CaptureFixture[str]
PROMPT = ("def read_table(path):\n    ", "-n", "40", "--ignore-eos", "-t", "1", "--draft", "model")


def test_translated_drafts_are_lossless(capsys: Capture, foreign_draft: Path) -> None:
    done = command(
        capsys, "run", "-m", zoo.target_path(), "-md", foreign_draft, "--cross-vocab", "auto", *PROMPT,
        "--compare", "--json", "--p-min", "0.2",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    stats = done.json["drafted"]["stats"]["by_source"]
    assert stats["model"]["accepted"] > 0
    provenance = done.json["provenance"]
    assert provenance["drafting"]["cross_vocab"] == "slem"
    assert provenance["draft"]["file"] == foreign_draft.name


def test_a_way_out_is_offered_only_where_there_is_one(capsys: Capture, foreign_draft: Path) -> None:
    given = ("-m", zoo.target_path(), "-md", foreign_draft, "-t", "1")
    done = command(capsys, "run", "hi", *given, "--lossy", "prefill=0.5")
    done.refused(2, "the draft has another vocabulary", "of the same family")
    assert "--cross-vocab" not in done.err
    command(capsys, "doctor", *given, "--cross-vocab", "off", "--json").refused(2, "--cross-vocab auto")
