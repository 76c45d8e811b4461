"""What `paceline bench` says before it starts, and the time that it shows while it runs."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress

from command_line import command
from paceline.cli.bench_progress import TRUST, Left, LeftColumn, announcement, duration
from paceline.lab.bench.outlook import Outlook
from real_model import smollm2

Capture = pytest.CaptureFixture[str]


def outlook(items: int, of: int, seconds: float, full: float | None = None, **more: int) -> Outlook:
    told = {"tokens": 0, "systems": 3, "rounds": 1, "points": 1} | more
    return Outlook(suite="real", items=items, of=of, seconds=seconds, full=full, **told)


@pytest.mark.parametrize(
    ("it", "said"),
    [
        (outlook(3, 3, 5.0), ""),
        (outlook(3, 3, 312.0), "real: 3 items, 3 methods, 1 round: about 5 minutes"),
        (
            outlook(21, 73, 290.0, 25_000.0, tokens=64),
            "real: 21 of 73 items of up to 64 tokens, 3 methods, 1 round: about 5 minutes "
            "(all of it, in five rounds, with --full: about 6.9 hours)",
        ),
        (
            outlook(1, 1, 80.0, points=4, rounds=2),
            "real: 1 item, 3 methods, 2 rounds, 4 points: about 80 seconds",
        ),
    ],
)
def test_a_bench_says_what_it_will_do_and_how_long_that_takes(it: Outlook, said: str) -> None:
    assert announcement(it) == said


def test_times_are_told_to_two_digits() -> None:
    told = [duration(s) for s in (3, 42, 100, 3_000, 9_000, 72_000)]
    assert told == ["a few seconds", "40 seconds", "2 minutes", "50 minutes", "2.5 hours", "20 hours"]


def test_the_time_that_is_left_is_known_from_the_first_second_and_follows_the_clock() -> None:
    now = 0.0
    left = Left(lambda: now)
    assert left.seconds is None  # nobody has said how long it takes
    left.begin(100.0)
    assert left.seconds == 100.0
    now = 10.0
    assert left.seconds == 90.0
    for _ in range(8):  # of 10 seconds each, which take 20
        now += 20.0
        left.did(10.0)
    assert left.seconds == pytest.approx(20 * (170 + TRUST) / (80 + TRUST))
    left.did(30.0)
    assert left.seconds == 0.0


def test_the_column_shows_it() -> None:
    left = Left(lambda: 0.0)
    column = LeftColumn(left)
    with Progress(auto_refresh=False, console=Console(file=io.StringIO())) as drawing:
        drawing.add_task("x", total=3)
        (task,) = drawing.tasks
        assert str(column.render(task)) == "-:--:--"
        left.begin(3_725.0)
        assert str(column.render(task)) == "1:02:05 left"


def test_rounds_were_called_n_before(capsys: Capture, models: Path, tmp_path: Path) -> None:
    suite = tmp_path / "suite.jsonl"
    suite.write_text('{"prompt": "ab ab ab", "max_tokens": 4}')
    words = (
        "bench",
        "-m",
        models / "target.gguf",
        "-t",
        "1",
        "--methods",
        "lookup",
        "--suite",
        suite,
        "--json",
    )
    done = command(capsys, *map(str, words), "--no-history", "--n", "2")
    assert done.err == "paceline: --n is called --rounds now\n"
    record = done.json
    assert record["plan"]["rounds"] == 2
    assert [(one["item"], one["round"], one["system"]) for one in record["measurements"]] == [
        ("1", 0, "plain"), ("1", 0, "lookup"), ("1", 1, "lookup"), ("1", 1, "plain"),
    ]  # fmt: skip
    assert all(one["seconds"] > 0 and one["tokens"] > 0 for one in record["measurements"])
    assert "--n " not in command(capsys, "bench", "--help").out


def test_a_real_model_is_asked_conversations_and_ends_in_the_time_that_is_given(capsys: Capture) -> None:
    words = (
        "bench",
        "-m",
        str(smollm2()),
        "--methods",
        "lookup",
        "--minutes",
        "0.05",
        "-n",
        "4",
        "--no-history",
    )
    done = command(capsys, *words, "--json")
    record = done.json
    assert done.code == 0
    assert record["plan"]["suite"] == "real"
    assert record["plan"]["keep_prompts"]
    assert re.match(r"paceline: real: \d+ of 73 items of up to 4 tokens, 2 methods, 1 round: about", done.err)
    assert 1 <= len(record["plan"]["only"]) < 73
    assert {one["system"] for one in record["measurements"]} == {"plain", "lookup"}
    assert all(result["lossless"] for result in record["results"])
    assert record["prompt_speed"] > 0
