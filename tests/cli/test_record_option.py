"""--record: runs and benches kept as traces, and replayed."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from command_line import Done, command, run
from paceline.backends.registry import open_tokenizer
from paceline.bench.replay import recording, traces
from paceline.bench.replay.traces import Trace
from paceline.engine import Stream

Capture = pytest.CaptureFixture[str]
PROMPT = ("ab ab ab ab", "-n", "12", "--ignore-eos", "--draft", "lookup")
next_piece = Stream.__next__


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "traces.jsonl"


def objects(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def read(path: Path) -> Trace:
    return traces.read(path, None)


def test_a_run_is_a_line_of_what_was_read_and_said(capsys: Capture, target: Path, file: Path) -> None:
    first = run(capsys, target, *PROMPT, "--json", "--record", file)
    assert (first.code, first.err) == (0, "")
    second = run(capsys, target, *PROMPT, "--temp", "0.7", "--seed", "3", "--json", PACELINE_RECORD=str(file))
    plain, drawn = objects(file)
    with closing(open_tokenizer(target)) as tokenizer:
        assert plain["prompt_tokens"] == tokenizer.text.encode("ab ab ab ab")
        assert (plain["vocab"], plain["n_vocab"]) == (
            tokenizer.vocab.fingerprint,
            tokenizer.vocab.size,
        )
    assert plain["tokens"] == first.json["tokens"]
    assert (plain["sampling"], plain["seed"], plain["stop_reason"]) == ({}, 0, "length")
    assert plain["drafting"]["drafters"] == ["lookup"]
    said, stats = first.json, first.json["stats"]
    assert plain["times"] == {
        "prompt": said["prompt_seconds"],
        "seconds": said["seconds"],
        **{name: stats[name] for name in ("steps", "drafted", "accepted")},
    }
    assert plain["model"] == said["provenance"]["target"]["name"]
    assert drawn["tokens"] == second.json["tokens"]
    assert (drawn["sampling"], drawn["seed"]) == ({"temperature": 0.7}, 3)
    assert plain["id"] != drawn["id"]
    assert len(read(file).requests) == 2


def test_a_comparison_is_one_request_and_the_plain_one(capsys: Capture, target: Path, file: Path) -> None:
    said = run(capsys, target, *PROMPT, "--compare", "--json", "--record", file).json
    (line,) = objects(file)
    assert (line["tokens"], line["drafting"]) == (said["plain"]["tokens"], {"drafters": ["none"]})
    assert line["times"]["seconds"] == said["plain"]["seconds"]


def test_what_was_interrupted_is_recorded_as_far_as_it_came(
    capsys: Capture, target: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Stream] = []

    def pressing(stream: Stream) -> Any:
        steps.append(stream)
        if len(steps) == 3:
            signal.raise_signal(signal.SIGINT)
        return next_piece(stream)

    monkeypatch.setattr(Stream, "__next__", pressing)
    done = run(capsys, target, *PROMPT, "--draft", "none", "--json", "--record", file)
    (line,) = objects(file)
    assert (done.code, line["stop_reason"], line["tokens"]) == (130, "interrupted", done.json["tokens"])
    assert len(line["tokens"]) == 3


def test_what_can_no_longer_be_written_is_told_once_and_the_answer_is_whole(
    capsys: Capture, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a\nb.jsonl"

    def full(path: Path, line: bytes) -> None:
        raise OSError(28, "No space left on device")

    usual = run(capsys, target, *PROMPT)
    monkeypatch.setattr(recording, "append_line", full)
    done = run(capsys, target, *PROMPT, "--record", file)
    assert (done.code, done.out) == (0, usual.out)
    warning, summary = done.err.splitlines()
    assert warning.startswith("paceline: --record ")
    assert "a\\nb.jsonl: cannot be written (No space left on device); nothing more is" in warning
    assert " tokens/s" in summary


TURNS = (("user", "ab"), ("assistant", None), ("user", "c"))


def bench(capsys: Capture, target: Path, folder: Path, *args: str | Path) -> Done:
    turns = [{"role": role, "content": text} for role, text in TURNS]
    said: list[dict[str, Any]] = [
        {"id": "c", "category": "two", "prompt": "ab ab ab"},
        {"id": "s.1", "category": "one", "session": "s", "messages": [{"role": "user", "content": "ab"}]},
        {"id": "a", "category": "two", "prompt": "hello hello"},
        {"id": "s.2", "category": "one", "session": "s", "messages": turns},
    ]
    suite = folder / "suite.jsonl"
    suite.write_text("".join(json.dumps({"max_tokens": 6} | one) + "\n" for one in said))
    exact = ("--cache-type", "f32", "-fa", "off", "-t", "1", "--rounds", "1")
    return command(capsys, "bench", "-m", target, "--methods", "lookup", "--suite", suite, *exact, *args)


def test_bench_records_each_plain_answer_once_in_order(capsys: Capture, target: Path, file: Path) -> None:
    done = bench(capsys, target, file.parent, "--record", file)
    assert done.code == 0
    trace = read(file)
    shape = [(request.id, request.category, request.session) for request in trace.requests]
    assert shape == [("c", "two", ""), ("s.1", "one", "s"), ("a", "two", ""), ("s.2", "one", "s")]
    with closing(open_tokenizer(target)) as tokenizer:
        first, second = (
            b"".join(map(tokenizer.vocab.piece, tokens)).decode(errors="replace")
            for tokens in (trace.requests[1].recording.tokens, trace.requests[3].recording.prompt)
        )
    assert first.strip() in second  # the answer that the session goes on from
