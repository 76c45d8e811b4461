"""`paceline bench`: what it prints, what it keeps, what it refuses, and how it ends."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from gguf import GGUFReader

import broken
import paceline
from command_line import PROGRAM, Done, chunks, command, environment
from fake_llama_server import write_fake_server
from gguf_files import write_llama
from paceline.core.ports import Forward
from paceline.core.tree import DraftTree
from paceline.core.verify import Verdict, verify
from paceline.lab.bench import gate
from paceline.lab.bench.history import History
from paceline.lab.certify import frequencies
from paceline.lab.peers.llama_server import LlamaServer
from paceline.lab.peers.process import Program
from paceline.machine.identity import fingerprint

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
    """Where the benches of a test are kept."""
    return tmp_path / "history" / "bench.sqlite"


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
    return [(one["system"], one["category"]) for one in record["results"]]


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
    assert [one["verdict"] for one in record["results"][-3:]] == ["reference", "identical", "identical"]
    assert record["provenance"]["request"]["questions"]


def test_the_draft_is_named_whichever_method_comes_last(capsys: Capture, args: tuple[str, ...]) -> None:
    record = command(capsys, *args, "--methods", "model,lookup", "--json").json
    assert record["provenance"]["draft"]["file"] == "draft.gguf"


def test_the_same_rows_come_as_a_table_as_lines_as_csv_and_as_markdown(
    capsys: Capture, args: tuple[str, ...], kept: Path
) -> None:
    table = command(capsys, *args)
    assert (table.code, table.err) == (0, "")
    assert [line.split()[0] for line in table.out.splitlines() if " reference" in line] == ["plain"]
    record = stored(capsys, kept, "show", "--json").json
    assert stored(capsys, kept, "show").out == table.out
    lines = stored(capsys, kept, "show", "1", "--jsonl").out.splitlines()
    assert [json.loads(line) for line in lines] == record["results"]
    cells = list(csv.DictReader(io.StringIO(stored(capsys, kept, "show", "--csv").out)))
    assert [(row["system"], row["category"]) for row in cells] == rows(record)
    markdown = stored(capsys, kept, "show", "--md").out
    assert markdown.count("\n| plain") == 2
    assert "**speedup by category" in markdown


def test_a_plot_is_one_file(capsys: Capture, alone: tuple[str, ...], kept: Path, tmp_path: Path) -> None:
    command(capsys, *alone, "--plot", tmp_path / "a.html", "--json")
    stored(capsys, kept, "show", "--plot", str(tmp_path / "b.html"), "--json")
    assert "lookup" in (tmp_path / "a.html").read_text()
    assert "lookup" in (tmp_path / "b.html").read_text()


def test_progress_is_drawn_on_a_terminal_and_wiped(alone: tuple[str, ...]) -> None:
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [*PROGRAM, *alone, "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment(),
    ) as process:
        os.close(theirs)
        shown = b"".join(chunks(ours))
        assert process.stdout is not None
        out = process.stdout.read().decode()
    os.close(ours)
    assert process.returncode == 0
    assert Done(0, out, "").json["status"] == "done"
    phases = [shown.index(name) for name in (b"plain", b"gate", b"measure")]
    assert phases == sorted(phases)
    assert b"12/12" in shown
    assert shown.endswith(b"\x1b[2K")


# The history.


def test_the_environment_names_the_history_and_no_history_writes_none(
    capsys: Capture, alone: tuple[str, ...], tmp_path: Path
) -> None:
    at = alone.index("--history")
    nowhere = (*alone[:at], *alone[at + 2 :], "--json")
    other = tmp_path / "other" / "bench.sqlite"
    record = command(capsys, *nowhere, "--no-history", PACELINE_HISTORY=str(other)).json
    assert record["run"] is None
    assert not other.parent.exists()
    assert command(capsys, *nowhere, PACELINE_HISTORY=str(other)).json["run"] == 1
    assert command(capsys, "bench", "list", PACELINE_HISTORY=str(other)).out.splitlines()[1].startswith("1 ")


def test_an_empty_history_is_an_empty_list(capsys: Capture, kept: Path) -> None:
    done = stored(capsys, kept, "list", "--json")
    assert (done.code, done.out, done.err) == (0, "[]\n", "")
    stored(capsys, kept, "show").refused(2, "is empty: run `paceline bench` first")


def test_runs_are_listed_compared_and_removed(capsys: Capture, args: tuple[str, ...], kept: Path) -> None:
    for bias in ("65=-inf", "66=-inf"):
        assert command(capsys, *args, "--logit-bias", bias).code == 0
    listed = json.loads(stored(capsys, kept, "list", "--json").out, parse_constant=pytest.fail)
    assert [one["run"] for one in listed] == [2, 1]
    assert [len(one["results"]) for one in listed] == [9, 9]
    lines = stored(capsys, kept, "list", "--limit", "1").out.splitlines()
    assert [line.split()[0] for line in lines] == ["run", "2"]
    compared = stored(capsys, kept, "compare", "1", "2", "--json").json
    assert [one["what"] for one in compared["differences"]] == [
        "request.logit_bias.65",
        "request.logit_bias.66",
    ]
    assert len(compared["changes"]) == 9
    assert stored(capsys, kept, "compare", "1").out.endswith("no verdict\n")
    stored(capsys, kept, "rm", "1", "7").refused(2, "has no run 7")
    assert stored(capsys, kept, "rm", "1").code == 0
    assert [one["run"] for one in json.loads(stored(capsys, kept, "list", "--json").out)] == [2]


def test_a_regression_is_marked(capsys: Capture, args: tuple[str, ...], kept: Path) -> None:
    """Two runs of the same work, of which the second is told the speeds of the first, since a busy machine
    has others, and of one method a thousandth of them."""
    for _ in range(2):
        command(capsys, *args)
    with sqlite3.connect(kept) as connection:
        for place, text in connection.execute("SELECT place, result FROM results WHERE run = 1").fetchall():
            result = json.loads(text)
            if result["system"] == "model":
                result["speedup"] = {name: value / 1000 for name, value in result["speedup"].items()}
            result["items"] = 8  # three would tell no difference
            connection.execute(
                "UPDATE results SET result = ? WHERE run = 2 AND place = ?", (json.dumps(result), place)
            )
            before = json.dumps(json.loads(text) | {"items": 8})
            connection.execute("UPDATE results SET result = ? WHERE run = 1 AND place = ?", (before, place))
    connection.close()
    changes = stored(capsys, kept, "compare", "1", "2", "--json").json["changes"]
    marked = {one["system"] for one in changes if one["change"] == "REGRESSED"}
    assert "model" in marked
    assert "plain" not in marked
    out = stored(capsys, kept, "compare", "1", "2").out
    assert "REGRESSED" in out
    assert " regressed, " in out.splitlines()[-1]


def test_suites_are_listed(capsys: Capture) -> None:
    names = [one["name"] for one in json.loads(command(capsys, "bench", "suites", "--json").out)]
    table = command(capsys, "bench", "suites").out.splitlines()
    assert [line.split()[0] for line in table] == ["suite", *names]


def test_a_history_that_is_none_is_refused_before_anything_is_measured(
    capsys: Capture, args: tuple[str, ...], kept: Path
) -> None:
    kept.parent.mkdir()
    kept.write_text("no database at all\n" * 100)
    command(capsys, *args).refused(1, str(kept), "is damaged or no SQLite database", "--history FILE")
    stored(capsys, kept, "list").refused(1, "is damaged or no SQLite database")


def test_a_history_that_fails_in_mid_run_costs_no_measurement(
    capsys: Capture, args: tuple[str, ...], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = History.add_group

    def adds(history: History, run: int, point: int, round_: int, item: str, told: Any) -> None:
        if (round_, item) == (0, "b"):
            with sqlite3.connect(kept) as other:
                other.execute("DROP TABLE groups")
            other.close()
        add(history, run, point, round_, item, told)

    monkeypatch.setattr(History, "add_group", adds)
    done = command(capsys, *args, "--json")
    assert done.code == 0
    assert {one["rounds"] for one in done.json["results"]} == {2}
    assert done.err.startswith("not kept to its end: ")
    assert "no such table: groups" in done.err


# What is refused.


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--json", "--csv"], "--json, --csv: choose one"),
        (["--size", "huge"], "--size huge: choose tiny or full"),
        (["--plot", "/nowhere/x.html"], "name a file in a folder that is there"),
        (["--rounds", "0"], "rounds 0: must be at least 1"),
        (["-n", "1"], "the speed of decoding shows from the second on"),
        (["--methods", "plain,medusa"], "medusa"),
        (["--methods", "lookup"], "no method names 'model'"),
        (["--methods", "model,model"], "'model' is named twice"),
        (["--methods", "model:n_draft=x"], "n_draft takes a number"),
        (["--sweep", "speed"], "choose from k, temp"),
        (["--peer", "ollama"], "--peer ollama: unknown; choose from llama-server"),
        (["--suite", "poems"], "unknown suite 'poems'"),
        (["--suite", "/nowhere/x.jsonl"], "cannot be read"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    capsys: Capture, args: tuple[str, ...], kept: Path, more: list[str], words: str
) -> None:
    command(capsys, *args, *more).refused(2, words)
    assert not kept.exists() or json.loads(stored(capsys, kept, "list", "--json").out) == []


def test_options_before_a_subcommand_are_refused_and_not_ignored(capsys: Capture, kept: Path) -> None:
    command(capsys, "bench", "--history", kept, "list").refused(2, "give options after `list`")
    assert not kept.exists()


def test_a_bad_line_of_a_suite_is_refused_with_its_number(
    capsys: Capture, args: tuple[str, ...], suite: Path
) -> None:
    suite.write_text('{"prompt": "a"}\n{"category": "x"}\n')
    command(capsys, *args).refused(2, "suite.jsonl, line 2", "either a prompt or messages")


def test_prompts_beyond_the_context_are_skipped_with_a_note_and_one_is_enough(
    capsys: Capture, args: tuple[str, ...], suite: Path
) -> None:
    write_suite(suite, *ITEMS, {"id": "long", "prompt": "x" * 600}, {"id": "longer", "prompt": "x" * 700})
    done = command(capsys, *args, "-c", "512", "--methods", "model", "--json")
    assert done.code == 0
    assert {one["items"] for one in done.json["results"] if not one["category"]} == {3}
    assert [line.split(":")[:2] for line in done.err.splitlines()] == [
        ["skipped", " item long"],
        ["skipped", " item longer"],
    ]
    assert len(done.json["skipped"]) == 2
    write_suite(suite, ITEMS[0])
    one = command(capsys, *args, "--methods", "model", "--json")
    assert (one.code, rows(one.json)) == (0, [("plain", "one"), ("model", "one")])
    write_suite(suite, {"id": "long", "prompt": "x" * 600})
    command(capsys, *args).refused(2, "nothing to ask: item long: its 600 tokens and 6 more", "larger one")


def test_a_point_that_cannot_be_measured_leaves_those_before_it_on_stdout(
    capsys: Capture, alone: tuple[str, ...], kept: Path
) -> None:
    done = command(capsys, *alone, "-c", "128", "--sweep", "depth=20,300", "--json")
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith("paceline: nothing to ask: item a: its 300 tokens")
    record = json.loads(done.out)
    assert {one["point"]["depth"] for one in record["results"]} == {20}
    assert (record["status"], len(record["results"])) == ("failed", 6)
    assert json.loads(stored(capsys, kept, "show", "--json").out)["results"] == record["results"]


# The lossless gate.


def test_a_method_that_is_not_lossless_shows_no_speed_and_the_exit_code_is_3(
    capsys: Capture, args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.core.decode.verify", broken.judged_by(broken.everything))
    done = command(capsys, *args, "--p-min", "0", "--methods", "model", "--json")
    assert done.code == 3
    assert done.err == "paceline: not lossless: model; shown without a speed\n"
    for one in json.loads(done.out)["results"]:
        if one["system"] == "model":
            assert one["verdict"].startswith("NOT LOSSLESS: ")
            assert (one["speed"], one["speedup"], one["ttft"], one["theory"]) == (None, None, None, {})
        else:
            assert one["speed"] > 0
    table = command(capsys, *args, "--p-min", "0", "--methods", "model")
    row = next(line for line in table.out.splitlines() if line.startswith("model"))
    assert row.split()[:9] == ["model", *["-"] * 8]
    assert table.out.splitlines()[-1].startswith("no conclusion")


def test_a_sampled_method_that_is_biased_is_caught(
    capsys: Capture, args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frequencies, "TRIALS", 20)
    monkeypatch.setattr(gate, "SIZES", ((4, 300),))
    drawn = ("--temp", "1", "--draft-temp", "1", "--p-min", "0", "--n-draft", "2", "--methods", "model")
    honest = command(capsys, *args, *drawn, "--json")
    assert honest.code == 0
    assert {one["verdict"] for one in honest.json["results"] if one["system"] == "model"} == {
        "identical, unbiased"
    }
    monkeypatch.setattr("paceline.core.decode.verify", biased)
    done = command(capsys, *args, *drawn, "--json")
    assert done.code == 3
    one = json.loads(done.out)["results"][-1]
    assert (one["system"], one["category"]) == ("model", "")
    assert (one["verdict"], one["speed"]) == ("NOT LOSSLESS: sampled output is biased", None)


def biased(tree: Any, out: Forward, sampling: Any, *more: Any, **named: Any) -> Verdict:
    """Right where it is greedy."""
    judge: Callable[..., Verdict] = broken.VERIFICATIONS["residual p without the rejected token"]
    return (verify if sampling.greedy else judge)(tree, out, sampling, *more, **named)


def test_a_near_tie_is_told_and_has_a_speed(
    capsys: Capture, args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tokens are exactly as likely, and drafted passes choose the other one."""
    model = write_llama(tmp_path / "tied.gguf")
    with paceline.load(model, drafters="none", threads=1, cache_type="f32", flash_attention=False) as llm:
        said = llm.generate(ITEMS[0]["prompt"], max_tokens=6, ignore_eos=True).tokens
    output = next(t for t in GGUFReader(model, "r+").tensors if t.name == "output.weight")
    output.data[255] = output.data[said[3]]
    output.data.base.flush()

    def other(tree: DraftTree, out: Forward, *more: Any, **named: Any) -> Verdict:
        judge = broken.judged_by(broken.highest_of_equals) if len(tree) else verify
        return judge(tree, out, *more, **named)

    monkeypatch.setattr("paceline.core.decode.verify", other)
    done = command(capsys, *args, "-m", model, "--methods", "model", "--p-min", "0", "--json")
    assert done.code == 0
    one = next(one for one in done.json["results"] if one["system"] == "model")
    assert (one["category"], one["verdict"]) == ("one", "1 near-tie")
    assert one["speed"] > 0


# Ctrl-C, kill, and going on.


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many groups each history has been given, and how."""
    counts: Counter[str] = Counter()
    add = History.add_group

    def adds(history: History, run: int, point: int, round_: int, item: str, told: Any) -> None:
        counts["groups"] += 1
        add(history, run, point, round_, item, told)
        if counts["groups"] == counts["press after"]:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(History, "add_group", adds)
    return counts


def test_ctrl_c_keeps_what_is_measured_and_resume_measures_only_the_rest(
    capsys: Capture, args: tuple[str, ...], kept: Path, asked: Counter[str]
) -> None:
    asked["press after"] = 2
    done = command(capsys, *args)
    assert done.code == 130
    assert done.err == "interrupted; `paceline bench resume 1` goes on\n"
    assert "status    interrupted: what was measured until then" in done.out
    shown = [line.split()[0] for line in done.out.splitlines() if line.startswith(METHODS)]
    assert shown[:3] == list(METHODS)
    assert stored(capsys, kept, "show").out == done.out
    assert asked["groups"] == 2
    whole = stored(capsys, kept, "resume", "--json").json
    assert asked["groups"] == 6
    assert (whole["run"], whole["status"]) == (1, "done")
    fresh = command(capsys, *args, "--json").json
    shape = ("point", "system", "category", "lossless", "verdict", "items", "rounds", "n_tokens")
    assert [[one[name] for name in shape] for one in whole["results"]] == [
        [one[name] for name in shape] for one in fresh["results"]
    ]
    assert whole["provenance"] == fresh["provenance"]
    stored(capsys, kept, "resume", "1").refused(2, "run 1 is complete: `paceline bench show 1` prints it")


def test_a_sweep_goes_on_at_the_point_it_was_left_at(
    capsys: Capture, args: tuple[str, ...], kept: Path, asked: Counter[str]
) -> None:
    asked["press after"] = 8
    done = command(capsys, *args, "--methods", "model", "--sweep", "k=1,3,5", "--json")
    assert done.code == 130
    points = [one["point"]["n_draft"] for one in json.loads(done.out)["results"] if not one["category"]]
    assert points == [1, 1, 3, 3]
    resumed = stored(capsys, kept, "resume", "last", "--json").json
    assert asked["groups"] == 18
    overall = [one for one in resumed["results"] if not one["category"]]
    assert [one["point"]["n_draft"] for one in overall] == [1, 1, 3, 3, 5, 5]
    assert {(one["items"], one["rounds"]) for one in overall} == {(3, 2)}
    assert overall[0] == next(one for one in json.loads(done.out)["results"] if not one["category"])


def test_a_run_that_was_killed_can_be_gone_on_with(
    capsys: Capture, alone: tuple[str, ...], kept: Path, asked: Counter[str]
) -> None:
    endless = [*PROGRAM, *alone, "--rounds", "4000"]
    with subprocess.Popen(endless, env=environment(), stdout=subprocess.DEVNULL) as process:
        while not (kept.is_file() and groups_in(kept)):
            assert process.poll() is None
            time.sleep(0.05)
        with History(kept) as history:
            assert history.run(1).status == "running"
        process.send_signal(signal.SIGKILL)
    before = groups_in(kept)
    with History(kept) as history:
        assert history.run(1).status == "interrupted"
    with sqlite3.connect(kept) as connection:  # as if far fewer rounds had been asked for
        (plan,) = connection.execute("SELECT plan FROM runs").fetchone()
        rounds = before // 3 + 2
        connection.execute("UPDATE runs SET plan = ?", (json.dumps(json.loads(plan) | {"rounds": rounds}),))
    connection.close()
    record = stored(capsys, kept, "resume", "--json").json
    assert record["status"] == "done"
    assert asked["groups"] == rounds * 3 - before
    assert {one["rounds"] for one in record["results"]} == {rounds}


def groups_in(kept: Path) -> int:
    connection = sqlite3.connect(kept, timeout=10)
    try:
        return int(connection.execute("SELECT count(*) FROM groups").fetchone()[0])
    except sqlite3.OperationalError:  # it is just being made
        return 0
    finally:
        connection.close()


def test_a_run_of_another_model_is_not_gone_on_with_and_stays_as_it_was(
    capsys: Capture, args: tuple[str, ...], kept: Path, asked: Counter[str], tmp_path: Path
) -> None:
    model = write_llama(tmp_path / "changing.gguf")
    asked["press after"] = 2
    done = command(capsys, *args, "-m", model, "--methods", "model")
    assert done.code == 130
    write_llama(model, seed=1)
    fingerprint.cache_clear()  # as in a new process
    stored(capsys, kept, "resume").refused(2, "run 1 cannot be gone on with, its target differed")
    model.unlink()
    stored(capsys, kept, "resume").refused(2, "no such file")
    assert stored(capsys, kept, "show").out == done.out


def test_ctrl_c_before_anything_is_measured_leaves_nothing_to_go_on_with(
    capsys: Capture, args: tuple[str, ...], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def presses(*_: object) -> str:
        signal.raise_signal(signal.SIGINT)
        return ""

    monkeypatch.setattr("paceline.lab.bench.turns.Turns._cut", presses)
    done = command(capsys, *args, "--json")
    assert (done.code, done.err) == (130, "")
    assert (done.json["status"], done.json["results"], done.json["run"]) == ("interrupted", [], None)
    table = command(capsys, *args)
    assert (table.code, table.err) == (130, "")
    assert json.loads(stored(capsys, kept, "list", "--json").out) == []


# Other programs in the same run.


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes of other programs."""
    pids: list[int] = []
    start = Program.__init__

    def starts(program: Program, *args: Any, **named: Any) -> None:
        start(program, *args, **named)
        pids.append(program.pid)

    monkeypatch.setattr(Program, "__init__", starts)
    defaults = LlamaServer.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout", 0.5)
    return pids


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("hangs", "said nothing for 0.5 s"),
        ("dies", "was ended by SIGSEGV"),
        ("garbage", "is no message of an event stream"),
    ],
)
def test_a_program_that_fails_in_mid_run_is_told_and_the_others_keep_their_speeds(
    capsys: Capture, alone: tuple[str, ...], tmp_path: Path, started: list[int], mode: str, words: str
) -> None:
    server = with_lookup(write_fake_server(tmp_path / "fake", mode))
    done = command(capsys, *alone, "--peer", f"llama-server={server}", "--json")
    assert done.code == 1
    assert done.err.startswith("paceline: llama-server lookup: failed: llama-server lookup ")
    assert done.err.count(words) == 2
    overall = {one["system"]: one for one in json.loads(done.out)["results"] if not one["category"]}
    assert list(overall) == ["plain", "lookup", "llama-server", "llama-server lookup"]
    assert all(overall[name]["speed"] for name in ("plain", "lookup"))
    assert [overall[name]["speed"] for name in ("llama-server", "llama-server lookup")] == [None, None]
    assert len(started) == 2
    assert not any(psutil.pid_exists(pid) for pid in started)


def with_lookup(server: Path) -> Path:
    """The server, with n-gram drafts among the flags it tells of."""
    path = server.with_name("llama-server")
    flags = "--spec-ngram-simple-size-n N  --spec-ngram-simple-size-m N"
    path.write_text(f'#!/bin/sh\ncase "$*" in *--help*) echo "{flags}" ;; esac\nexec {server} "$@"\n')
    path.chmod(0o755)
    return path


def test_a_program_that_is_not_there_is_refused_before_anything_is_loaded(
    capsys: Capture, args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.lab.bench.bench.Models", lambda *_: pytest.fail("a model was loaded"))
    command(capsys, *args, "--peer", "llama-server=/nowhere/server").refused(
        1, "/nowhere/server is no program: give the path of a llama-server"
    )


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
    systems = {one["system"]: one for one in done.json["results"]}
    assert list(systems) == ["plain", "lookup", "llama-server", "llama-server lookup"]
    for one in systems.values():
        assert one["lossless"]
        assert one["n_tokens"] == 16
        assert one["speed"] > 0
        assert one["memory"] > 1 << 20
