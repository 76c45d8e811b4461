"""`paceline experts`: a mixture with fewer experts, its quality and its speed."""

from __future__ import annotations

import io
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
from paceline.prepare.experts import measure_experts, recommend, usual_counts
from paceline.prepare.variants import score_text
from paceline.report.variants import write_experts
from paceline.speculative.errors import UsageError

TEXT = "A text of a few words, to be scored token by token. " * 4


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_architecture(tmp_path_factory.mktemp("experts") / "moe.gguf", "qwen3moe")


def no_progress(_: Mapping[str, int]) -> Callable[[str], None]:
    return lambda _: None


def test_perplexity_is_that_of_the_texts_tokens(mixture: Path) -> None:
    with paceline.load(mixture, drafters="none", threads=1) as llm:
        tokens = llm.target.text.encode(TEXT)[:80]  # more than a pass
        nats, likeliest = score_text(llm.target, tokens)
        rows = teacher_forced_logits(llm.target, tokens, 1, 1)
        expected = [
            np.log(np.exp(row).sum()) - row[token] for row, token in zip(rows, tokens[1:], strict=False)
        ]
        assert len(nats) == len(tokens) - 1
        assert np.allclose(nats[: len(expected)], expected, atol=1e-5)
        assert likeliest[: len(rows)].tolist() == rows.argmax(axis=1)[: len(likeliest)].tolist()


def test_each_number_is_measured_beside_the_models_own(mixture: Path) -> None:
    steps: list[str] = []
    work: dict[str, int] = {}

    def begin(phases: Mapping[str, int]) -> Callable[[str], None]:
        work.update(phases)
        return steps.append

    given = {"target": mixture, "threads": 1, "draft": mixture}
    record = measure_experts(given, begin, text=TEXT, suite="chat", items=1, n=4)
    assert {phase: steps.count(phase) for phase in work} == work
    assert [row["experts"] for row in record["rows"]] == [2, 1]
    whole, one = record["rows"]
    assert (whole["rise"], whole["agreement"], whole["speed"]["none"]) == (0.0, 1.0, 1.0)
    assert one["agreement"] < 1.0
    assert one["perplexity"] == pytest.approx(whole["perplexity"] * (1 + one["rise"]))
    assert set(one["speed"]) == {"none", "lookup", "model"}
    file = io.StringIO()
    write_experts(record, file)
    assert file.getvalue().splitlines()[0].split() == [
        "experts",
        "plain",
        "lookup",
        "model",
        "perplexity",
        "agreement",
    ]
    assert "paceline run -m" in file.getvalue()


def test_the_fastest_within_the_bound_is_recommended() -> None:
    rows: list[dict[str, Any]] = [
        {"experts": 8, "rise": 0.0, "speed": {"none": 1.0, "lookup": 1.4}},
        {"experts": 4, "rise": 0.02, "speed": {"none": 1.3, "lookup": 1.5}},
        {"experts": 2, "rise": 0.2, "speed": {"none": 1.9, "lookup": 2.0}},
    ]
    assert recommend(rows, 0.02) == {"experts": 4, "drafter": "lookup", "speed": 1.5}
    assert recommend(rows, 0.01) == {"experts": 8, "drafter": "lookup", "speed": 1.4}
    assert (usual_counts(1), usual_counts(4), usual_counts(8)) == ((), (3, 2, 1), (7, 6, 5, 3, 2, 1))


def test_the_role_speed_uses_what_was_recommended(
    mixture: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.prepare.experts.recommend", lambda *_: {"experts": 1})
    given = {"target": mixture, "threads": 1}
    measure_experts(given, no_progress, text=TEXT, suite="chat", items=1, n=4, bound=1e9)
    capsys.readouterr()
    with paceline.load(mixture, threads=1, drafters="none", role="speed") as llm:
        assert llm.target.modification == "with 1 experts a token instead of 2"
        assert provenance(llm, {})["role"] == "speed"
    assert "role speed: experts=1 changes what" in capsys.readouterr().err
    with paceline.load(mixture, threads=1, drafters="none", role="quality") as llm:
        assert llm.target.modification == ""
    with pytest.raises(UsageError, match="role quality: lossy experts=1 changes"):
        paceline.load(mixture, threads=1, lossy="experts=1", role="quality")
    with pytest.raises(UsageError, match="role"):
        paceline.load(mixture, threads=1, role="both")


def test_impossible_plans_are_refused(mixture: Path) -> None:
    given = {"target": mixture, "threads": 1}
    for plan, reason in (
        ({"counts": (5,)}, "experts 5: a token uses 2; give other numbers from 1 to 4"),
        ({"counts": (2,)}, "experts 2"),
        ({"text": "a"}, "fewer than two tokens"),
    ):
        with pytest.raises(UsageError, match=reason):
            measure_experts(given, no_progress, **plan)
    with pytest.raises(UsageError, match="has no experts"):
        measure_experts({"target": "toy:"}, no_progress)


def test_the_command_prints_a_record(mixture: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    options = ["--suite", "chat", "--items", "1", "-n", "4", "-t", "1", "-f", str(text)]
    done = CliRunner().invoke(app, ["experts", "-m", str(mixture), *options])
    assert done.exit_code == 0, done.output
    assert "2 of 4" in done.stdout
