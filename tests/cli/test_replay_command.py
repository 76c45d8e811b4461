"""`paceline replay`: tables, the record, refusals, and Ctrl-C."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from command_line import Done, command, program
from paceline.backends.llama_cpp import LlamaTarget
from paceline.bench.replay import replay as lane
from paceline.models import zoo
from paceline.profiling.pass_costs import cost_key
from paceline.speculative.policy.costs import DecodingCosts, PassCosts
from paceline.storage.costs import CachedCosts, store

Capture = pytest.CaptureFixture[str]
DATA = Path(__file__).parents[1] / "data" / "traces"
TOKENS, TEXTS, CHATS = (DATA / f"{name}.jsonl" for name in ("tokens", "texts", "chats"))
TOKENIZER = ("--model", zoo.target_path())


NOWHERE = DATA / "nothing is kept here"


def replay(capsys: Capture, *args: str | Path, home: Path = NOWHERE) -> Done:
    return command(capsys, "replay", *args, PACELINE_HOME=str(home))


@pytest.fixture
def curve(tmp_path: Path) -> Path:
    file = tmp_path / "curve.json"
    said = DecodingCosts(
        PassCosts.flat(0.02, 0.001), PassCosts.flat(0.001, 0.0001, rows=8), step=0.0005
    ).as_dict()
    file.write_text(json.dumps({"format": 1, "provenance": {"processor": "another one"}} | said))
    return file


def test_the_record_holds_every_figure_and_is_the_same_every_time(capsys: Capture) -> None:
    args = (TOKENS, "--methods", "lookup", "--n-draft", "5", "--json")
    first, second = (replay(capsys, *args) for _ in range(2))
    assert (first.code, first.err) == (0, "")
    record = first.json
    assert list(record) == [
        "format", "paceline", "processor", "tokenizer", "cost_curve", "draft_model", "n_vocab", "limit",
        "expected_of_mtp",
        "status", "fresh", "costs", "files", "requests", "results",
    ]  # fmt: skip
    assert (record["format"], record["status"], record["tokenizer"]) == (3, "done", None)
    (lookup,) = record["results"]
    assert lookup["drafting"]["n_draft"] == 5
    assert lookup["n_tokens"] == sum(request["n_tokens"] for request in record["requests"]) == 320
    assert lookup["steps"] + lookup["accepted"] >= 320  # a record may end with an accepted token
    assert 0 < lookup["accepted"] < lookup["drafted"]
    assert record == second.json
    done = replay(capsys, TOKENS, "--methods", "plain,lookup,lookup:ngram_min=1")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("file      tokens.jsonl: 8 requests\nreplayed  8 requests, 320 tokens after ")
    assert "\nlookup:ngram_min=1 " in done.out


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([TEXTS], ["texts.jsonl, line 1", "holds text", "-m FILE"]),
        ([TOKENS, TOKENS], ["tokens.jsonl", "named twice"]),
        ([TOKENS, "--corpus", "code"], ["--corpus", "-m FILE"]),
        ([TOKENS, "--cost-curve", "missing.json"], ["missing.json", "cannot be read", "doctor --json"]),
        ([TOKENS, "--cost-curve", TOKENS], ["tokens.jsonl", "doctor --json"]),
        ([TOKENS, "-md", zoo.draft_path()], ["no method names 'model'"]),
    ],
)
def test_what_cannot_be_replayed_is_refused(capsys: Capture, args: list[Any], words: list[str]) -> None:
    replay(capsys, *args).refused(2, *words)


def test_ctrl_c_keeps_the_requests_that_are_done(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    play = lane.MethodReplay.play
    played: list[Any] = []

    def pressing(one: Any, recording: Any) -> Any:
        played.append(recording)
        if len(played) == 5:  # in the third request of two methods
            signal.raise_signal(signal.SIGINT)
        return play(one, recording)

    monkeypatch.setattr(lane.MethodReplay, "play", pressing)
    done = replay(capsys, TOKENS, "--methods", "plain,lookup", "--json")
    assert (done.code, done.err) == (130, "")
    assert (done.json["status"], len(done.json["requests"])) == ("interrupted", 3)
    assert [result["requests"] for result in done.json["results"]] == [3, 3]


# Speeds.


def test_a_cost_curve_predicts_speeds(capsys: Capture, curve: Path) -> None:
    args = (TOKENS, "--methods", "lookup,ngram+lookup:policy=goodput", "--limit", "3", "--cost-curve", curve)
    done = replay(capsys, *args)
    assert (done.code, done.err) == (0, "")
    assert "\ncosts     curve.json\n" in done.out
    assert "speed-up" in done.out
    assert "not speed" not in done.out
    first, second = (replay(capsys, *args, "--json").json for _ in range(2))
    plain, lookup, rate = (result["predicted"] for result in first["results"])
    assert plain["tokens_per_second"]["value"] == pytest.approx(1 / 0.0205)
    assert lookup["speedup"]["value"] > 1.0
    for one in (lookup, rate):
        assert one["tokens_per_second"]["value"] == pytest.approx(120 / one["seconds"])
    assert first == second


def test_what_was_measured_when_the_model_was_loaded_is_the_default(
    capsys: Capture, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored costs are found by the key of a loaded model's costs."""
    home = tmp_path / "home"
    monkeypatch.setenv("PACELINE_HOME", str(home))
    target = LlamaTarget(models / "target.gguf", threads=1)
    assert store(cost_key(target, "target"), CachedCosts(PassCosts.flat(0.25)), pytest.fail)
    file = tmp_path / "trace.jsonl"
    file.write_text(
        json.dumps({"prompt_tokens": [1], "tokens": [2] * 8, "n_vocab": target.vocab.size}) + "\n"
    )
    target.close()
    args = (file, "-m", models / "target.gguf")
    done = replay(capsys, *args, "-t", "1", home=home)
    assert "\ncosts     as measured on this machine before\n" in done.out
    known = replay(capsys, *args, "-t", "1", "--json", home=home).json
    assert known["cost_curve"] == "stored"
    assert known["results"][0]["predicted"]["tokens_per_second"]["value"] == pytest.approx(4.0)
    for other in (("-t", "2"), ("-t", "1", "-md", models / "draft.gguf", "--methods", "model")):
        assert "not speed" in replay(capsys, *args, *other, home=home).out


# A draft model.


def test_draft_of_another_vocabulary_is_refused(capsys: Capture, models: Path, tmp_path: Path) -> None:
    given = ("-t", "1", "--methods", "model")
    draft = models / "draft.gguf"
    replay(capsys, TOKENS, "-md", draft, *TOKENIZER, *given).refused(2, "the draft has another vocabulary")
    file = tmp_path / "ids.jsonl"
    for n_vocab, model in ((None, draft), (8192, draft), (8192, zoo.draft_path())):
        line = {"prompt_tokens": [1], "tokens": [2], "n_vocab": n_vocab, "vocab": "0" * 64}
        file.write_text(json.dumps(line) + "\n")
        replay(capsys, file, "-md", model, *given).refused(2, "the record another or one that it does not")


@pytest.mark.slow
def test_token_ids_need_no_llama_cpp(tmp_path: Path) -> None:
    """Replay of text without llama-cpp-python reports what to install, and how long that takes."""
    (tmp_path / "llama_cpp.py").write_text("raise ImportError('not here')\n")
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib.metadata import Distribution, PackageNotFoundError\n"
        "there = Distribution.from_name\n"
        "def found(name):\n"
        "    if name == 'llama-cpp-python':\n"
        "        raise PackageNotFoundError(name)\n"
        "    return there(name)\n"
        "Distribution.from_name = found\n"
    )
    done = program("replay", TOKENS, "--json", PYTHONPATH=str(tmp_path))
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["status"] == "done"
    for file in (TEXTS, TOKENS):
        done = program("replay", file, *TOKENIZER, PYTHONPATH=str(tmp_path))
        done.refused(1, "paceline[llama]", "compiles llama.cpp for this processor in some minutes")
