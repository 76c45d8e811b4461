"""The tables of a bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

from paceline.report.table import NOT_MEASURED, Block, joined, number, size, write_report
from paceline.speculative.printable import count, printable

Record = Mapping[str, Any]

PLAIN = "plain"  # the system that every speedup refers to
MIN_ITEMS = 6  # for a conclusion
MAX_NAME_CHARACTERS = 24  # of a verdict in the table; a longer verdict is a note


def write(record: Record, file: IO[str]) -> None:
    write_report(header(record), blocks(record), [*notes(record), conclusion(record)], file)


def header(record: Record) -> list[tuple[str, str]]:
    known, results = record["provenance"], record["results"]
    machine, request = known.get("machine") or {}, known.get("request") or {}
    models = [(role, [model(known[role])]) for role in ("target", "draft") if known.get(role)]
    programs = [f"paceline {known['paceline']}"] if known.get("paceline") else []
    programs += [known["engine"]] if known.get("engine") else []
    programs += [f"kernels {known['kernels']}"] if known.get("kernels", "off") != "off" else []
    where = [printable(str(machine[name])) for name in ("processor", "system") if machine.get(name)]
    where += [f"threads {known['threads']}"] if known.get("threads") else []
    where += ["no flash attention"] if known.get("flash_attention") is False else []
    what = [printable(str(known["suite"]))] if known.get("suite") else []
    if results:
        rounds, items = (max(result[name] for result in results) for name in ("rounds", "items"))
        what.append(f"{count(items, 'item')}, {count(rounds, 'round')}")
    if record.get("prompt_speed"):
        what.append(f"prompts read at {record['prompt_speed']:.0f} t/s")
    if "temperature" in request:
        what.append(f"temperature {request['temperature']:g}")
    stopped = record.get("status", "done") != "done"
    status = [f"{record['status']}: what was measured until then"] if stopped else []
    lines = [*models, ("engine", programs), ("machine", where), ("suite", what), ("status", status)]
    lines += [("file", [printable(record["file"])])] if record.get("file") else []
    return [(name, ", ".join(parts)) for name, parts in lines if parts]


def blocks(record: Record) -> list[Block]:
    results = record["results"]
    categories = tuple(dict.fromkeys(result["category"] for result in results if result["category"]))
    out = [_speeds(overall(results))] if results else []
    return [*out, _by_category(results, categories)] if len(categories) > 1 else out


def overall(results: Sequence[Record]) -> list[Record]:
    """Return the results over all categories, or those of a single category."""
    return [result for result in results if not result["category"]] or list(results)


def conclusion(record: Record) -> str:
    """Return the line that names the fastest system, by the confidence intervals."""
    drafted = [result for result in overall(record["results"]) if _drafts(result)]
    if not drafted:
        return "no conclusion: no system beside plain decoding has a speed"
    drafted.sort(key=lambda result: -result["speedup"]["value"])
    undecided = [result for result in drafted if not result["clear"]]
    decided = [result for result in drafted if result["clear"]]
    best = next((result for result in decided if result["speedup"]["low"] > 1), None)
    if best is not None:
        others = [r for r in drafted if r is not best and r["speedup"]["high"] >= best["speedup"]["low"]]
        equal = f"; no clear difference from {_listed(others)}" if others else ""
        return f"fastest: {_listed([best])} plain decoding{equal}"
    if drafted[0]["items"] < MIN_ITEMS:
        return f"too few items to tell a difference ({drafted[0]['items']} of {MIN_ITEMS})"
    if not undecided:
        return f"no gain: plain decoding is fastest here; next is {_listed(decided[:1])}"
    slower = f"; slower: {_listed(decided)}" if decided else ""
    return f"no clear gain; undecided: {_listed(undecided)}{slower}"


def _listed(results: Sequence[Record]) -> str:
    return ", ".join(f"{printable(result['system'])} {interval(result['speedup'])}" for result in results)


def notes(record: Record) -> list[str]:
    """Return the verdicts that are too long for the table, with their systems."""
    about: dict[str, dict[str, None]] = {}
    for result in overall(record["results"]):
        if result["verdict"] != _short(result):
            about.setdefault(printable(result["verdict"]), {})[printable(result["system"])] = None
    return [f"{', '.join(names)}: {verdict}" for verdict, names in about.items()]


def _drafts(result: Record) -> bool:
    return bool(result["system"] != PLAIN and result["lossless"] and result["speedup"])


def interval(speedup: Record) -> str:
    if speedup["low"] == speedup["high"]:  # one measurement
        return times(speedup["value"])
    return f"{times(speedup['value'])} [{speedup['low']:.2f}, {speedup['high']:.2f}]"


def times(value: float) -> str:
    return f"{value:.2f}x"


def model(it: Record) -> str:
    return joined(
        f"{printable(it['name'])} ({printable(it['description'])})",
        size(it["size"]),
        it.get("params") and f"{it['params'] / 1e6:,.0f} M parameters",
        f"fingerprint {it['fingerprint'][:16]}",
        it.get("alters") and f"altered: {printable(it['alters'])}",
    )


def _short(result: Record) -> str:
    start: str = result["verdict"].partition(":")[0]
    if printable(start) == start and len(start) <= MAX_NAME_CHARACTERS:
        return start
    return "yes" if result["lossless"] else "NOT LOSSLESS"


def _speeds(results: Sequence[Record]) -> Block:
    columns = (
        *("method", "t/s", "speedup", "accept.\nrate", "accept.\nlength"),
        *("TTFT\nms", "TPOT\nms", "draft\n%", "memory", "lossless"),
    )
    return Block("", columns, tuple(_row(result) for result in results), 1)


def _row(result: Record) -> tuple[str, ...]:
    name = printable(result["system"])
    if not result["lossless"]:  # no figures without proof
        return (name, *[NOT_MEASURED] * 8, _short(result))
    sd = "" if result["speed_sd"] is None else f" ± {result['speed_sd']:.1f}"
    mark = "" if result["clear"] else "~"
    gain = mark + interval(result["speedup"]) if result["speedup"] else NOT_MEASURED
    return (
        name,
        NOT_MEASURED if result["speed"] is None else f"{result['speed']:.1f}{sd}",
        times(1.0) if result["system"] == PLAIN else gain,
        number(result["acceptance_rate"], ".2f"),
        number(result["acceptance_length"], ".2f"),
        number(result["ttft"], ".0f", 1e3),
        number(result["tpot"], ".1f", 1e3),
        number(result["draft_share"], ".0f", 100),
        size(result["memory"]),
        _short(result),
    )


def _by_category(results: Sequence[Record], categories: tuple[str, ...]) -> Block:
    cells: dict[str, dict[str, str]] = {}
    for result in results:
        cells.setdefault(printable(result["system"]), {})[result["category"]] = _category_cell(result)
    names = (*categories, "")
    rows = tuple((name, *(of.get(one, NOT_MEASURED) for one in names)) for name, of in cells.items())
    columns = ("method", *(printable(name).replace("-", "-\n") for name in categories), "all")
    title = "speedup by category (plain: t/s; ~ no clear difference from plain)"
    return Block(title, columns, rows, 1)


def _category_cell(result: Record) -> str:
    if result["system"] == PLAIN:
        return number(result["speed"], ".1f")
    if not _drafts(result):
        return NOT_MEASURED
    return ("" if result["clear"] else "~") + times(result["speedup"]["value"])
