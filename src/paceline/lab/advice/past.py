"""What earlier benches found of a pair on this machine: it takes the place of what is only expected."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from paceline.core.errors import PacelineError
from paceline.core.theory import expected_tokens
from paceline.lab.advice.prior import ANY, LEAST, MOST, Range
from paceline.lab.advice.speed import SURE, UNSURE
from paceline.lab.bench.method import parse

# Tokens of one text resemble each other: so many are worth one that was drawn by itself. Judgement.
ALIKE = 10
SUITES = {"math": ("maths",), "summary": ("grounded",)}  # categories of suites, by the task that they are
HALF_OF_95 = 1.96
FINE = 2**30  # steps of an acceptance that is looked for


@dataclass(frozen=True)
class Past:
    """speedup: over plain decoding, with its 95% interval. acceptance: of each token, None where it cannot be
    told from what was kept. n_draft: that it was measured with. run: its number."""

    system: str
    speedup: Range | None
    acceptance: Range | None
    n_draft: int
    run: int
    n_tokens: int


def of_drafters(
    runs: Iterable[Any],
    target: str,
    draft: str | None,
    drafters: tuple[str, ...],
    task: str,
    machine: Mapping[str, Any],
) -> Past | None:
    """The newest bench of these two models in which one of the drafters was measured alone; of several, and
    of several settings, the fastest. runs: newest first (History.runs). target, draft: fingerprints. task: of
    the suite; ANY for all of it. machine: processor and threads, without which a speed is not this one's."""
    for run in runs:
        known = run.provenance
        if run.status != "done" or _fingerprint(known, "target") != target:
            continue
        if draft is not None and _fingerprint(known, "draft") != draft:
            continue
        here = _here(known, machine)
        said = (_past(run, result, here) for result in run.results if _fits(result, drafters, task))
        found = [one for one in said if one is not None]
        if found:
            best = max(found, key=lambda one: 0.0 if one.speedup is None else one.speedup.likely)
            acceptances = (one.acceptance for one in (best, *found) if one.acceptance is not None)
            return replace(best, acceptance=next(acceptances, None))
    return None


def _fits(result: Mapping[str, Any], drafters: tuple[str, ...], task: str) -> bool:
    """A suite of one task has no result for all of them: then only that task was measured."""
    categories = ("",) if task == ANY else (task, *SUITES.get(task, ()))
    named = result["system"].partition(":")[0] in drafters
    return named and bool(result["lossless"]) and not result["point"] and result["category"] in categories


def _past(run: Any, result: Mapping[str, Any], here: bool) -> Past | None:
    try:
        drafting = parse(result["system"], run.plan.get("drafting", {})).drafting
    except (PacelineError, TypeError):  # of another version
        return None
    gain = result["speedup"] if here else None
    if gain is not None and gain["value"] < 1.0 and drafting.policy != "rate":
        gain = None  # a rule that drafts where it does not pay says nothing of one that would not have
    speedup = None if gain is None else Range(gain["low"], gain["value"], gain["high"])
    acceptance = _acceptance(result, drafting)
    if speedup is None and acceptance is None:
        return None
    return Past(result["system"], speedup, acceptance, drafting.n_draft, run.id, result["n_tokens"])


def _acceptance(result: Mapping[str, Any], drafting: Any) -> Range | None:
    """Where everything is drafted that can be, it was counted. Where drafts end before what is unlikely, what
    was counted is of sure tokens only, and the tokens a step tell more."""
    if drafting.drafters != ("model",):
        return None
    if drafting.policy == "fixed" or (drafting.policy == "p_min" and drafting.p_min == 0):
        a = result["acceptance"]
    elif drafting.policy == "p_min" and drafting.p_min == 0.5 and result["acceptance_length"] is not None:
        a = from_length(result["acceptance_length"], drafting.n_draft)
    else:
        a = None
    if a is None:
        return None
    a = min(MOST, max(LEAST, a))
    spread = HALF_OF_95 * (a * (1.0 - a) * ALIKE / max(ALIKE, result["n_tokens"])) ** 0.5
    return Range(max(LEAST, a - spread), a, min(MOST, a + spread))


def from_length(length: float, n_draft: int) -> float:
    """The acceptance of all tokens at which drafts that begin with a sure one emit `length` tokens a step:
    the inverse of what speed.py expects of them."""
    return bisect_left(range(FINE), length, key=lambda i: _length(i / FINE, n_draft)) / FINE


def _length(a: float, n_draft: int) -> float:
    sure = max(SURE, a)
    share = 1.0 if a >= SURE else max(0.0, (a - UNSURE) / (sure - UNSURE))
    return 1.0 + share * sure * expected_tokens(a, n_draft - 1)


def _fingerprint(known: Mapping[str, Any], role: str) -> str | None:
    model = known.get(role)
    return model.get("fingerprint") if isinstance(model, Mapping) else None


def _here(known: Mapping[str, Any], machine: Mapping[str, Any]) -> bool:
    its = known.get("machine") or {}
    return bool(its.get("processor") == machine["processor"] and known.get("threads") == machine["threads"])
