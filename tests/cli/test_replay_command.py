"""`paceline replay`: tables, the record, refusals, and Ctrl-C."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from command_line import Done, command, program
from paceline import zoo
from paceline.lab.replay import replay as module
from paceline.lab.replay import traces

Capture = pytest.CaptureFixture[str]
DATA = Path(__file__).parents[1] / "data" / "traces"
TOKENS, TEXTS, CHATS = (DATA / f"{name}.jsonl" for name in ("tokens", "texts", "chats"))
TOKENIZER = ("--tokenizer", zoo.target_path())


def replay(capsys: Capture, *args: str | Path) -> Done:
    return command(capsys, "replay", *args)


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    for one in record["results"]:
        del one["seconds"]
    return record


def test_the_tables_go_to_stdout_and_nothing_anywhere_else(capsys: Capture) -> None:
    done = replay(capsys, TOKENS, "--methods", "plain,lookup,lookup:ngram_min=1")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("file      tokens.jsonl: 8 requests\nreplayed  8 requests, 320 tokens after ")
    for name in ("plain", "lookup", "lookup:ngram_min=1"):
        assert f"\n{name} " in done.out
    assert "learned from the requests before, of the same file" in done.out
    assert "tokens/s " not in done.out


def test_the_record_holds_every_figure_and_is_the_same_every_time(capsys: Capture) -> None:
    args = (TOKENS, "--methods", "lookup", "--n-draft", "5", "--json")
    first, second = (replay(capsys, *args) for _ in range(2))
    assert (first.code, first.err) == (0, "")
    record = first.json
    assert list(record) == [
        "format", "paceline", "processor", "tokenizer", "n_vocab", "limit", "status", "fresh", "files",
        "requests", "results",
    ]  # fmt: skip
    assert (record["format"], record["status"], record["tokenizer"]) == (1, "done", None)
    (lookup,) = record["results"]
    assert lookup["drafting"]["n_draft"] == 5
    assert lookup["n_tokens"] == sum(one["n_tokens"] for one in record["requests"]) == 320
    assert lookup["steps"] + lookup["accepted"] >= 320  # a record may end with an accepted token
    assert 0 < lookup["accepted"] < lookup["drafted"]
    assert timeless(record) == timeless(second.json)


def test_texts_and_conversations_are_read_with_a_models_tokenizer(capsys: Capture) -> None:
    done = replay(capsys, TEXTS, CHATS, TOKENS, *TOKENIZER, "--json")
    assert (done.code, done.err) == (0, "")
    assert (done.json["tokenizer"], done.json["n_vocab"]) == ("paceline-target.gguf", 8192)
    counts = [(one["file"], one["requests"], one["skipped"]) for one in done.json["files"]]
    assert counts == [("texts.jsonl", 3, 0), ("chats.jsonl", 5, 1), ("tokens.jsonl", 8, 0)]
    said = replay(capsys, CHATS, *TOKENIZER).out
    assert "chats.jsonl: 5 requests, 1 without an answer left out\n" in said
    assert "paceline-target.gguf, 8,192 tokens\n" in said


def test_a_limit_is_over_all_files(capsys: Capture) -> None:
    for limit, files in ((2, [2]), (4, [3, 1]), (0, [3, 8])):
        record = replay(capsys, TEXTS, TOKENS, *TOKENIZER, "--limit", str(limit), "--json").json
        assert [one["requests"] for one in record["files"]] == files
        assert len(record["requests"]) == sum(files)


def test_fresh_is_said(capsys: Capture) -> None:
    assert "forgot before every request" in replay(capsys, TOKENS, "--fresh").out
    assert command(capsys, "replay", TOKENS, "--json", PACELINE_FRESH="1").json["fresh"] is True


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["missing.jsonl"], ["missing.jsonl", "cannot be read"]),
        ([TEXTS], ["texts.jsonl, line 1", "holds text", "--tokenizer"]),
        ([TOKENS, TOKENS], ["tokens.jsonl", "named twice"]),
        ([TOKENS, "--methods", "magic"], ["unknown drafter 'magic'", "lookup"]),
        ([TOKENS, "--methods", "lookup+model"], ["leave 'model' out"]),
        ([TOKENS, "--methods", ","], ["no method named"]),
        ([TOKENS, "--corpus", "code"], ["--corpus", "--tokenizer"]),
        ([TOKENS, *TOKENIZER, "--corpus", "missing/"], ["missing"]),
        ([TOKENS, "--limit", "-1"], ["--limit -1", "at least 0"]),
        ([TOKENS, "--n-draft", "0"], ["n_draft 0"]),
        ([TOKENS, "--tokenizer", "missing.gguf"], ["missing.gguf", "no such file"]),
        ([], ["Missing argument 'FILE'", "replay --help"]),
    ],
)
def test_what_cannot_be_replayed_is_refused(capsys: Capture, args: list[Any], words: list[str]) -> None:
    replay(capsys, *args).refused(2, *words)


def test_a_trace_of_another_vocabulary_is_refused(capsys: Capture, models: Path, tmp_path: Path) -> None:
    file = models / "target.gguf"
    replay(capsys, TOKENS, "--tokenizer", file).refused(2, "tokens.jsonl, line 1", "another vocabulary")
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"prompt_tokens": [1], "tokens": [2], "n_vocab": 10}) + "\n")
    replay(capsys, TOKENS, other).refused(2, "other.jsonl, line 1", "of 10 tokens and not 8,192")


def test_a_bad_line_is_found_before_anything_is_replayed(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "a\nb.jsonl"
    file.write_text(TOKENS.read_text() + "{\n")
    replay(capsys, file).refused(2, "a\\nb.jsonl, line 9", "is no JSON")


def test_ctrl_c_keeps_the_requests_that_are_done(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    play = module.Lane.play
    played: list[Any] = []

    def pressing(lane: Any, recording: Any) -> Any:
        played.append(recording)
        if len(played) == 5:  # in the third request of two methods
            signal.raise_signal(signal.SIGINT)
        return play(lane, recording)

    monkeypatch.setattr(module.Lane, "play", pressing)
    done = replay(capsys, TOKENS, "--methods", "plain,lookup", "--json")
    assert (done.code, done.err) == (130, "")
    assert (done.json["status"], len(done.json["requests"])) == ("interrupted", 3)
    assert [one["requests"] for one in done.json["results"]] == [3, 3]
    played.clear()
    said = replay(capsys, TOKENS, "--methods", "plain,lookup")
    assert said.code == 130
    assert "\nstatus    interrupted: what was replayed until then\n" in said.out


def test_ctrl_c_while_reading_ends_it_without_a_word(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = traces._object

    def pressing(line: str, where: str) -> Any:
        signal.raise_signal(signal.SIGINT)
        return read(line, where)

    monkeypatch.setattr(traces, "_object", pressing)
    done = replay(capsys, TOKENS)
    assert (done.code, done.out, done.err) == (130, "", "")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_help_says_what_it_is_and_what_not(capsys: Capture) -> None:
    done = command(capsys, "replay", "--help", COLUMNS="80")
    assert done.code == 0
    assert "acceptance, not speed" in " ".join(done.out.split())
    assert all(len(line) <= 80 for line in done.out.splitlines())


def test_token_ids_need_no_llama_cpp(tmp_path: Path) -> None:
    """Where it is not installed, text says what to install."""
    (tmp_path / "llama_cpp.py").write_text("raise ImportError('not here')\n")
    done = program("replay", TOKENS, "--json", PYTHONPATH=str(tmp_path))
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["status"] == "done"
    done = program("replay", TEXTS, *TOKENIZER, PYTHONPATH=str(tmp_path))
    done.refused(1, "paceline[llama]")
