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
from paceline.system.atomic import atomic_write
from tools import real_sources, real_talk, toy_suites

SUITES: dict[str, Callable[[], Iterable[Item]]] = {
    "code": toy_suites.code,
    "edit": toy_suites.edit,
    "json": toy_suites.json_,
    "agent": toy_suites.agent,
    "quote": toy_suites.quote,
    "prose": toy_suites.prose,
    "chat": toy_suites.chat,
    "real-code": real_sources.code,
    "real-edit": real_sources.edit,
    "real-json": real_talk.json_,
    "real-agent": real_talk.agent,
    "real-grounded": real_sources.grounded,
    "real-chat": real_talk.chat,
    "real-maths": real_talk.maths,
}


def lines(name: str) -> str:
    """Return the text of a suite's file: one JSON object a line, without empty fields."""
    records = [{key: value for key, value in asdict(item).items() if value} for item in SUITES[name]()]
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


if __name__ == "__main__":
    main()
