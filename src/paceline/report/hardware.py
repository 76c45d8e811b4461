"""The hardware and the diagnosis, from the record of `doctor --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

from paceline.report.table import joined, size, write_phases
from paceline.speculative.printable import printable
from paceline.system.terminal import wrapped

Record = Mapping[str, Any]

NAME_WIDTH = 11


def write(hardware: Record, file: IO[str]) -> None:
    for name, text in lines(hardware):
        paragraph(name, text, file)


def paragraph(name: str, text: str, file: IO[str]) -> None:
    file.write(wrapped(f"{name:{NAME_WIDTH}}{text}", file, NAME_WIDTH) + "\n")


def lines(hardware: Record) -> list[tuple[str, str]]:
    """Return a name and a text for each line."""
    processor = ", ".join(filter(None, map(printable, (hardware["processor"], hardware["system"]))))
    out = [("processor", processor), ("cores", cores(hardware))]
    out += [("limits", text)] if (text := limits(hardware)) else []
    out += [("memory", memory(hardware["memory"])), *features(hardware["features"])]
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


def memory(info: Record) -> str:
    swap = info["swap_used"] and f"{size(info['swap_used'])} of {size(info['swap_total'])} swap in use"
    return joined(f"{size(info['total'])}, {size(info['available'])} free", swap)


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
