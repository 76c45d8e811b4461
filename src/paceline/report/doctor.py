"""The hardware, the costs of passes and the diagnosis, from the record of `doctor --json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import IO, Any

from paceline.report.bench import header
from paceline.report.pairs import write_kinds
from paceline.report.table import (
    NOT_MEASURED,
    Block,
    bar,
    joined,
    size,
    write_phases,
    write_report,
    write_table,
)
from paceline.speculative.policy.costs import PassCosts
from paceline.speculative.printable import printable
from paceline.speculative.speedup_formulas import break_even
from paceline.system.terminal import wrapped

Record = Mapping[str, Any]
Curve = Sequence[tuple[int, float]]  # rows and seconds

NAME_WIDTH = 11
UNSTEADY_JITTER = 1.5  # upper over lower quartile of a pass's times
NEVER_PAYS = "never"


def write(record: Record, file: IO[str]) -> None:
    """Write the costs and the diagnosis."""
    facts = header({"provenance": record["provenance"], "results": ()})
    write_report(facts, blocks(record), notes(record), file)
    file.write("\n")
    write_kinds(record["diagnosis"]["kinds"], file)
    file.write("\n")
    diagnosis(record["diagnosis"], file)


def blocks(record: Record) -> list[Block]:
    draft = None if record["draft"] is None else PassCosts.read(record["draft"])
    out = []
    for depth, curve in curves(record["target"]).items():
        token = None if draft is None else draft.seconds(1, depth)
        # From doubtful times nothing is concluded.
        out.append(table("target", curve, depth, token, break_evens=not record["doubts"]))
    if draft is not None:
        out += [table("draft model", curve, depth) for depth, curve in curves(record["draft"]).items()]
    return out


def notes(record: Record) -> list[str]:
    if record["doubts"]:
        return [
            f"{role}: {doubt}: the machine was too busy to tell; run again (--refresh) when it is calm"
            for role, doubt in record["doubts"].items()
        ]
    out = [
        "break-even: how often a drafted token must be right for a draft of rows - 1 tokens to lose nothing"
    ]
    if record["draft"] is not None:
        depth = record["target"]["depths"][0]
        token, plain = (PassCosts.read(record[role]).seconds(1, depth) for role in ("draft", "target"))
        out.append(
            "with draft: the same, with the draft model's own time: a token takes "
            f"{milliseconds(token, token)} ms, {token / plain:.0%} of a row of the target"
        )
    return out + [
        f"{role}: times of one and the same pass lie {noise:.1f}x apart; the machine is busy: "
        "measure again later (--refresh)"
        for role, noise in record["noise"].items()
        if noise > UNSTEADY_JITTER
    ]


def curves(cost: Record) -> dict[int, Curve]:
    """Return the measured curve of each context length."""
    return {
        depth: [(n, s) for n, s in zip(cost["rows"], line, strict=True) if s is not None]
        for depth, line in zip(cost["depths"], cost["seconds"], strict=True)
    }


def table(
    role: str, curve: Curve, depth: int, token: float | None = None, *, break_evens: bool = False
) -> Block:
    """Return the table of one curve. token: seconds of a draft model's token, for its own break-even."""
    plain, longest = curve[0][1], max(seconds for _, seconds in curve)
    columns = ["rows", "", "ms", "relative", "ms a row", "break-\neven", "with\ndraft"]
    n_columns = 4 if not break_evens else 6 if token is None else 7
    rows = []
    for n, seconds in curve:
        row = [f"{n:4}", bar(seconds, longest), milliseconds(seconds, plain), f"{seconds / plain:.2f}"]
        row += [milliseconds(seconds / n, plain), format_break_even(seconds / plain, n)]
        row.append(format_break_even((seconds + (n - 1) * (token or 0.0)) / plain, n))
        rows.append(tuple(row[:n_columns]))
    return Block(f"{role}, after {depth:,} tokens", tuple(columns[:n_columns]), tuple(rows), 2)


def format_break_even(ratio: float, rows: int) -> str:
    if rows == 1:
        return NOT_MEASURED
    acceptance = break_even(ratio, rows - 1)
    return NEVER_PAYS if acceptance is None or acceptance >= 1.0 else f"{acceptance:.2f}"


def milliseconds(seconds: float, minimum: float) -> str:
    """Return milliseconds, with three significant digits of the column's minimum."""
    decimals = max(0, 2 - math.floor(math.log10(minimum * 1e3)))
    return f"{seconds * 1e3:.{decimals}f}"


def write_hardware(hardware: Record, file: IO[str]) -> None:
    for name, text in lines(hardware):
        paragraph(name, text, file)


def write_settings(hardware: Record, file: IO[str]) -> None:
    """Write the system's settings, with what to type for those that cost speed."""
    columns = ("setting", "here", "what the engine uses", "fine", "to change it")
    found = [one for one in hardware["settings"] if one["value"]]
    rows = [(one["name"], one["value"], one["engine"], _yes(one["ok"]), one["advice"]) for one in found]
    write_table(columns, [tuple(map(printable, row)) for row in rows], file)
    if not found:
        file.write(f"nothing is read on {hardware['system']}\n")


def write_checks(record: Record, file: IO[str]) -> None:
    rows = [(one["name"], _yes(one["ok"]), one["value"], one["advice"]) for one in record["checks"]]
    write_table(("check", "", "measured", "what helps"), [tuple(map(printable, row)) for row in rows], file)


def _yes(ok: bool | None) -> str:
    return NOT_MEASURED if ok is None else "yes" if ok else "NO"


def paragraph(name: str, text: str, file: IO[str]) -> None:
    file.write(wrapped(f"{name:{NAME_WIDTH}}{text}", file, NAME_WIDTH) + "\n")


def lines(hardware: Record) -> list[tuple[str, str]]:
    """Return a name and a text for each line."""
    processor = ", ".join(filter(None, map(printable, (hardware["processor"], hardware["system"]))))
    out = [("processor", processor), ("cores", cores(hardware))]
    out += [("limits", text)] if (text := limits(hardware)) else []
    it = hardware["memory"]
    swap = it["swap_used"] and f"{size(it['swap_used'])} of {size(it['swap_total'])} swap in use"
    out.append(("memory", joined(f"{size(it['total'])}, {size(it['available'])} free", swap)))
    out += features(hardware["features"])
    out += [("kernels", printable(hardware["kernels"]))] if hardware["kernels"] else []
    out += [("GPU", gpu(it, hardware["offload"])) for it in hardware["gpus"]] or [("GPU", "none found")]
    threads, why = hardware["threads"]["threads"], "; ".join(hardware["threads"]["why"])
    out.append(("threads", f"{threads} advised (-t {threads}): {why}"))
    return out + not_read(hardware["read_errors"])


def not_read(errors: Sequence[str]) -> list[tuple[str, str]]:
    return [("not read" if i == 0 else "", printable(text)) for i, text in enumerate(errors)]


def cores(hardware: Record) -> str:
    it = hardware["cores"]
    kinds = f"{it['performance']} for performance and {it['efficiency']} for efficiency"
    return joined(
        f"{it['physical']} physical",
        it["smt"] and f"{it['logical']} processors (SMT)",
        it["efficiency"] and it["performance"] and kinds,
        it["sockets"] > 1 and f"{it['sockets']} sockets",
        it["machine"] > it["logical"]
        and f"{it['logical']} of the machine's {it['machine']} processors may be used",
    )


def limits(hardware: Record) -> str:
    it = hardware["limits"]
    unlimited = it["known"] and "no quota of processors' time"
    quota = unlimited if it["cpus"] is None else f"a quota of {it['cpus']:g} processors' time"
    return joined(quota, it["memory"] is not None and f"{size(it['memory'])} of memory")


def features(it: Record | None) -> list[tuple[str, str]]:
    if it is None:
        return []
    if it["used"] is None:
        return [("features", " ".join(it["there"]) or "none that matter")]
    out = [("features", f"{' '.join(it['used']) or 'none'}: used by the engine")]
    if it["unused"]:
        out.append(("unused", f"{' '.join(it['unused'])}: there, but not in the engine's build"))
    return out


def gpu(it: Record, offload: bool | None) -> str:
    return joined(
        printable(f"{it['vendor']} {it['name']}" if it["vendor"] not in it["name"] else it["name"]),
        it["memory"] is not None and size(it["memory"]),
        None not in (it["memory"], it["free"]) and f"{size(it['free'])} free",
        it["shared"] and "shares the machine's memory",
        offload is not None and f"the engine's build {'can' if offload else 'cannot'} use it",
    )


def diagnosis(found: Record, file: IO[str]) -> None:
    """Write the time of each phase, and the causes of a loss."""
    run = found["run"]
    if run is not None:
        write_phases(run["run"], file)
        rate = run["run"]["stats"]["acceptance_rate"]
        texts = [] if rate is None else [f"acceptance rate {rate:.2f}"]
        if run["speedup"] is not None:
            texts.append(f"{run['speedup']:.2f}x plain decoding")
        texts.append(f"output identical: {run['said']}")
        file.write(wrapped(f"{'; '.join(texts)}; one short text of code", file) + "\n\n")
    for cause in found["causes"]:
        paragraph(cause["severity"], f"{cause['name']}: {printable(cause['evidence'])}", file)
        paragraph("", f"-> {cause['remedy']}", file)
    if not found["causes"]:
        file.write("no cause of a loss was found\n")
    for name, text in not_read(found["read_errors"]):
        paragraph(name, text, file)
