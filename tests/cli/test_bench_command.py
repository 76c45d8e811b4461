"""`paceline bench`: what it prints, what it keeps, what it refuses, and how it ends."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

import broken
from command_line import command
from fake_llama_server import XLLAMACPP, write_fake_server
from gguf_architectures import write_architecture
from gguf_files import write_llama
from paceline.bench import run_file
from paceline.bench.baselines.llama_server import LlamaServer
from paceline.cli.bench import default_methods
from paceline.settings import LoadOptions
from paceline.system.home import file_fingerprint

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
    """Return the file of a test's run."""
    return tmp_path / "runs" / "run.jsonl"


@pytest.fixture
def args(models: Path, suite: Path, kept: Path) -> tuple[str, ...]:
    """The two models, each a row of its own, and the suite: two rounds."""
    return (
        "bench", "-m", f"{models}/target.gguf", "-md", f"{models}/draft.gguf", "-t", "1", "--rounds", "2",
        "--methods", ",".join(METHODS), "--suite", str(suite), "-o", str(kept), *EXACT,
    )  # fmt: skip


@pytest.fixture
def alone(args: tuple[str, ...]) -> tuple[str, ...]:
    """The target with lookup."""
    rest = list(args)
    rest[rest.index("--methods") + 1] = "lookup"
    del rest[3:5]
    return tuple(rest)


def rows(record: dict[str, Any]) -> list[tuple[str, str]]:
    return [(result["system"], result["category"]) for result in record["results"]]


def test_json_has_a_result_for_each_system_and_category(
    capsys: Capture, args: tuple[str, ...], kept: Path
) -> None:
    done = command(capsys, *args, "--json")
    assert (done.code, done.err) == (0, "")
    record = done.json
    assert rows(record) == [(system, category) for category in ("one", "two", "") for system in METHODS]
    assert (record["file"], record["status"], record["skipped"]) == (str(kept), "done", [])
    for one in record["results"]:
        assert one["lossless"]
        assert one["items"] == {"one": 1, "two": 2, "": 3}[one["category"]]
        assert (one["rounds"], one["n_tokens"]) == (2, one["items"] * 2 * 6)
        assert one["speed"] > 0
        assert (one["speedup"] is None) == (one["system"] == "plain")
    assert [result["verdict"] for result in record["results"][-3:]] == ["reference", "identical", "identical"]
    assert record["provenance"]["request"]["questions"]


def test_run_without_a_file_is_one_in_the_folder_of_runs(
    capsys: Capture, alone: tuple[str, ...], tmp_path: Path
) -> None:
    at = alone.index("-o")
    done = command(capsys, *alone[:at], *alone[at + 2 :], PACELINE_HOME=str(tmp_path / "home"))
    (file,) = (tmp_path / "home" / "bench").iterdir()
    assert f"file      {file}" in done.out.splitlines()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--rounds", "0"], "rounds 0"),
        (["--methods", "lookup"], "no method names 'model'"),
    ],
)
def test_plan_that_cannot_be_measured_is_refused(
    capsys: Capture, args: tuple[str, ...], kept: Path, more: list[str], words: str
) -> None:
    command(capsys, *args, *more).refused(2, words)
    command(capsys, *args, "--continue", kept).refused(2, "--continue: a run goes on with its own settings")
    command(capsys, "bench", "--continue", kept).refused(2, "cannot be read (No such file or directory)")
    assert not kept.exists()


def test_method_that_is_not_lossless_shows_no_speed(
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
    table = command(capsys, *args, "--p-min", "0", "--methods", "model", "-o", os.devnull)
    row = next(line for line in table.out.splitlines() if line.startswith("model"))
    assert row.split()[:9] == ["model", *["-"] * 8]
    assert table.out.splitlines()[-1].startswith("no conclusion")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the measured items, and send SIGINT after the number in "press after"."""
    counts = {"items": 0, "press after": 0}
    append = run_file.append

    def appending(path: Path, line: dict[str, Any]) -> None:
        counts["items"] += "item" in line
        append(path, line)
        if "item" in line and counts["items"] == counts["press after"]:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(run_file, "append", appending)
    return counts


def test_continuing_after_ctrl_c_measures_only_the_rest(
    capsys: Capture,
    args: tuple[str, ...],
    kept: Path,
    suite: Path,
    measured: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured["press after"] = 2
    monkeypatch.chdir(suite.parent)
    done = command(capsys, *[suite.name if arg == str(suite) else arg for arg in args])
    assert (done.code, done.err) == (130, f"interrupted; `paceline bench --continue {kept}` goes on\n")
    assert "status    interrupted" in done.out
    shown = [line.split()[0] for line in done.out.splitlines() if line.startswith(METHODS)]
    assert shown[:3] == list(METHODS)
    run = run_file.read(kept)
    assert (run.status, len(run.results), len(run.groups)) == ("interrupted", 9, 2)
    monkeypatch.chdir(kept.parent)
    whole = command(capsys, "bench", "--continue", kept.name, "--json").json
    assert measured["items"] == 6
    assert (whole["file"], whole["status"]) == (str(kept), "done")
    command(capsys, *args).refused(2, "is not empty: continue it (--continue), or name another file (-o)")
    fresh = command(capsys, *args, "-o", kept.parent / "fresh.jsonl", "--json").json
    shape = ("system", "category", "lossless", "verdict", "items", "rounds", "n_tokens")
    assert [[result[name] for name in shape] for result in whole["results"]] == [
        [result[name] for name in shape] for result in fresh["results"]
    ]
    whole["provenance"]["suite"] = fresh["provenance"]["suite"]  # as typed
    assert whole["provenance"] == fresh["provenance"]
    command(capsys, "bench", "--continue", kept).refused(2, "is complete: there is nothing left to measure")
    first = json.loads(kept.read_text().splitlines()[0])
    for change, why in (({"folder": "/no/such/folder"}, "was begun in"), ({"plan": {}}, "is no run of")):
        kept.write_text(json.dumps(first | change))
        command(capsys, "bench", "--continue", kept).refused(2, why)


def test_full_disk_costs_no_measurement(
    capsys: Capture, args: tuple[str, ...], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = run_file.append

    def full(path: Path, line: dict[str, Any]) -> None:
        if "plan" not in line:
            raise OSError(errno.ENOSPC, "the disk is full")
        append(path, line)

    monkeypatch.setattr(run_file, "append", full)
    done = command(capsys, *args, "--json")
    assert (done.code, done.err) == (0, f"{kept}: is incomplete (the disk is full)\n")
    assert {result["rounds"] for result in done.json["results"]} == {2}


def test_program_that_fails_is_reported_and_others_keep_their_speeds(
    capsys: Capture, alone: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = LlamaServer.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout", 0.5)
    server = write_fake_server(tmp_path / "llama-server", "hangs")
    done = command(capsys, *alone, "--baseline", f"llama-server={server}", "--json")
    assert done.code == 1
    assert done.err.startswith("paceline: llama-server lookup: failed: llama-server lookup ")
    assert done.err.count("no response for 0.5 s") == 2
    results = json.loads(done.out)["results"]
    overall = {result["system"]: result for result in results if not result["category"]}
    assert list(overall) == ["plain", "lookup", "llama-server", "llama-server lookup"]
    assert all(overall[name]["speed"] for name in ("plain", "lookup"))
    assert [overall[name]["speed"] for name in ("llama-server", "llama-server lookup")] == [None, None]
    children = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert [child for child in children if "fake_llama_server" in child] == []


@pytest.mark.parametrize("temp", [0.0, 0.8])
def test_llama_server_joins_in_its_own_methods(
    capsys: Capture, tmp_path: Path, kept: Path, temp: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.bench.gate.SAMPLED_CHECK_SIZES", ((4, 20),))
    pytest.importorskip("xllamacpp", reason="it carries a llama-server")
    suite = write_suite(
        tmp_path / "suite.jsonl", {"id": "a", "prompt": "def f(x):\n    return x\n\ndef g(x):"}
    )
    done = command(
        capsys, "bench", "-t", "1", "--methods", "lookup", "--baseline", f"llama-server={XLLAMACPP}", "-n",
        "16", "--rounds", "1", "--suite", suite, "-o", kept, "--json", "--temp", str(temp),
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    systems = {result["system"]: result for result in done.json["results"]}
    assert list(systems) == ["plain", "lookup", "llama-server", "llama-server lookup"]
    assert systems["llama-server lookup"]["verdict"].startswith("samples not checked: ") == (temp > 0)
    for one in systems.values():
        assert one["lossless"]
        assert one["n_tokens"] == 16
        assert one["speed"] > 0
        assert one["memory"] > 1 << 20


@pytest.mark.slow
def test_continuing_with_another_model_is_refused(
    capsys: Capture, args: tuple[str, ...], kept: Path, measured: dict[str, int], tmp_path: Path
) -> None:
    model = write_llama(tmp_path / "changing.gguf")
    measured["press after"] = 2
    done = command(capsys, *args, "-m", model, "--methods", "model")
    assert done.code == 130
    write_llama(model, seed=1)
    file_fingerprint.cache_clear()  # as in a new process
    before = kept.read_bytes()
    command(capsys, "bench", "--continue", kept).refused(2, "cannot go on, its target differed")
    assert kept.read_bytes() == before


def test_default_methods_are_those_of_the_draft_at_hand(models: Path, tmp_path: Path) -> None:
    target, draft = models / "target.gguf", models / "draft.gguf"
    mtp = write_architecture(tmp_path / "mtp.gguf", "qwen35", next_token_heads=1)
    named = "plain,auto,lookup"
    for files, also in (
        ((target,), ""),
        ((target, draft), ",model"),
        ((mtp,), ",mtp"),
        ((mtp, draft), ",model"),
    ):
        assert default_methods(LoadOptions.of(*files), full=False) == named + also
    assert default_methods(LoadOptions.of(mtp), full=True) == "plain,auto,lookup,suffix,ngram,mtp,lookup+mtp"
