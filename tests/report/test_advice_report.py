"""Advice as it is read."""

from __future__ import annotations

import io
import shlex
from dataclasses import replace
from typing import Any

import pytest

from advice_facts import PAIR, facts, gained, known
from paceline.doctor.drafts import AdviceRequest, DraftCandidate, MeasuredFacts, advise
from paceline.fits import LLAMA_CPP, TargetTraits, what_fits
from paceline.report import pairs as report


def record(*candidates: DraftCandidate, how: MeasuredFacts | None = None, **more: Any) -> dict[str, Any]:
    return advise(facts(), candidates, AdviceRequest("code"), how or known(), **more)


def draft(name: str = "draft", verdict: str = "same", **more: Any) -> DraftCandidate:
    return DraftCandidate(facts(name, billions=0.8, **more), f"/models/{name}.gguf", verdict)


def told(said: dict[str, Any]) -> str:
    out = io.StringIO()
    report.write_advice({"kinds": what_fits(TargetTraits(LLAMA_CPP, "restore")), **said}, out)
    return out.getvalue()


def test_what_was_asked_the_table_and_one_line_of_advice() -> None:
    lines = told(record(draft(), how=known(past={"draft": gained(1.5)}))).splitlines()
    assert lines[:3] == [
        "target   target, Q8_0, 8.5 GB",
        "for      code, 4,096 tokens of context",
        "costs    2 tokens in a pass cost 1.10x one",
    ]
    cells = " ".join(lines[5].split())
    assert cells == ("/models/draft.gguf same 850 MB same 0.010 0.11 0.50 1.50x [1.40, 1.60] bench 12 9.4 GB")
    assert lines[6].split()[:2] == ["suffix,", "lookup"]
    command = "use: paceline run -m /models/target.gguf -md /models/draft.gguf"
    assert lines[-1] == f"{command} (1.50x [1.40, 1.60] measured)"


@pytest.mark.parametrize(
    ("how", "line"),
    [
        (
            known(1.0),
            "no draft pays, however often it is right; a pass over 2 tokens costs 2.0x one over 1",
        ),
        (
            known(past={"draft": gained(0.9), None: gained(1.01)}),
            "it was measured, and gained nothing (1.01x [0.91, 1.11] at best)",
        ),
        (known(available=1), "there is not even memory for the target"),
    ],
)
def test_where_drafting_does_not_pay_the_number_that_speaks_against_it(how: MeasuredFacts, line: str) -> None:
    assert report.advice(record(draft(), how=how)) == f"don't speculate here: {line}"


def test_downloads_come_with_their_reason_caveat_and_source() -> None:
    lines = told(record(pairs=[PAIR])).splitlines()
    at = lines.index("not here, known to fit:")
    assert lines[at + 1 : at + 3] == [
        f"  paceline pull {PAIR.draft}",
        "    of its kin; mind the gap [recalled, https://x.y]",
    ]
    assert lines[-1].startswith(f"paceline pull {PAIR.draft}, or copy: ")
    assert "    of its kin [recalled]\n" in told(record(pairs=[replace(PAIR, source="", caveat="")]))


def test_names_that_are_no_text_are_escaped() -> None:
    evil = DraftCandidate(facts("x", billions=0.8), "\x1b[2Jdraft\n", "same")
    target = facts("\x1b]0;target\n", quantisation="\x07")
    text = told(advise(target, [evil], AdviceRequest("code"), known()))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\\x1b[2Jdraft\\n" in text


def test_commands_can_be_copied_whatever_files_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert report.shell_quoted("/home/me/my model.gguf") == "~/'my model.gguf'"
    assert report.shell_quoted("hf.co/user/repo-GGUF:Q8_0") == "hf.co/user/repo-GGUF:Q8_0"
    said = record(draft("a;b"), how=known(past={"a;b": gained(1.5)}))
    said["target"]["reference"] = "/models/my target.gguf"
    command = report.advice(said).partition(" (")[0].removeprefix("use: ")
    assert shlex.split(command)[2:] == ["-m", "/models/my target.gguf", "-md", "/models/a;b.gguf"]
