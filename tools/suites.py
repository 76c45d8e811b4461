"""Make the suites: `python -m tools.suites [--out FOLDER]`.

Sources are the standard library's code and documentation (CPython 3.11.7 for the packaged files), templates
and a generator of records. It is deterministic: the same Python writes the same files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from paceline.bench.suites.workload import FOLDER, Item
from paceline.system.whole import atomic_write
from tools import real_sources, real_talk, toy_suites

PSF = "PSF-2.0 (CPython 3.11.7)"
OURS = "Apache-2.0"
# name -> description, licence of the text, generator of the items
SUITES: dict[str, tuple[str, str, Callable[[], Iterable[Item]]]] = {
    "code": (
        "go on with a held-out module of the standard library, at the start of a function",
        PSF,
        toy_suites.code,
    ),
    "edit": ("rename a parameter: most of the answer is the question's code", PSF, toy_suites.edit),
    "json": ("records told in sentences, to be written as JSON", OURS, toy_suites.json_),
    "agent": (
        "tool calls and SQL over one schema, several requests a session, with retries",
        OURS,
        toy_suites.agent,
    ),
    "quote": ("say a text again, or sum it up in its own sentences", PSF, toy_suites.quote),
    "prose": ("go on with documentation", PSF, toy_suites.prose),
    "chat": ("short questions of a user", OURS, toy_suites.chat),
    "real-code": ("write, test, explain and repair functions", PSF, real_sources.code),
    "real-edit": ("change a function or a whole module as told, and answer with it", PSF, real_sources.edit),
    "real-json": ("mails, notes, logs and orders, to be written as JSON", OURS, real_talk.json_),
    "real-agent": ("the next turn of an agent that has called tools several times", PSF, real_talk.agent),
    "real-grounded": (
        "sum up and answer questions from a text of up to 4,500 tokens",
        PSF,
        real_sources.grounded,
    ),
    "real-chat": ("questions, and conversations of two turns", OURS, real_talk.chat),
    "real-maths": ("word problems, step by step", OURS, real_talk.maths),
}


def lines(name: str) -> str:
    """Return the text of a suite's file: one JSON object a line, without empty fields."""
    records = [{key: value for key, value in asdict(item).items() if value} for item in SUITES[name][2]()]
    for record in records:
        if "messages" in record:
            record["messages"] = [{"role": role, "content": content} for role, content in record["messages"]]
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=FOLDER)
    out = parser.parse_args().out
    for name in SUITES:
        with atomic_write(out / f"{name}.jsonl") as part:
            part.write_text(lines(name), "utf-8", newline="\n")
    about = {name: {"description": what, "licence": licence} for name, (what, licence, _) in SUITES.items()}
    with atomic_write(out / "suites.json") as part:
        part.write_text(json.dumps(about, indent=2) + "\n", "utf-8", newline="\n")


if __name__ == "__main__":
    main()
