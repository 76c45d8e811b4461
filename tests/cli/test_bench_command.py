"""`paceline bench`: what it prints, what it keeps, what it refuses, and how it ends."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

import broken
from command_line import Done, command
from fake_llama_server import write_fake_server
from gguf_files import write_llama
from paceline.bench.baselines.llama_server import LlamaServer
from paceline.bench.baselines.process import BackgroundProgram
from paceline.bench.history import History
from paceline.bench.system import ItemMeasurements
from paceline.speculative.errors import HistoryError
from paceline.system.identity import file_fingerprint

Capture = pytest.CaptureFixture[str]
EXACT = ("--cache-type", "f32", "-fa", "off")
ITEMS = (
    {"id": "a", "category": "one", "prompt": "ab ab ab ab"},
    {"id": "b", "category": "two", "prompt": "hello hello"},
    {"id": "c", "category": "two", "prompt": "the end the"},
)
METHODS = ("plain", "lookup", "model")


def write_suite(path: Path, *items: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps({"max_tokens": 6} | item) + "\n" for item in items))
    return path


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return write_suite(tmp_path / "suite.jsonl", *ITEMS)


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return the path of a test's benchmark history."""
    return tmp_path / "history" / "bench.jsonl"


@pytest.fixture
def args(models: Path, suite: Path, kept: Path) -> tuple[str, ...]:
    """The two models, each a row of its own, and the suite: two rounds."""
    return (
        "bench", "-m", f"{models}/target.gguf", "-md", f"{models}/draft.gguf", "-t", "1", "--rounds", "2",
        "--methods", ",".join(METHODS), "--suite", str(suite), "--history", str(kept), *EXACT,
    )  # fmt: skip


@pytest.fixture
def alone(args: tuple[str, ...]) -> tuple[str, ...]:
    """The target with lookup."""
    rest = list(args)
    rest[rest.index("--methods") + 1] = "lookup"
    del rest[3:5]
    return tuple(rest)


def stored(capsys: Capture, kept: Path, *words: str) -> Done:
    """`bench list` and its like."""
    return command(capsys, "bench", *words, "--history", kept)


def rows(record: dict[str, Any]) -> list[tuple[str, str]]:
    return [(result["system"], result["category"]) for result in record["results"]]


# What comes out.


def test_json_is_one_object_with_a_row_a_system_for_each_category_and_for_all(
    capsys: Capture, args: tuple[str, ...]
) -> None:
    done = command(capsys, *args, "--json")
    assert (done.code, done.err) == (0, "")
    record = done.json
    assert rows(record) == [(system, category) for category in ("one", "two", "") for system in METHODS]
    assert (record["run"], record["status"], record["skipped"]) == (1, "done", [])
    for one in record["results"]:
        assert one["lossless"]
        assert one["items"] == {"one": 1, "two": 2, "": 3}[one["category"]]
        assert (one["rounds"], one["n_tokens"]) == (2, one["items"] * 2 * 6)
        assert one["speed"] > 0
        assert (one["speedup"] is None) == (one["system"] == "plain")
    assert [result["verdict"] for result in record["results"][-3:]] == ["reference", "identical", "identical"]
    assert record["provenance"]["request"]["questions"]


def test_the_same_rows_come_as_a_table_and_are_shown_again(
    capsys: Capture, args: tuple[str, ...], kept: Path
) -> None:
    table = command(capsys, *args)
    assert (table.code, table.err) == (0, "")
    assert [line.split()[0] for line in table.out.splitlines() if " reference" in line] == ["plain"]
    assert stored(capsys, kept, "show").out == table.out
    assert len(stored(capsys, kept, "show", "--json").json["results"]) == 9


# The history.


def test_the_environment_names_the_history_and_no_history_writes_none(
    capsys: Capture, alone: tuple[str, ...], tmp_path: Path
) -> None:
    at = alone.index("--history")
    nowhere = (*alone[:at], *alone[at + 2 :], "--json")
    other = tmp_path / "other" / "bench.jsonl"
    assert command(capsys, *nowhere, "--no-history", PACELINE_HISTORY=str(other)).json["run"] is None
    assert not other.parent.exists()
    assert command(capsys, *nowhere, PACELINE_HISTORY=str(other)).json["run"] == 1


# What is refused.


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--rounds", "0"], "rounds 0: must be at least 1"),
        (["--methods", "lookup"], "no method names 'model'"),
        (["--peer", "ollama"], "--peer ollama: unknown; choose from llama-server"),
        (["--suite", "poems"], "unknown suite 'poems'"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    capsys: Capture, args: tuple[str, ...], kept: Path, more: list[str], words: str
) -> None:
    command(capsys, *args, *more).refused(2, words)
    assert not kept.exists()


def test_options_before_a_subcommand_are_refused_and_not_ignored(capsys: Capture, kept: Path) -> None:
    command(capsys, "bench", "--history", kept, "list").refused(2, "give options after `list`")
    assert not kept.exists()


# The lossless gate.


def test_a_method_that_is_not_lossless_shows_no_speed_and_the_exit_code_is_3(
    capsys: Capture, args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.speculative.loop.verify", broken.judged_by(broken.everything))
    done = command(capsys, *args, "--p-min", "0", "--methods", "model", "--json")
    assert done.code == 3
    assert done.err == "paceline: not lossless: model; shown without a speed\n"
    for result in json.loads(done.out)["results"]:
        if result["system"] == "model":
            assert result["verdict"].startswith("NOT LOSSLESS: ")
            assert (result["speed"], result["speedup"], result["ttft"]) == (None, None, None)
        else:
            assert result["speed"] > 0
    table = command(capsys, *args, "--p-min", "0", "--methods", "model")
    row = next(line for line in table.out.splitlines() if line.startswith("model"))
    assert row.split()[:9] == ["model", *["-"] * 8]
    assert table.out.splitlines()[-1].startswith("no conclusion")


# Ctrl-C, and going on.


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the groups added to the history, and send SIGINT after the number in "press after"."""
    counts = {"groups": 0, "press after": 0}
    add = History.add

    def adds(history: History, run: int, group: ItemMeasurements) -> None:
        counts["groups"] += 1
        add(history, run, group)
        if counts["groups"] == counts["press after"]:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(History, "add", adds)
    return counts


def test_ctrl_c_keeps_what_is_measured_and_resume_measures_only_the_rest(
    capsys: Capture, args: tuple[str, ...], kept: Path, asked: dict[str, int]
) -> None:
    asked["press after"] = 2
    done = command(capsys, *args)
    assert done.code == 130
    assert done.err == "interrupted; `paceline bench resume 1` goes on\n"
    assert "status    interrupted: what was measured until then" in done.out
    shown = [line.split()[0] for line in done.out.splitlines() if line.startswith(METHODS)]
    assert shown[:3] == list(METHODS)
    assert stored(capsys, kept, "show").out == done.out
    whole = stored(capsys, kept, "resume", "--json").json
    assert asked["groups"] == 6
    assert (whole["run"], whole["status"]) == (1, "done")
    fresh = command(capsys, *args, "--json").json
    shape = ("system", "category", "lossless", "verdict", "items", "rounds", "n_tokens")
    assert [[result[name] for name in shape] for result in whole["results"]] == [
        [result[name] for name in shape] for result in fresh["results"]
    ]
    assert whole["provenance"] == fresh["provenance"]
    stored(capsys, kept, "resume", "1").refused(2, "run 1 is complete: `paceline bench show 1` prints it")
    listed = json.loads(stored(capsys, kept, "list", "--json").out, parse_constant=pytest.fail)
    assert [(one["run"], len(one["results"])) for one in listed] == [(2, 9), (1, 9)]


def test_a_history_that_fails_in_mid_run_costs_no_measurement(
    capsys: Capture, args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise HistoryError("the disk is full")

    monkeypatch.setattr(History, "add", full)
    done = command(capsys, *args, "--json")
    assert (done.code, done.err) == (0, "not kept to its end: the disk is full\n")
    assert {result["rounds"] for result in done.json["results"]} == {2}


# Other programs in the same run.


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes of other programs."""
    pids: list[int] = []
    start = BackgroundProgram.__init__

    def starts(program: BackgroundProgram, *args: Any, **named: Any) -> None:
        start(program, *args, **named)
        pids.append(program.pid)

    monkeypatch.setattr(BackgroundProgram, "__init__", starts)
    defaults = LlamaServer.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout", 0.5)
    return pids


def test_a_program_that_fails_in_mid_run_is_told_and_the_others_keep_their_speeds(
    capsys: Capture, alone: tuple[str, ...], tmp_path: Path, started: list[int]
) -> None:
    server = with_lookup(write_fake_server(tmp_path / "fake", "hangs"))
    done = command(capsys, *alone, "--peer", f"llama-server={server}", "--json")
    assert done.code == 1
    assert done.err.startswith("paceline: llama-server lookup: failed: llama-server lookup ")
    assert done.err.count("said nothing for 0.5 s") == 2
    overall = {
        result["system"]: result for result in json.loads(done.out)["results"] if not result["category"]
    }
    assert list(overall) == ["plain", "lookup", "llama-server", "llama-server lookup"]
    assert all(overall[name]["speed"] for name in ("plain", "lookup"))
    assert [overall[name]["speed"] for name in ("llama-server", "llama-server lookup")] == [None, None]
    assert len(started) >= 2
    assert not any(psutil.pid_exists(pid) for pid in started)


def with_lookup(server: Path) -> Path:
    """The server, with n-gram drafts among the flags it tells of."""
    path = server.with_name("llama-server")
    flags = "--spec-type none,ngram-simple --spec-ngram-simple-size-m N"
    path.write_text(f'#!/bin/sh\ncase "$*" in *--help*) echo "{flags}" ;; esac\nexec {server} "$@"\n')
    path.chmod(0o755)
    return path


def test_llama_server_joins_in_its_own_methods(capsys: Capture, tmp_path: Path, kept: Path) -> None:
    pytest.importorskip("xllamacpp", reason="it carries a llama-server")
    suite = write_suite(
        tmp_path / "suite.jsonl", {"id": "a", "prompt": "def f(x):\n    return x\n\ndef g(x):"}
    )
    done = command(
        capsys, "bench", "-t", "1", "--methods", "lookup", "--peer", "llama-server=xllamacpp", "-n", "16",
        "--rounds", "1", "--suite", suite, "--history", kept, "--json",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    systems = {result["system"]: result for result in done.json["results"]}
    assert list(systems) == ["plain", "lookup", "llama-server", "llama-server lookup"]
    for one in systems.values():
        assert one["lossless"]
        assert one["n_tokens"] == 16
        assert one["speed"] > 0
        assert one["memory"] > 1 << 20


@pytest.mark.slow
def test_a_run_of_another_model_is_not_gone_on_with_and_stays_as_it_was(
    capsys: Capture, args: tuple[str, ...], kept: Path, asked: dict[str, int], tmp_path: Path
) -> None:
    model = write_llama(tmp_path / "changing.gguf")
    asked["press after"] = 2
    done = command(capsys, *args, "-m", model, "--methods", "model")
    assert done.code == 130
    write_llama(model, seed=1)
    file_fingerprint.cache_clear()  # as in a new process
    stored(capsys, kept, "resume").refused(2, "run 1 cannot go on, its target differed")
    assert stored(capsys, kept, "show").out == done.out
