"""`paceline certify`: the certificate, its record, its refusals, and the name of every defect."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import broken
from command_line import Done, command
from gguf_architectures import write_architecture
from paceline.backends.llama_cpp import LlamaTarget
from paceline.bench.certify import certificate
from paceline.cli.texts import read_prompts
from paceline.models import zoo
from paceline.speculative.interfaces import ForwardOutput
from paceline.speculative.loop import ActiveRequest
from paceline.speculative.sampling import logprob
from paceline.speculative.stats import Logprob
from planted import rejected_cells_stay

Capture = pytest.CaptureFixture[str]
# With F16 rounding is worse than such short texts can tell.
EXACT = ("--cache-type", "f32", "-fa", "off")
SMALL = ("--samples", "100", "--contexts", "2", "--sequences", "3", "-n", "12")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("ab ab ab ab\nhello hello\n")
    return file


@pytest.fixture
def pair(models: Path, text: Path) -> tuple[str, ...]:
    """The two models and the prompts, as arguments."""
    return ("-m", f"{models}/target.gguf", "-md", f"{models}/draft.gguf", "--prompts", str(text), *EXACT)


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificate, "MIN_TEXT_TOKENS", 32)


def certify(capsys: Capture, *args: str | Path) -> Done:
    return command(capsys, "certify", "-t", "1", *SMALL, *args)


@pytest.mark.slow
def test_the_summary_goes_to_stdout_and_nothing_else_anywhere(capsys: Capture, models: Path) -> None:
    """Certification runs with the built-in prompts."""
    files = ("-m", models / "target.gguf", "-md", models / "draft.gguf")
    done = certify(capsys, *files, "-n", "4", "--samples", "300")
    assert (done.code, done.err) == (0, "")
    said = done.out.splitlines()
    assert len(said) <= 15
    assert [line.split()[0] for line in said if not line.startswith(" ")] == [
        "losslessness", "target", "draft", "drafting", "greedy", "sampled", "state", "logprobs",
        "CERTIFIED:",
    ]  # fmt: skip
    assert "8 prompts, 32 tokens" in done.out
    assert said[3].startswith("drafting  auto by goodput, ")
    assert said[5].startswith("          with every draft verified (")


@pytest.mark.slow
def test_json_has_every_figure_and_where_it_came_from(capsys: Capture, pair: tuple[str, ...]) -> None:
    done = certify(capsys, *pair, "--json")
    assert (done.code, done.err) == (0, "")
    record = done.json
    assert list(record) == [
        "certified", "defects", "greedy", "every_draft", "sampled", "state", "logprobs", "provenance",
    ]  # fmt: skip
    assert (record["certified"], record["defects"]) == (True, [])
    assert [one["n_tokens"] for one in record["greedy"]] == [12, 12]
    assert {one["verdict"] for one in record["greedy"]} <= {"identical", "near-tie"}
    sampled = record["sampled"]
    assert (sampled["contexts"], sampled["runs"], sampled["passed"]) == (2, 200, True)
    assert {len(sampled[test]["p_values"]) for test in ("draft", "first_token", "first_pair")} == {2}
    assert sampled["overruns"] == sampled["ties"] == 0
    assert sampled["drafted"] > 0
    assert (record["state"]["sequences"], record["state"]["passed"]) == (3, True)
    assert record["state"]["worst"] <= record["state"]["limit"]
    assert [one["n_tokens"] for one in record["every_draft"]] == [12, 12]
    assert sum(one["stats"]["drafted"] for one in record["every_draft"]) > 0
    assert record["logprobs"]["tokens"] == 48
    request = record["provenance"]["request"]
    assert (request["n"], request["contexts"], request["runs"], request["sequences"]) == (12, 2, 100, 3)
    assert request["prompts"] == ["ab ab ab ab", "hello hello"]
    assert request["sampling"]["typical_p"] == 0.99


def test_prompts_are_lines_of_text_or_of_json(text: Path, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "ab ab ab ab", "id": 7}\r\n{"prompt": "hello\\nhello"}\n')
    assert read_prompts(file) == ["ab ab ab ab", "hello\nhello"]
    text.write_bytes(b"ab ab ab ab\r\nform\x0cfeed")
    assert read_prompts(text) == ["ab ab ab ab", "form\x0cfeed"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("gap.txt", b"one\n\ntwo\n", "gap.txt, line 2: give a prompt"),
        ("none.jsonl", b'{"text": "a"}', 'none.jsonl, line 1: give a JSON object with a "prompt"'),
        ("long.txt", b"a\n" + b"hello" * 200, "the prompt has 1,000 tokens, the context 512"),
    ],
)
def test_prompts_that_cannot_be_used_are_refused(
    capsys: Capture, pair: tuple[str, ...], tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    certify(capsys, *pair[:4], "--prompts", tmp_path / name).refused(2, words)


def test_what_cannot_be_certified_is_refused(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixture = str(write_architecture(tmp_path / "moe.gguf", "qwen3moe"))
    certify(capsys, "-m", mixture, "--lossy", "experts=1").refused(2, "--lossy experts=1: nothing to certify")
    certify(capsys, "-m", mixture, "--role", "speed").refused(2, "--role speed: nothing to certify")
    monkeypatch.setattr("paceline.backends.llama_cpp.target.drops_rejected_drafts", lambda _: False)
    mamba = str(write_architecture(tmp_path / "mamba.gguf", "mamba"))
    certify(capsys, "-m", mamba).refused(2, "the model's state cannot be rolled back")


def test_a_recurrent_model_is_certified_with_a_recurrent_draft(capsys: Capture, tmp_path: Path) -> None:
    target, draft = (str(write_architecture(tmp_path / f"{arch}.gguf", arch)) for arch in ("jamba", "mamba"))
    record = certify(capsys, "-m", target, "-md", draft, "--draft", "lookup,model", "--json").json
    assert record["certified"]
    assert record["state"]["rows"] > 100


@pytest.mark.slow
def test_named_samplers_replace_the_default_ones(capsys: Capture, pair: tuple[str, ...]) -> None:
    record = certify(capsys, *pair, "--top-k", "7", "--logit-bias", "65=-inf", "--json").json
    sampling = record["provenance"]["request"]["sampling"]
    assert (sampling["temperature"], sampling["top_k"], sampling["typical_p"]) == (1.0, 7, 1.0)
    assert sampling["logit_bias"] == {"65": "-inf"}
    record = certify(capsys, *pair, "--temp", "0.5", "--json").json
    assert record["provenance"]["request"]["sampling"]["temperature"] == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("check", ["greedy", "sampled"])
def test_ctrl_c_ends_any_check_and_nothing_is_printed(
    capsys: Capture, pair: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, check: str
) -> None:
    run_check = getattr(certificate, f"check_{check}")

    def pressing(*args: Any, **named: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return run_check(*args, **named)

    monkeypatch.setattr(certificate, f"check_{check}", pressing)
    closed: list[str] = []
    close = LlamaTarget.close

    def noting(target: LlamaTarget) -> None:
        closed.append(target.path.name)
        close(target)

    monkeypatch.setattr(LlamaTarget, "close", noting)
    done = certify(capsys, *pair)
    assert (done.code, done.out, done.err) == (130, "", "")
    assert sorted(set(closed)) == ["draft.gguf", "target.gguf"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# What is wrong is found, and named.


def defects(done: Done) -> list[str]:
    """Return the defects of a refused certificate; check its exit code and its error message."""
    assert done.code == 3
    record = json.loads(done.out)
    names: list[str] = record["defects"]
    assert done.err == f"paceline: not certified: {', '.join(names)}; --json has every figure\n"
    assert not record["certified"]
    return names


@pytest.mark.slow
def test_a_verification_that_accepts_too_much_is_a_defect_of_greedy_and_sampled_output(
    capsys: Capture, pair: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.speculative.loop.verify", broken.judged_by(broken.everything))
    assert defects(certify(capsys, *pair, "--p-min", "0", "--json")) == ["greedy", "sampled"]
    done = certify(capsys, *pair, "--p-min", "0")
    assert done.out.splitlines()[-1] == "NOT CERTIFIED: greedy, sampled"


@pytest.mark.slow
@pytest.mark.parametrize("broken_logprob", [None, np.nan])
def test_log_probabilities_of_another_row_or_that_are_no_numbers_are_a_defect(
    capsys: Capture, pair: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, broken_logprob: float | None
) -> None:
    def wrong(request: ActiveRequest, out: ForwardOutput, path: Sequence[int], tokens: Sequence[int]) -> Any:
        first_row = (logprob(out.logits(0), token, 0) for token in tokens)
        if broken_logprob is None:
            return tuple(Logprob(*one) for one in first_row)
        return tuple(Logprob(broken_logprob if i else -1.0, ()) for i, _ in enumerate(tokens))

    monkeypatch.setattr("paceline.speculative.loop.token_logprobs", wrong)
    assert defects(certify(capsys, *pair, "--json")) == ["log-probabilities"]


@pytest.mark.slow
def test_rejected_cells_that_stay_are_a_defect_of_the_state(capsys: Capture, pair: tuple[str, ...]) -> None:
    with rejected_cells_stay("target"):
        assert "state" in defects(certify(capsys, *pair, "--json"))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["tli", "slem"])
def test_a_draft_of_another_vocabulary_is_certified(
    capsys: Capture, foreign_draft: Path, mode: str, tmp_path: Path
) -> None:
    prompts = tmp_path / "sure.txt"  # what comes next both models know
    prompts.write_text('if __name__ == "__main\nfor i in range(len(\n')
    models = ("-m", zoo.target_path(), "-md", foreign_draft, "--cross-vocab", mode, "-c", "64")
    drafting = ("-n", "6", "--p-min", "0.1", "--n-draft", "3", "--prompts", prompts)
    done = certify(capsys, *models, *EXACT, *drafting, "--json")
    assert (done.code, done.err) == (0, "")
    assert done.json["certified"]
    assert done.json["sampled"]["accepted"] > 0
