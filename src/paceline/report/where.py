"""The time of each phase of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from paceline.report.table import write_table
from paceline.speculative.printable import count

PHASES = {
    "draft": "proposing",
    "forward": "the target's passes",
    "verify": "verifying",
    "commit": "committing and rolling back",
    "other": "policy and scheduling",
}


def write(run: Mapping[str, Any], file: IO[str]) -> None:
    """Write the report. run: the output of `paceline run --json`."""
    stats = run["stats"]
    steps, total = max(1, stats["steps"]), sum(stats["time"].values())
    spent = {PHASES[name]: seconds for name, seconds in stats["time"].items()} | {"all": total}
    rows = [
        (phase, f"{1e3 * s:.1f}", f"{s / total:.1%}" if total else "-", f"{1e6 * s / steps:.0f}")
        for phase, s in spent.items()
    ]
    write_table((f"time of {count(stats['steps'], 'step')}", "ms", "share", "us/step"), rows, file, 1)
