"""Draft heads, draft models and drafters without a model on one target: how far they draft, and at what cost.

    python benchmarks/heads.py -m zoo:smollm2 zoo:smollm2-draft heads/eagle3 heads/block
        [--suite real-chat,specbench:question.jsonl] [--items 14] [-n 96] [--n-draft 7]

A `paceline bench` for each, all on the same items, with three methods: plain decoding, greedy drafts of a
fixed length, and `auto`. Speeds are over plain decoding in the same run; "cost" is the time of drafting a
step in plain passes. The first row of each table has the drafters that need no model. Run it on an idle
machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.drafter_table import DRAFT
from paceline.drafts import kind_of
from paceline.fits import source_of

FREE = ("lookup", "suffix")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("drafts", nargs="*", help="draft models and heads")
    parser.add_argument("-m", "--model", default="zoo:smollm2")
    parser.add_argument("--suite", default="real")
    parser.add_argument("--items", type=int, default=14)
    parser.add_argument("-n", "--n-predict", type=int, default=96)
    parser.add_argument("--n-draft", type=int, default=7)
    parser.add_argument("-t", "--threads", type=int)
    arguments = parser.parse_args()
    fixed = f":n_draft={arguments.n_draft}:p_min=0"
    print("| drafter | acceptance length | cost | speed | speed of auto | length by category |")
    print("|---|---|---|---|---|---|")
    rows = bench(arguments, "", ["auto", *(name + fixed for name in FREE)])
    for name in FREE:
        print(row(rows, name, name + fixed), flush=True)
    for draft in arguments.drafts:
        name = drafter_of(draft)
        print(row(bench(arguments, draft, ["auto", name + fixed]), draft, name + fixed), flush=True)


def drafter_of(draft: str) -> str:
    """Return the drafter that drafts with a draft model or head."""
    source = source_of(kind_of(Path(draft))) if Path(draft).exists() else DRAFT
    return "model" if source == DRAFT else source.split()[0]


def bench(arguments: argparse.Namespace, draft: str, methods: Sequence[str]) -> Mapping[str, Any]:
    """Return the record of a bench run."""
    command = [sys.executable, "-m", "paceline", "bench", "-m", arguments.model, "--json", "-o", os.devnull]
    command += ["--methods", ",".join(["plain", *methods]), "--suite", arguments.suite]
    command += ["--items", str(arguments.items), "-n", str(arguments.n_predict)]
    command += ["-md", draft] if draft else []
    command += ["-t", str(arguments.threads)] if arguments.threads else []
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    record: Mapping[str, Any] = json.loads(found.stdout)
    return record


def row(record: Mapping[str, Any], name: str, method: str) -> str:
    """Return the line of a drafter in the table."""
    results = record["results"]
    whole = {r["system"]: r for r in results if r["category"] == ""} or {r["system"]: r for r in results}
    by_category = {
        r["category"]: r["acceptance_length"] for r in results if r["system"] == method and r["category"]
    }
    one, plain = whole[method], whole["plain"]
    measured = [m for m in record["measurements"] if m["system"] == method]
    steps = sum(m["steps"] for m in measured)
    cost = sum(m["draft_seconds"] for m in measured) / max(1, steps) / plain["tpot"]
    lengths = ", ".join(f"{category} {length:.2f}" for category, length in by_category.items() if length)
    return (
        f"| {name} | {one['acceptance_length']:.2f} | {cost:.2f} | {speed(one)} | {speed(whole['auto'])} "
        f"| {lengths} |"
    )


def speed(result: Mapping[str, Any]) -> str:
    gain = result["speedup"]
    return (
        result["verdict"] if gain is None else f"{gain['value']:.2f} [{gain['low']:.2f}, {gain['high']:.2f}]"
    )


if __name__ == "__main__":
    main()
