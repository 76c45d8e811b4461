"""`paceline experts` and `paceline prefill`: what fewer experts, and parts of prompts, gain and cost."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import paceline
from gguf_architectures import write_architecture
from paceline.backends.logit_drift import teacher_forced_logits
from paceline.bench.provenance import provenance
from paceline.cli.app import app
from paceline.prepare import lossy
from paceline.prepare.lossy import (
    fastest_experts,
    measure_experts,
    measure_prefill,
    score_text,
    soonest_share,
    usual_counts,
)
from paceline.report.variants import write_experts, write_prefill
from paceline.settings import LoadOptions
from paceline.speculative.errors import UsageError
from training_answers import write_lines

TEXT = "A text of a few words, to be scored token by token. " * 4
QUICK: dict[str, Any] = {"text": TEXT, "suite": "chat", "items": 1, "n": 4}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A model with experts."""
    path = write_architecture(tmp_path_factory.mktemp("experts") / "moe.gguf", "qwen3moe")
    return {"target": path, "threads": 1}


@pytest.fixture
def pair(models: Path) -> dict[str, Any]:
    """A target and a draft model, whose tokens are bytes."""
    files = {"target": models / "target.gguf", "draft": models / "draft.gguf"}
    return {**files, "threads": 1, "n_ctx": 400}


@pytest.fixture
def suite(tmp_path: Path) -> str:
    """Two prompts of more than 256 tokens, a short one, and one that does not fit."""
    texts = ("A text to read. " * 20, "Another text to read. " * 15, "short", "long " * 99)
    items = (
        {"id": str(i), "category": "grounded", "prompt": text, "max_tokens": 8}
        for i, text in enumerate(texts)
    )
    return str(write_lines(tmp_path / "suite.jsonl", *items))


class Progress:
    """Collects the steps of a measurement."""

    def __init__(self) -> None:
        self.work: dict[str, int] = {}
        self.steps: list[str] = []

    def __call__(self, work: Mapping[str, int]) -> Callable[[str], None]:
        self.work.update(work)
        return self.steps.append

    def require_complete(self) -> None:
        assert {phase: self.steps.count(phase) for phase in self.work} == self.work


def test_perplexity_is_that_of_the_texts_tokens(mixture: dict[str, Any]) -> None:
    with paceline.load(**mixture, drafters="none") as llm:
        tokens = llm.target.text.encode(TEXT)[:80]  # more than a pass
        scores = score_text(llm.target, tokens)
        rows = teacher_forced_logits(llm.target, tokens, 1, 1)
    expected = [np.log(np.exp(row).sum()) - row[token] for row, token in zip(rows, tokens[1:], strict=False)]
    assert len(scores.nats) == len(tokens) - 1
    assert np.allclose(scores.nats[: len(expected)], expected, atol=1e-5)
    assert scores.likeliest[: len(rows)].tolist() == rows.argmax(axis=1)[: len(scores.likeliest)].tolist()


def test_each_number_of_experts_is_measured_with_the_models_own(mixture: dict[str, Any]) -> None:
    progress, file = Progress(), io.StringIO()
    record = measure_experts(LoadOptions.of(draft=mixture["target"], **mixture), progress, **QUICK)
    progress.require_complete()
    assert [row["experts"] for row in record["rows"]] == [2, 1]
    whole, one = record["rows"]
    assert (whole["rise"], whole["agreement"], whole["speed"]["none"]) == (0.0, 1.0, 1.0)
    assert one["agreement"] < 1.0
    assert one["perplexity"] == pytest.approx(whole["perplexity"] * (1 + one["rise"]))
    assert set(one["speed"]) == {"none", "lookup", "model"}
    write_experts(record, file)
    columns = ["experts", "plain", "lookup", "model", "perplexity", "agreement"]
    assert file.getvalue().splitlines()[0].split() == columns
    assert "paceline run -m" in file.getvalue()


def test_each_share_is_measured_with_the_whole_prompt(
    pair: dict[str, Any], suite: str, capsys: pytest.CaptureFixture[str]
) -> None:
    progress, file = Progress(), io.StringIO()
    record = measure_prefill(LoadOptions.of(**pair), progress, shares=(0.3, 0.6), suite=suite, n=6, bound=0.0)
    progress.require_complete()
    assert record["prompts"] == 2
    assert "do not fit the context" in capsys.readouterr().err
    whole, more, less = record["rows"]
    assert [row["share"] for row in record["rows"]] == [1.0, 0.6, 0.3]
    assert (whole["first_token"], whole["agreement"], whole["rise"], whole["same_answers"]) == (1, 1, 0, 2)
    assert whole["computed"] == record["prompt_tokens"] > more["computed"] > less["computed"]
    assert less["agreement"] < 1.0
    assert whole["tokens"] == less["tokens"] == 2 * 6
    write_prefill(record, file)
    assert "60%" in file.getvalue()
    write_prefill({**record, "recommended": 1.0}, file)
    assert "No part of the prompts" in file.getvalue()


def test_the_fastest_within_the_bound_is_recommended() -> None:
    rows: list[dict[str, Any]] = [
        {"experts": 8, "rise": 0.0, "speed": {"none": 1.0, "lookup": 1.4}},
        {"experts": 4, "rise": 0.02, "speed": {"none": 1.3, "lookup": 1.5}},
        {"experts": 2, "rise": 0.2, "speed": {"none": 1.9, "lookup": 2.0}},
    ]
    assert fastest_experts(rows, 0.02) == {"experts": 4, "drafter": "lookup", "speed": 1.5}
    assert fastest_experts(rows, 0.01) == {"experts": 8, "drafter": "lookup", "speed": 1.4}
    assert (usual_counts(1), usual_counts(4), usual_counts(8)) == ((), (3, 2, 1), (7, 6, 5, 3, 2, 1))
    rows = [
        {"share": 1.0, "agreement": 1.0, "first_token": 1.0},
        {"share": 0.5, "agreement": 0.95, "first_token": 0.6},
        {"share": 0.2, "agreement": 0.8, "first_token": 0.3},
    ]
    assert [soonest_share(rows, bound)["share"] for bound in (0.99, 0.9, 0.5)] == [1.0, 0.5, 0.2]


def test_the_role_speed_uses_the_recommended_experts(
    mixture: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lossy, "fastest_experts", lambda *_: {"experts": 1})
    measure_experts(LoadOptions.of(**mixture), Progress(), **QUICK, bound=1e9)
    capsys.readouterr()
    with paceline.load(**mixture, drafters="none", role="speed") as llm:
        assert llm.target.modification == "with 1 experts a token instead of 2"
        assert provenance(llm, {})["role"] == "speed"
    assert "role speed: experts=1 changes what" in capsys.readouterr().err
    with paceline.load(**mixture, drafters="none", role="quality") as llm:
        assert llm.target.modification == ""
    with pytest.raises(UsageError, match="role quality: lossy experts=1 changes"):
        paceline.load(**mixture, lossy="experts=1", role="quality")
    with pytest.raises(UsageError, match="role"):
        paceline.load(**mixture, role="both")


def test_the_role_speed_uses_the_recommended_share(
    pair: dict[str, Any], suite: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lossy, "soonest_share", lambda rows, _: rows[1])
    measure_prefill(LoadOptions.of(**pair), Progress(), shares=(0.3,), suite=suite, n=4)
    capsys.readouterr()
    with paceline.load(**pair, role="speed") as llm:
        assert llm.target.modification == "with 30% of a long prompt"
    assert "role speed: prefill=0.3 changes what" in capsys.readouterr().err
    pair.pop("draft")
    with paceline.load(**pair, drafters="none", role="speed") as llm:
        assert llm.target.modification == ""


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"counts": (5,)}, "experts=5"),
        ({"text": "a"}, "fewer than two tokens"),
        ({"target": "toy:"}, "has no experts"),
    ],
)
def test_impossible_plans_of_experts_are_refused(
    mixture: dict[str, Any], plan: dict[str, Any], reason: str
) -> None:
    given = {**mixture, "target": plan.pop("target", mixture["target"])}
    with pytest.raises(UsageError, match=reason):
        measure_experts(LoadOptions.of(**given), Progress(), **plan)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({"shares": (0.5, 1.0)}, "the share of a long prompt"),
        ({"suite": "toy", "items": 1}, "holds no prompt of more than 256 tokens that fits"),
        ({"draft": None}, "a draft model has to say"),
    ],
)
def test_impossible_plans_of_shares_are_refused(
    pair: dict[str, Any], plan: dict[str, Any], reason: str
) -> None:
    given = {**pair, "draft": plan.pop("draft", pair["draft"])}
    with pytest.raises(UsageError, match=reason):
        measure_prefill(LoadOptions.of(**given), Progress(), **plan)


def test_the_commands_print_a_record(
    mixture: dict[str, Any], pair: dict[str, Any], suite: str, tmp_path: Path
) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    given = ["-m", str(mixture["target"]), "-t", "1", "-f", str(tmp_path / "text.txt")]
    done = CliRunner().invoke(app, ["experts", *given, "--suite", "chat", "--items", "1", "-n", "4"])
    assert done.exit_code == 0, done.output
    assert "2 of 4" in done.stdout
    line = shlex.split(done.stderr.splitlines()[-1].partition("as a page: paceline ")[2])
    assert CliRunner().invoke(app, [*line[:-1], str(tmp_path / "page.html")]).exit_code == 0
    assert "2 of 4" in (tmp_path / "page.html").read_text()
    given = ["-m", str(pair["target"]), "-md", str(pair["draft"]), "-t", "1", "-c", "400", "-n", "4"]
    options = ["prefill", *given, "--suite", suite, "--shares"]
    done = CliRunner().invoke(app, [*options, "0.4", "--json"])
    assert done.exit_code == 0, done.output
    assert [row["share"] for row in json.loads(done.stdout)["rows"]] == [1.0, 0.4]
    assert "same answers" in CliRunner().invoke(app, [*options, "0.4"]).stdout
    assert isinstance(CliRunner().invoke(app, [*options, "a"]).exception, UsageError)
    options = ["run", *given, "--lossy", "prefill=0.3", "--stats", "A text to read. " * 20]
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0, done.output
    assert re.search(r"\d+ tokens of the prompt left out", done.stderr)
    assert isinstance(CliRunner().invoke(app, [*options, "--role", "quality"]).exception, UsageError)
