"""Where a run's time went, and how far what was believed of its drafts came true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from paceline.report.table import write_table

PHASES = {
    "draft": "proposing",
    "forward": "the target's passes",
    "verify": "verifying",
    "keep": "committing and rolling back",
    "other": "deciding, and learning from what came of it",
}


def write(run: Mapping[str, Any], file: IO[str]) -> None:
    """run: with the names of `paceline run --json`. Why drafting was off stands in the summary above it."""
    stats = run["stats"]
    steps, total = max(1, stats["steps"]), sum(stats["time"].values())
    spent = {PHASES[name]: seconds for name, seconds in stats["time"].items()} | {"all": total}
    rows = [
        (
            what,
            f"{1e3 * seconds:.1f}",
            f"{seconds / total:.1%}" if total else "-",
            f"{1e6 * seconds / steps:.0f}",
        )
        for what, seconds in spent.items()
    ]
    write_table((f"time of {stats['steps']} steps", "ms", "share", "us/step"), rows, file, 1)
    policy = run.get("policy")
    if policy and policy["calibration"]:
        file.write("\n")
        reported = policy["calibration"].items()
        write_table(
            ("believed of", "outcomes", "calibration error", "by chance"),
            [
                (name, f"{one['outcomes']}", f"{one['error']:.3f}", f"{one['chance']:.3f}")
                for name, one in reported
            ],
            file,
            1,
        )
