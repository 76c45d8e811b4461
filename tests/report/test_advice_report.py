"""Advice as it is read."""

from __future__ import annotations

import io
import shlex
from dataclasses import replace
from typing import Any

import pytest

from advice_facts import facts, known, passes
from paceline.lab.advice.past import Past
from paceline.lab.advice.prior import Range
from paceline.lab.advice.ranking import advise
from paceline.lab.advice.row import Candidate, Known, Question
from paceline.machine.fit.known_pairs import KnownPair
from paceline.report import advice as report

PAIR = KnownPair(
    ("kin*",), (), 0, "hf.co/maker/kin-0.5B-GGUF:Q8_0", 500_000_000, "of its kin", "mind the gap", "https://x.y",
    "reported", "seen",
)  # fmt: skip


def record(
    *candidates: Candidate, how: Known | None = None, task: str = "code", **more: Any
) -> dict[str, Any]:
    return advise(facts(), candidates, Question(task), how or known(passes(0.1)), **more).as_dict()


def draft(name: str = "draft", verdict: str = "same", **more: Any) -> Candidate:
    return Candidate(facts(name, billions=0.8, **more), f"/models/{name}.gguf", verdict)


def told(said: dict[str, Any]) -> str:
    out = io.StringIO()
    report.write(said, out)
    return out.getvalue()


def test_what_was_asked_the_table_and_one_line_of_advice() -> None:
    text = told(record(draft()))
    lines = text.splitlines()
    assert lines[:3] == [
        "target   target, Q8_0, 8.5 GB",
        "for      code, 4,096 tokens of context",
        "costs    of the target measured: 2 tokens in a pass cost 1.10x one",
    ]
    head, first, second = (line.split() for line in lines[4:7])
    assert head[:5] == ["draft", "fits", "size", "K", "acceptance"]
    assert first[:2] == ["/models/draft.gguf", "same"]
    assert second[:2] == ["suffix,", "lookup"]
    assert lines[-1].startswith("use: paceline run -m /models/target.gguf -md /models/draft.gguf (")
    assert lines[-1].endswith(" predicted)")
    assert "~" not in text


def test_estimates_are_marked() -> None:
    text = told(record(draft(), how=known(passes(0.1, source="estimated"))))
    assert "of the target estimated: " in text
    assert "  ~" in text
    assert "--measure" in text


def test_what_was_measured_is_told_as_measured() -> None:
    past = Past("model", Range(1.4, 1.5, 1.6), None, 7, 12, 100)
    text = told(record(draft(), how=known(passes(0.5), past={"draft": past})))
    assert "1.50x [1.40, 1.60] bench 12 " in " ".join(text.split())
    assert text.endswith("(1.50x [1.40, 1.60] measured)\n")


def test_the_number_that_speaks_against_drafting() -> None:
    line = report.advice(record(draft(), task="translation", how=known(passes(0.8))))
    said = record(draft(), task="translation", how=known(passes(0.8)))["drafts"]
    model = next(row for row in said if row["drafter"] == "model")
    assert line.startswith("don't speculate here: for any gain drafts must be right ")
    assert f"right {model['needed']:.2f} of the time" in line
    assert "0.34 to 0.69 is expected for translation; a pass over 2 tokens costs 1.8x one over 1" in line


def test_where_no_acceptance_is_enough() -> None:
    line = report.advice(record(draft(), how=known(passes(1.0))))
    assert line == (
        "don't speculate here: no draft pays, however often it is right; "
        "a pass over 2 tokens costs 2.0x one over 1"
    )


def test_an_acceptance_that_was_measured_is_not_expected() -> None:
    past = Past("model", None, Range(0.5, 0.55, 0.6), 7, 12, 100)
    line = report.advice(record(draft(), task="prose", how=known(passes(0.9), past={"draft": past})))
    assert "0.50 to 0.60 was measured for prose" in line


def test_a_measured_loss_is_the_reason() -> None:
    past = Past("model", Range(0.8, 0.9, 0.95), None, 7, 12, 100)
    line = report.advice(record(draft(), task="prose", how=known(passes(1.0), past={"draft": past})))
    assert line == "don't speculate here: it was measured, and gained nothing (0.90x [0.80, 0.95])"


def test_what_needs_no_model_is_not_advised_with_one() -> None:
    line = report.advice(record(draft(), task="edit", how=known(passes(0.1), {"draft": 0.5})))
    assert line.startswith("no draft model is needed: paceline run -m /models/target.gguf (")


def test_what_is_only_estimated_is_to_be_tried_and_measured() -> None:
    guessed = passes(0.1, source="estimated")
    line = report.advice(record(draft(), task="edit", how=known(guessed, {"draft": 0.5})))
    assert line.startswith("try it without a draft model: paceline run -m /models/target.gguf (")
    assert "x [1.00, " in line
    assert line.endswith("; whether it gains, `paceline bench -m /models/target.gguf` tells")
    line = report.advice(record(draft(), how=known(guessed)))
    assert line.startswith("try: paceline run -m /models/target.gguf -md /models/draft.gguf (")
    assert line.endswith("`paceline bench -m /models/target.gguf -md /models/draft.gguf` tells")


def test_a_draft_of_another_vocabulary_is_run_with_a_translation() -> None:
    said = record(draft(verdict="mappable"), how=known(passes(0.02)), task="chat")
    line = report.advice(said)
    assert " -md /models/draft.gguf --cross-vocab auto (" in line
    assert any(note.startswith("mappable: ") for note in report.notes(said))


def test_downloads_come_with_their_reason_caveat_and_source() -> None:
    said = record(task="prose", pairs=[PAIR])
    lines = told(said).splitlines()
    at = lines.index("not here, known to fit:")
    assert lines[at + 1].startswith(f"  paceline pull {PAIR.draft}  (")
    assert lines[at + 2] == "    of its kin; mind the gap [https://x.y]"
    assert f"paceline pull {PAIR.draft} (" in lines[-1]
    recalled = record(task="prose", pairs=[replace(PAIR, source="", caveat="")])
    assert "    of its kin [recalled]\n" in told(recalled)


def test_no_memory_and_memory_that_is_not_known() -> None:
    text = told(record(draft(kv_bytes=0), how=known(passes(0.1), available=8_600_000_000)))
    assert "9.4 GB+ !" in text
    assert "more memory than is free (8.6 GB): /models/draft.gguf\n" in text
    assert "-md" not in text
    nothing = report.advice(record(draft(), how=known(passes(0.1), available=1)))
    assert nothing == "don't speculate here: there is not even memory for the target"


def test_a_target_that_nothing_can_be_drafted_for() -> None:
    said = advise(facts(memory="hybrid"), [draft()], Question(), known(), [PAIR]).as_dict()
    assert told(said).endswith(
        "\ndon't speculate here: nothing can be drafted for it yet: it is hybrid, "
        "and its state cannot be rolled back\n"
    )


def test_names_that_are_no_text_are_escaped() -> None:
    evil = Candidate(facts("x", billions=0.8), "\x1b[2Jdraft\n", "same")
    target = facts("\x1b]0;target\n", quantisation="\x07")
    how = known(passes(0.1))
    text = told(advise(target, [evil], Question("code"), how).as_dict())
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\\x1b[2Jdraft\\n" in text


@pytest.mark.parametrize("room", [80, 120])
def test_long_names_give_way_to_the_figures(room: int) -> None:
    said = record(draft("deep/" * 30 + "draft"))["drafts"]
    cells = [row[0] for row in report.table(said, room).rows]
    assert max(map(len, cells)) <= max(report.SHORTEST, room // 2)
    assert cells[0].startswith("…")
    assert cells[0].endswith("draft.gguf")
    assert max(len(row[0]) for row in report.table(said).rows) > 120


def test_commands_can_be_copied_whatever_files_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert report.typed("/home/me/my model.gguf") == "~/'my model.gguf'"
    assert report.typed("hf.co/user/repo-GGUF:Q8_0") == "hf.co/user/repo-GGUF:Q8_0"
    said = record(draft("a;b"))
    said["target"]["reference"] = "/models/my target.gguf"
    command = report.advice(said).partition(" (")[0].removeprefix("use: ")
    assert shlex.split(command)[2:] == ["-m", "/models/my target.gguf", "-md", "/models/a;b.gguf"]
