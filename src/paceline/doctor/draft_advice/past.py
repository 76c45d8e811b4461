"""What earlier benches found of a pair on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paceline.bench.method import parse
from paceline.doctor.draft_advice.row import ANY, Measured
from paceline.speculative.errors import PacelineError

SUITES = {"math": ("maths",), "summary": ("grounded",)}  # categories of suites, by the task that they are


def of_drafters(
    runs: Iterable[Any],
    target: str,
    draft: str | None,
    drafters: tuple[str, ...],
    task: str,
    machine: Mapping[str, Any],
) -> Measured | None:
    """The newest bench of these two models in which one of the drafters was measured alone; of several, and
    of several settings, the fastest. runs: newest first (History.runs). target, draft: fingerprints. task: of
    the suite; ANY for all of it. machine: processor and threads, without which a speed is not this one's."""
    for run in runs:
        known = run.provenance
        if run.status != "done" or _fingerprint(known, "target") != target or not _here(known, machine):
            continue
        if draft is not None and _fingerprint(known, "draft") != draft:
            continue
        said = (_measured(run, result) for result in run.results if _fits(result, drafters, task))
        found = [one for one in said if one is not None]
        if found:
            return max(found, key=lambda one: one.speedup)
    return None


def _fits(result: Mapping[str, Any], drafters: tuple[str, ...], task: str) -> bool:
    """A suite of one task has no result for all of them: then only that task was measured."""
    categories = ("",) if task == ANY else (task, *SUITES.get(task, ()))
    named = result["system"].partition(":")[0] in drafters
    return named and bool(result["lossless"]) and result["category"] in categories


def _measured(run: Any, result: Mapping[str, Any]) -> Measured | None:
    try:
        drafting = parse(result["system"], run.plan.get("drafting", {})).drafting
    except (PacelineError, TypeError):  # of another version
        return None
    gain = result["speedup"]
    if gain is None or (gain["value"] < 1.0 and drafting.policy != "rate"):
        return None  # a rule that drafts where it does not pay says nothing of one that would not have
    return Measured(gain["value"], gain["low"], gain["high"], result["acceptance"], f"bench {run.id}")


def _fingerprint(known: Mapping[str, Any], role: str) -> str | None:
    model = known.get(role)
    return model.get("fingerprint") if isinstance(model, Mapping) else None


def _here(known: Mapping[str, Any], machine: Mapping[str, Any]) -> bool:
    its = known.get("machine") or {}
    return bool(its.get("processor") == machine["processor"] and known.get("threads") == machine["threads"])
