"""`paceline prefill`: answers from a part of the prompt."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import paceline
from paceline.cli.app import app
from paceline.prepare.prefill import measure_prefill, recommend
from paceline.report.variants import write_prefill
from paceline.speculative.errors import UsageError


def no_progress(_: Mapping[str, int]) -> Callable[[str], None]:
    return lambda _: None


@pytest.fixture
def suite(tmp_path: Path) -> str:
    """Two prompts of more than 256 tokens, which are bytes here, a short one, and one that does not fit."""
    items = [
        {"id": str(i), "category": "grounded", "prompt": text, "max_tokens": 8}
        for i, text in enumerate(
            ("A text to read. " * 20, "Another text to read. " * 15, "short", "long " * 99)
        )
    ]
    path = tmp_path / "suite.jsonl"
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return str(path)


@pytest.fixture
def given(models: Path) -> dict[str, Any]:
    return {
        "target": models / "target.gguf", "draft": models / "draft.gguf", "threads": 1, "n_ctx": 400,
    }  # fmt: skip


def test_each_share_is_measured_beside_the_whole_prompt(
    given: dict[str, Any], suite: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: list[str] = []
    work: dict[str, int] = {}

    def begin(phases: Mapping[str, int]) -> Callable[[str], None]:
        work.update(phases)
        return steps.append

    record = measure_prefill(given, begin, shares=(0.3, 0.6), suite=suite, n=6, bound=0.0)
    assert {phase: steps.count(phase) for phase in work} == work
    assert record["prompts"] == 2
    assert "do not fit the context" in capsys.readouterr().err
    whole, more, less = record["rows"]
    assert [row["share"] for row in record["rows"]] == [1.0, 0.6, 0.3]
    assert (whole["first_token"], whole["agreement"], whole["rise"], whole["same_answers"]) == (1, 1, 0, 2)
    assert whole["computed"] == record["prompt_tokens"] > more["computed"] > less["computed"]
    assert less["agreement"] < 1.0
    assert whole["tokens"] == less["tokens"] == 2 * 6
    file = io.StringIO()
    write_prefill(record, file)
    assert "first token after" in file.getvalue()
    assert "60%" in file.getvalue()
    write_prefill({**record, "recommended": 1.0}, file)
    assert "No part of the prompts" in file.getvalue()


def test_the_soonest_within_the_bound_is_recommended() -> None:
    rows = [
        {"share": 1.0, "agreement": 1.0, "first_token": 1.0},
        {"share": 0.5, "agreement": 0.95, "first_token": 0.6},
        {"share": 0.2, "agreement": 0.8, "first_token": 0.3},
    ]
    assert [recommend(rows, bound)["share"] for bound in (0.99, 0.9, 0.5)] == [1.0, 0.5, 0.2]
    assert recommend([{**rows[0], "agreement": 0.99}, *rows[1:]], 1.0)["share"] == 1.0


def test_the_role_speed_uses_what_was_recommended(
    given: dict[str, Any], suite: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.prepare.prefill.recommend", lambda rows, _: rows[1])
    measure_prefill(given, no_progress, shares=(0.3,), suite=suite, n=4)
    capsys.readouterr()
    with paceline.load(**given, role="speed") as llm:
        assert llm.target.modification == "with 30% of a long prompt"
    assert "role speed: prefill=0.3 changes what" in capsys.readouterr().err
    given.pop("draft")
    with paceline.load(**given, drafters="none", role="speed") as llm:
        assert llm.target.modification == ""


def test_impossible_plans_are_refused(given: dict[str, Any], suite: str) -> None:
    for plan, reason in (
        ({"shares": ()}, "shares of a prompt"),
        ({"shares": (0.5, 1.0)}, "shares of a prompt"),
        ({"bound": 1.1}, "an agreement of 1.1: must be at most 1"),
        ({"suite": "toy", "items": 1}, "holds no prompt of more than 256 tokens that fits"),
    ):
        with pytest.raises(UsageError, match=reason):
            measure_prefill(given, no_progress, **plan)
    with pytest.raises(UsageError, match="a draft model has to say"):
        measure_prefill({**given, "draft": None}, no_progress, suite=suite)


def test_the_command_prints_a_record(given: dict[str, Any], suite: str) -> None:
    models = ["-m", str(given["target"]), "-md", str(given["draft"]), "-t", "1", "-c", "400"]
    options = ["prefill", *models, "--suite", suite, "-n", "4"]
    done = CliRunner().invoke(app, [*options, "--shares", "0.4", "--json"])
    assert done.exit_code == 0, done.output
    assert [row["share"] for row in json.loads(done.stdout)["rows"]] == [1.0, 0.4]
    done = CliRunner().invoke(app, [*options, "--shares", "0.4"])
    assert "same answers" in done.stdout
    done = CliRunner().invoke(app, [*options, "--shares", "a"])
    assert isinstance(done.exception, UsageError)


def test_a_run_says_how_much_was_left_out(given: dict[str, Any]) -> None:
    models = ["-m", str(given["target"]), "-md", str(given["draft"]), "-t", "1", "-c", "400"]
    options = ["run", *models, "-n", "4", "--lossy", "prefill=0.3", "--stats", "A text to read. " * 20]
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0, done.output
    assert re.search(r"\d+ tokens of the prompt left out", done.stderr)
    done = CliRunner().invoke(app, [*options, "--role", "quality"])
    assert isinstance(done.exception, UsageError)
