"""How a verdict is shown: in a pipe, on terminals of two widths, and with hostile words in it."""

from __future__ import annotations

import io
from dataclasses import asdict
from typing import Any

import pytest

from paceline.models.compatibility.reason import FATAL, MAPPING, NOTE, WARNING, CompatibilityReason
from paceline.report.compatibility import WORDS, cell, write

FIRST = [{"id": 5, "text": "a"}, {"id": 7, "text": "Ġb"}]
OTHER = [{"id": 5, "text": "x"}, {"id": 7, "text": "\x1b[31m\n"}]
REASONS = (
    CompatibilityReason("tokenizer", "BPE", "BPE", NOTE),
    CompatibilityReason(
        "BOS", {"id": 11, "text": ",", "added": False}, {"added": False}, MAPPING, "another one"
    ),
    CompatibilityReason("token texts", FIRST, OTHER, MAPPING, "2 of 995 ids mean something else, from 5 on"),
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
    assert shown(record("same", advice=[]))[-1].startswith("7 ")


def test_a_row_says_what_was_compared_and_what_it_means() -> None:
    rows = {words[0]: words[1:] for line in shown(record())[3:8] if (words := line.split())}
    assert rows["file"] == ["target.gguf", "draft.gguf"]
    assert rows["tokenizer"] == ["BPE", "BPE"]
    assert rows["BOS"] == ["11", ",", "-", "differs:", "another", "one"]
    assert rows["context"][:3] == ["32,768", "2,048", "warning:"]


def test_why_it_does_not_fit_is_said_at_once() -> None:
    lines = shown(
        record("incompatible", (CompatibilityReason("architecture", "llama", "bert", FATAL, "no text"),))
    )
    assert lines[0] == "incompatible: it does not fit: no text"
    assert any(line.endswith("fatal: no text") for line in lines)


def test_tokens_that_differ_have_a_table_of_their_own() -> None:
    lines = shown(record())
    at = lines.index(next(line for line in lines if line.startswith("first that differ")))
    assert lines[at + 1].split() == ["5", "“a”", "“x”"]
    assert lines[at + 2].split() == ["7", "“Ġb”", r"“\x1b[31m\n”"]
    assert not [line for line in shown(record(reasons=[])) if line.startswith("first")]


def test_what_a_file_says_cannot_steer_a_terminal() -> None:
    evil = CompatibilityReason("family", "\x1b]0;x\x07", "a\nb", WARNING, "\x9b31m\r")
    out = "\n".join(shown(record("incompatible", (evil,), target="\x1b[2J.gguf", advice=["\x1b[0m"])))
    assert [c for c in out if not c.isprintable() and c != "\n"] == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "-"),
        ([], "-"),
        ({}, "-"),
        (True, "yes"),
        (151936, "151,936"),
        ({"id": 151643, "text": "<s>", "added": True}, "151643 <s>, added"),
        ({"added": True}, "-"),
        ({"ends": [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}], "added": False}, "1 a, 2 b"),
        ({"ends": [], "added": False}, "-"),
        ({"all": 128, "used": 8}, "8 of 128"),
        ({"texts": 1000, "common": 990}, "990 of 1,000"),
        ({"pad": None, "unk": 3}, "pad -, unk 3"),
    ],
)
def test_a_value_in_a_cell(value: Any, said: str) -> None:
    assert cell(value) == said
