"""Two benches beside each other: what became faster or slower, and whether they can be compared at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from paceline.core.printable import printable
from paceline.report.bench import ENOUGH, NONE, PLAIN, best_of, clear, interval, place, points, spread, times
from paceline.report.block import Block

Record = Mapping[str, Any]

# What was asked: where it differs, nothing can be compared.
WORK = ("target", "suite", "request")
# What a bench may be about: where only these differ, speeds can be compared as well.
SUBJECT = ("paceline", "draft", "drafting", "peers")
REGRESSED, IMPROVED = "REGRESSED", "improved"


def changes(a: Record, b: Record) -> list[dict[str, Any]]:
    """What both measured, over all categories first: point, system, category, results `a` and `b`, ratio
    of their speeds (B over A), and change: "REGRESSED" where B's speedup is below A's, interval and all,
    or B's output is no longer the target's, or plain decoding itself is slower by more than its spread on
    the same machine; "improved" the other way round; "" where neither can be said, as of a few items; None
    where the two did not ask the same."""
    before = {_key(result): result for result in a["results"]}
    unlike = differences(a, b)
    asked_alike, run_alike = not _work(unlike), not caution(unlike)
    out = []
    for result in b["results"]:
        if (old := before.get(_key(result))) is not None:
            out.append(
                {
                    "point": result["point"],
                    "system": result["system"],
                    "category": result["category"],
                    "a": old,
                    "b": result,
                    "ratio": result["speed"] / old["speed"] if result["speed"] and old["speed"] else None,
                    "change": _change(old, result, run_alike) if asked_alike else None,
                }
            )
    return sorted(out, key=lambda row: row["category"] != "")


def write_comparison(a: Record, b: Record, file: IO[str]) -> None:
    for name, record in (("A", a), ("B", b)):
        file.write(f"{name}  {_title(record)}\n")
    unlike = differences(a, b)
    for name, left, right in unlike:
        file.write(f"differs: {name}: {left} | {right}\n")
    if said := caution(unlike):
        file.write(f"{said}\n")
    found = changes(a, b)
    if found:
        file.write("\n")
        _block(found).write(file)
    file.write("\n")
    for name, record, other in (("A", a, b), ("B", b, a)):
        if names := _only(record, other):
            file.write(f"only in {name}: {', '.join(names)}\n")
    file.write(f"{summary(found)}\n")


def differences(a: Record, b: Record) -> list[tuple[str, str, str]]:
    """Of the provenance: a name, and what each has there. Models are told apart by their weights."""
    left, right = (dict(_flat(record["provenance"])) for record in (a, b))
    nothing = (NONE, NONE)
    pairs = {name: (left.get(name, nothing), right.get(name, nothing)) for name in [*left, *right]}
    return [(name, x[1], y[1]) for name, (x, y) in pairs.items() if x[0] != y[0]]


def caution(unlike: Sequence[tuple[str, str, str]]) -> str:
    """What must not be read out of the table; "" where nothing stands in the way."""
    if work := _work(unlike):
        return f"not the same work ({', '.join(work)}): neither speeds nor speedups can be compared"
    if any(_top(name) not in SUBJECT for name, _, _ in unlike):
        return "not the same machine or settings: speeds cannot be compared, only speedups"
    return ""


def summary(found: Sequence[Mapping[str, Any]]) -> str:
    if not found:
        return "nothing was measured in both"
    if any(row["change"] is None for row in found):
        return "no verdict"
    counts = [sum(row["change"] == kind for row in found) for kind in (REGRESSED, IMPROVED)]
    return f"{counts[0]} regressed, {counts[1]} improved, {len(found) - sum(counts)} without a clear change"


def write_runs(records: Sequence[Record], file: IO[str]) -> None:
    """What the history has; each record also with `id` and `paceline`."""
    rows: list[tuple[str, ...]] = []
    for record in records:
        known, best = record["provenance"], best_of(record)
        target = printable((known.get("target") or {}).get("name", NONE))
        fastest = f"{printable(best['system'])} {interval(best['speedup'])}" if best else NONE
        if best and not clear(best):
            fastest = f"~{fastest}"
        elif best and best["speedup"]["value"] < 1:
            fastest = PLAIN
        suite = printable(str(known.get("suite") or NONE))
        number, version = str(record["id"]), record["paceline"]
        rows.append((number, record["started"], record["status"], version, target, suite, fastest))
    columns: tuple[str, ...] = ("run", "started", "status", "paceline", "target", "suite", "fastest")
    if file.isatty():  # what fits beside each other in 80 columns; the target's name wraps
        places = [columns.index(name) for name in ("run", "started", "status", "suite", "fastest", "target")]
        rows = [(row[0], row[1][:16].replace("T", " "), *row[2:]) for row in rows]
        rows = [tuple(row[i] for i in places) for row in rows]
        columns = tuple(columns[i] for i in places)
    Block("", columns, tuple(rows), len(columns)).write(file)


def _title(record: Record) -> str:
    known = record["provenance"]
    parts = [f"run {record['id']}"] if record.get("id") is not None else []
    parts += [record["started"]] if record.get("started") else []
    parts += [f"paceline {known['paceline']}"] if known.get("paceline") else []
    return ", ".join([*parts, printable(known["target"]["name"]), record.get("status", "done")])


def _block(found: Sequence[Mapping[str, Any]]) -> Block:
    swept = points(found)
    several = len({row["category"] for row in found}) > 1
    rows = []
    for row in found:
        a, b = row["a"], row["b"]
        category = (printable(row["category"]) or "all",) if several else ()
        ratio = NONE if row["ratio"] is None else times(row["ratio"])
        words = (*place(row, swept), *category)
        rows.append((*words, spread(a), spread(b), ratio, _gain(a), _gain(b), row["change"] or ""))
    words = (*swept, "method", *(("category",) if several else ()))
    columns = (*words, "A t/s", "B t/s", "B/A", "A speedup", "B speedup", "")
    if not any(row[-1] for row in rows):
        rows, columns = [row[:-1] for row in rows], columns[:-1]
    return Block("", columns, tuple(rows), len(words))


def _gain(result: Record) -> str:
    if not result["lossless"]:
        return "NOT LOSSLESS"
    if result["system"] == PLAIN or not result["speedup"]:
        return NONE
    return interval(result["speedup"])


def _change(a: Record, b: Record, run_alike: bool) -> str:
    """run_alike: on one machine with the same settings, so that speeds themselves can be compared."""
    if a["lossless"] != b["lossless"]:
        return IMPROVED if b["lossless"] else REGRESSED
    if a["speedup"] and b["speedup"]:
        if min(a["items"], b["items"]) < ENOUGH:
            return ""
        (a_low, a_high), (b_low, b_high) = ((r["speedup"]["low"], r["speedup"]["high"]) for r in (a, b))
    elif run_alike and a["speed_sd"] is not None and b["speed_sd"] is not None:
        (a_low, a_high), (b_low, b_high) = (
            (r["speed"] - 2 * r["speed_sd"], r["speed"] + 2 * r["speed_sd"]) for r in (a, b)
        )
    else:
        return ""
    return REGRESSED if b_high < a_low else IMPROVED if b_low > a_high else ""


def _only(record: Record, other: Record) -> list[str]:
    there = {_key(result) for result in other["results"]}
    names = {" ".join(place(r, points([r]))): None for r in record["results"] if _key(r) not in there}
    return list(names)


def _key(result: Record) -> tuple[str, str, str]:
    return json.dumps(result["point"], sort_keys=True), result["system"], result["category"]


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, tuple[str, str]]]:
    """Names, each with what tells it apart and what is shown of it."""
    for name, item in value.items():
        if isinstance(item, Mapping) and "fingerprint" in item:
            mark = item["fingerprint"]
            yield prefix + name, (mark, f"{printable(item['name'])} {mark[:16]}")
        elif isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{name}.")
        elif item is not None:
            yield prefix + name, (printable(str(item)),) * 2


def _top(name: str) -> str:
    return name.partition(".")[0]


def _work(unlike: Sequence[tuple[str, str, str]]) -> list[str]:
    return list(dict.fromkeys(_top(name) for name, _, _ in unlike if _top(name) in WORK))
