"""Five checks of an installation, each measured on this machine: yes, no, or nothing to check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.api import LLM
from paceline.doctor.causes import Evidence
from paceline.doctor.diagnosis import evidence_of_run
from paceline.drafter_table import DRAFTERS, uses_draft
from paceline.hardware.files import SystemFiles
from paceline.hardware.probe import Hardware

Check = dict[str, Any]  # name, ok (None: nothing to check), value, advice


def check(llm: LLM, hardware: Hardware, tick: Callable[[str], None]) -> list[Check]:
    """Run plain and drafted decoding of a short text, and return the checks."""
    _, found = evidence_of_run(Evidence(), llm, tick)
    return [*memory_checks(hardware), *drafting_checks(found)]


def memory_checks(hardware: Hardware) -> list[Check]:
    """Return the checks of huge pages in use, and of memory spread over the nodes. Call it with a model
    loaded."""
    settings = {one.name: one for one in hardware.settings}
    rollup = (SystemFiles().text("/proc/self/smaps_rollup") or "").splitlines()
    huge = sum(int(line.split()[1]) for line in rollup if line.startswith("AnonHugePages:"))
    pages, numa = settings.get("transparent huge pages"), settings.get("NUMA")
    explicit = settings["HugePages_Total"].value if settings else ""
    value = (
        f"{huge / 1e3:.0f} MB of this process are in huge pages; HugePages_Total is {explicit or 'unknown'}"
    )
    remedy = (
        "" if huge or pages is None else pages.advice or "a model whose weights are repacked (--kernels auto)"
    )
    return [
        row("huge pages", huge > 0 if pages else None, value, remedy),
        row(
            "memory balanced across nodes", *(numa.ok, numa.value, numa.advice) if numa else (None, "unknown")
        ),
    ]


def drafting_checks(run: dict[str, Any]) -> list[Check]:
    """Return the checks of patterns, of the order of drafters, and of the gain. run: see evidence_of_run."""
    stats, speedup = run["run"]["stats"], run["speedup"]
    known = {name: one for name, one in stats["by_source"].items() if name in DRAFTERS}
    copiers = [one for name, one in known.items() if not uses_draft([name])]
    models = [one["tried"] for name, one in known.items() if uses_draft([name])]
    steps, hits = max(1, stats["steps"]), max((one["proposed"] for one in copiers), default=0)
    right, tried = (max((one[name] for one in copiers), default=0) for name in ("right", "tried"))
    order, gains = "there is no draft model", (speedup or 0.0) > 1
    if models:
        order = f"copiers were called in {tried} steps, the draft model in {max(models)}"
    first = tried >= max(models) if models else None
    gain = f"{speedup:.2f}x plain decoding, " if speedup else ""
    repeats = "a text that repeats nothing gains by a draft model only (-md)"
    return [
        row("pattern hit rate", hits > 0, f"{hits / steps:.0%} of steps, right in {right}", repeats),
        row("suffix before draft", first, order, "--draft suffix,model"),
        row("faster, and the same text", gains, f"{gain}output identical: {run['said']}",
            "paceline doctor -m MODEL -md DRAFT says why"),
    ]  # fmt: skip


def row(name: str, ok: bool | None, value: str, advice: str = "") -> Check:
    return {"name": name, "ok": ok, "value": value, "advice": "" if ok is not False else advice}
