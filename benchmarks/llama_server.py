"""Paceline against llama-server: plain against plain, and draft model against draft model at a fixed length.

    python benchmarks/native_llama.py                       # once: a llama-server built as ours is
    python benchmarks/llama_server.py --server PATH [--sizes 60M,300M,1B] [--types Q4_0,Q8_0,BF16] [--json]

One run, the same files, prompts, lengths and threads; the two take turns. Two ratios for each: by the asker's
clock, and with the server's own word for its speed, which leaves out HTTP and streaming. Targets, by the
server's own word: plain 0.98 at 300M and 1B, 0.90 at 60M; drafted 0.97. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from paceline.bench.bench import Bench
from paceline.bench.plan import BenchPlan
from paceline.bench.summary import Interval, ratio
from paceline.bench.system import ItemMeasurements
from paceline.models import zoo
from paceline.settings import LoadOptions

sys.path.append(str(Path(__file__).parents[1]))  # for tools

from tools.inflate import inflate, parse_count

PLAIN_TARGET = {"60M": 0.90}  # of others 0.98
DRAFTED_TARGET = 0.97


def by_own_word(groups: Sequence[ItemMeasurements]) -> list[ItemMeasurements]:
    """The same with the seconds that a system itself speaks of, where it does."""
    return [
        replace(
            group,
            measurements={
                name: m if not m["own_speed"] else m | {"seconds": m["tokens"] / m["own_speed"]}
                for name, m in group.measurements.items()
            },
        )
        for group in groups
    ]


def compare(target: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    drafted = f"model:n_draft={arguments.n_draft}:p_min=0"
    plan = BenchPlan(
        models=LoadOptions.of(target, zoo.draft_path(), threads=arguments.threads),
        methods=f"plain,{drafted}",
        baselines=(f"llama-server={arguments.server}",),
        suite=arguments.suite,
        items=arguments.items,
        rounds=arguments.rounds,
        n=arguments.n_predict,
    )
    record = Bench(plan).measure()
    groups, own = record.groups, by_own_word(record.groups)
    categories = {result["category"] for result in record.results}
    whole = [result for result in record.results if not result["category"] or len(categories) == 1]
    out: dict[str, Any] = {"systems": {r["system"]: r for r in whole}}
    proved = {r["system"] for r in whole if r["lossless"]}
    for what, ours, theirs in (
        ("plain", "plain", "llama-server"),
        ("drafted", drafted, f"llama-server {drafted}"),
    ):
        both = {ours, theirs} <= proved
        out[what] = {
            "clock": ratio(groups, ours, theirs) if both else None,
            "own word": ratio(own, ours, theirs) if both else None,
        }
    return out


def said(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", required=True, help="a llama-server, best built for this machine")
    parser.add_argument("--sizes", default="60M,300M,1B")
    parser.add_argument("--types", default="Q4_0,Q8_0,BF16")
    parser.add_argument("--suite", default="code,edit,agent")
    parser.add_argument("--items", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-n", "--n-predict", type=int, default=64)
    parser.add_argument("--n-draft", type=int, default=7)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--json", action="store_true", help="one JSON object a model on stdout")
    arguments = parser.parse_args()
    if not arguments.json:
        print("Paceline's speed over llama-server's: by the clock | by the server's own word | target")
    for size in arguments.sizes.split(","):
        for ftype in arguments.types.split(","):
            with tempfile.TemporaryDirectory() as folder:
                target = Path(folder) / f"{size}-{ftype}.gguf"
                inflate(zoo.target_path(), target, parse_count(size), ftype)
                found = compare(target, arguments)
            if arguments.json:
                told = json.dumps({"size": size, "type": ftype, **found}, default=asdict)
                print(told, flush=True)
                continue
            for what, least in (("plain", PLAIN_TARGET.get(size, 0.98)), ("drafted", DRAFTED_TARGET)):
                clock, own = found[what]["clock"], found[what]["own word"]
                met = own is not None and own.value >= least
                print(
                    f"{size:>5} {ftype:5} {what:8} {said(clock)} | {said(own)} | "
                    f"{least:.2f} {'met' if met else 'MISSED'}",
                    flush=True,
                )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
