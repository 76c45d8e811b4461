"""Report of a verdict, also with hostile text in it."""

from __future__ import annotations

import io
from dataclasses import asdict
from typing import Any

from paceline.models.compatibility.check import MAPPING, NOTE, WARNING, CompatibilityReason
from paceline.report.pairs import WORDS
from paceline.report.pairs import write_compatibility as write

REASONS = (
    CompatibilityReason("tokenizer", "BPE", "BPE", NOTE),
    CompatibilityReason("BOS", "11 ,", None, MAPPING, "another one"),
    CompatibilityReason("context", 32768, 2048, WARNING, "beyond 2,048 tokens the draft guesses badly"),
)


def record(
    verdict: str = "mappable", more: tuple[CompatibilityReason, ...] = (), **changed: Any
) -> dict[str, Any]:
    said = {"target": "some/where/target.gguf", "draft": "draft.gguf", "verdict": verdict}
    advice = [
        "draft with it as it is: paceline run -m some/where/target.gguf -md draft.gguf --cross-vocab auto"
    ]
    return said | {"reasons": [asdict(r) for r in (*REASONS, *more)], "advice": advice} | changed


def shown(said: dict[str, Any], file: io.StringIO | None = None) -> list[str]:
    file = io.StringIO() if file is None else file
    write(said, file)
    return file.getvalue().splitlines()


def test_the_verdict_comes_first_and_the_advice_last() -> None:
    lines = shown(record())
    assert lines[0] == f"mappable: {WORDS['mappable']}"
    assert lines[-2:] == [
        "- draft with it as it is:",
        "    paceline run -m some/where/target.gguf -md draft.gguf --cross-vocab auto",
    ]


def test_a_row_says_what_was_compared_and_what_it_means() -> None:
    rows = {words[0]: words[1:] for line in shown(record())[3:7] if (words := line.split())}
    assert rows["file"] == ["target.gguf", "draft.gguf"]
    assert rows["tokenizer"] == ["BPE", "BPE"]
    assert rows["BOS"] == ["11", ",", "-", "differs:", "another", "one"]
    assert rows["context"][:3] == ["32,768", "2,048", "warning:"]


def test_what_a_file_says_cannot_steer_a_terminal() -> None:
    evil = CompatibilityReason("family", "\x1b]0;x\x07", "a\nb", WARNING, "\x9b31m\r")
    out = "\n".join(shown(record("incompatible", (evil,), target="\x1b[2J.gguf", advice=["\x1b[0m"])))
    assert [c for c in out if not c.isprintable() and c != "\n"] == []
