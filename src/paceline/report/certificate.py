"""A certificate in at most fifteen lines, from the record that `paceline certify --json` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import IO, Any

from paceline.report.bench import model
from paceline.speculative.printable import count

MAX_DIFFERENCES = 3  # prompts whose first difference is shown
MAX_TOKEN_CHARACTERS = 20


def write(record: Mapping[str, Any], file: IO[str]) -> None:
    file.writelines(f"{line}\n" for line in lines(record))


def lines(record: Mapping[str, Any]) -> list[str]:
    known = record["provenance"]
    failed, state = ", ".join(record["defects"]), record["state"]
    beside = " beside another session" if state["beside"] else ""
    return [
        f"losslessness certificate, paceline {known['paceline']}, {known['engine']}",
        f"target    {model(known['target'])}",
        *([f"draft     {model(known['draft'])}"] if known["draft"] else []),
        f"drafting  {settings(known)}",
        *greedy(record["greedy"], record["every_draft"]),
        sampled(record["sampled"]),
        f"state     {count(state['sequences'], 'walk')}{beside}, {count(state['rows'], 'row')}: "
        f"{format_deviation(state)}",
        f"logprobs  {count(record['logprobs']['tokens'], 'token')}: {format_deviation(record['logprobs'])}",
        "CERTIFIED: drafted output is plain output" if not failed else f"NOT CERTIFIED: {failed}",
    ]


def settings(known: Mapping[str, Any]) -> str:
    drafting = known["drafting"]
    parts = [f"{','.join(drafting['drafters'])} by {drafting['policy']}"]
    parts += [f"{name} {drafting[name]}" for name in ("n_draft", "width", "draft_temp", "verify")]
    if drafting["cross_vocab"] != "off":
        parts.append(f"cross_vocab {drafting['cross_vocab']}")
    parts += ["exact greedy"] * bool(known["exact_rows"])
    return ", ".join([*parts, f"threads {known['threads']}"])


def greedy(runs: Sequence[Mapping[str, Any]], every: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the greedy check. every: the same prompts with every draft verified."""
    n = sum(run["n_tokens"] for run in runs)
    out = [f"greedy    {count(len(runs), 'prompt')}, {count(n, 'token')} {count_verdicts(runs)}"]
    out += [f"          with every draft verified {count_verdicts(every)}"] if every else []
    different = [(i, run) for some in (runs, every) for i, run in enumerate(some) if run["difference"]]
    different.sort(key=lambda item: item[1]["verdict"] != "defect")
    for i, run in different[:MAX_DIFFERENCES]:
        it = run["difference"]
        plain, drafted_text = (repr(text[:MAX_TOKEN_CHARACTERS]) for text in it["text"])
        out.append(
            f"          prompt {i + 1} token {it['index']}: {plain} or {drafted_text}, "
            f"{float(it['gap']):.2g} apart, noise {float(it['noise']):.2g}: {run['verdict']}"
        )
    return out


def count_verdicts(runs: Sequence[Mapping[str, Any]]) -> str:
    verdicts = Counter(run["verdict"] for run in runs)
    counts = ", ".join(f"{verdicts[v]} {v}" for v in ("identical", "near-tie", "defect") if verdicts[v])
    drafted, accepted = (sum(run["stats"][name] for run in runs) for name in ("drafted", "accepted"))
    return f"({accepted:,} of {drafted:,} drafted tokens accepted): {counts}"


def sampled(it: Mapping[str, Any]) -> str:
    p_value = min(min(it[test]["p_values"]) for test in ("draft", "first_token", "first_pair"))
    outcome = f"p {p_value:.2g} (limit {it['level']:.1g})"
    if it["overruns"] or it["ties"]:
        outcome = f"{it['overruns']} ran past the end, {it['ties']} ties misjudged"
    drafts = f"{it['accepted']:,} of {it['drafted']:,} drafted tokens accepted"
    return f"sampled   {it['runs']:,} runs ({drafts}): {outcome}: {verdict(it)}"


def format_deviation(it: Mapping[str, Any]) -> str:
    # JSON has infinity and NaN as strings.
    return f"off by {float(it['worst']):.2g} (limit {float(it['limit']):.2g}): {verdict(it)}"


def verdict(it: Mapping[str, Any]) -> str:
    return "passed" if it["passed"] else "FAILED"
