"""The models of a machine, as a table that fits the terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from paceline.core.printable import printable
from paceline.report.table import WIDEST, records

Record = Mapping[str, Any]

COLUMNS = ("model", "family", "params", "quant", "size", "context", "notes")
FIGURES = ("params", "size", "context")
GAP = 2
LEAST_NAME = 8  # characters of a name, below which a model has a line for each figure
HUB_PATH = re.compile(
    r".*/models--(?P<repository>[^/]+)/snapshots/(?P<revision>[0-9a-f]{40})(?:/(?P<file>.+))?", re.DOTALL
)
MOST_NOTES = 12


def write(models: Sequence[Record], file: IO[str]) -> None:
    """models: each with the names of Model.as_dict (machine/stores/inventory.py). Nothing is cropped: where
    there is no room the column of families goes, notes stand below each other, and long names are broken."""
    console = Console(
        file=file, width=None if file.isatty() else WIDEST, highlight=False, markup=False, emoji=False
    )
    names = list(COLUMNS)
    cells = [row(model, short=file.isatty()) for model in models]
    if sum(GAP + widest(name, cells) for name in names) - GAP > console.width:
        names.remove("family")
        cells = [one | {"notes": one["notes"].replace(", ", "\n")} for one in cells]
    others = sum(GAP + widest(name, cells) for name in names if name != "model")
    if console.width - others < LEAST_NAME:
        records(
            names, [[one[name].replace("\n", ", ") for name in names] for one in cells], file, console.width
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        justify: Literal["right", "left"] = "right" if name in FIGURES else "left"
        table.add_column(name, justify=justify, no_wrap=name != "model", overflow="fold")
    for one in cells:
        table.add_row(*(one[name] for name in names))
    # Written by us: rich would answer a closed pipe with an exit code of its own.
    with console.capture() as captured:
        console.print(table)
    file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def row(model: Record, *, short: bool) -> dict[str, str]:
    """One model's cells by column. short: a path in the home folder begins with ~."""
    return {
        "model": printable(known_as(model["model"]) if short else model["model"]),
        "family": printable(model["family"]),
        "params": parameters(model["parameters"]),
        "quant": printable(model["quantisation"]),
        "size": size(model["size"]),
        "context": context(model["context"]),
        "notes": ", ".join(peculiarities(model)),
    }


def peculiarities(model: Record) -> list[str]:
    """What makes a model another kind of target or draft than a plain transformer in a GGUF file."""
    said = []
    if experts := model["experts"]:
        said.append(
            f"MoE {model['experts_used']} of {experts}" if model["experts_used"] else f"MoE {experts}"
        )
    if model["memory"] != "attention":
        said.append(printable(model["memory"]))
    if window := model["sliding_window"]:
        said.append(f"window {context(window)}")
    if model["format"] != "gguf":
        said.append("safetensors")
    return said


def parameters(n: int | None) -> str:
    """0.6B, 12.6M."""
    if not n:
        return "-"
    unit, mark = (1e9, "B") if n >= 499.5e6 else (1e6, "M") if n >= 999.5e3 else (1e3, "K")
    return f"{n / unit:.0f}{mark}" if n >= 99.95 * unit else f"{n / unit:.1f}{mark}"


def size(n: int) -> str:
    """4.7 GB, as these programs count: thousands."""
    if n >= 999.5e6:
        return f"{n / 1e9:.1f} GB" if n < 99.95e9 else f"{n / 1e9:.0f} GB"
    return f"{n / 1e6:.1f} MB" if n < 9.95e6 else f"{n / 1e6:.0f} MB"


def context(n: int) -> str:
    """Tokens: 512, 128K."""
    if not n:
        return "-"
    return f"{n // 1024}K" if n % 1024 == 0 else f"{n:,}"


def at_home(reference: str) -> str:
    home = str(Path.home())
    inside = reference.startswith(home.rstrip("/") + "/") and home != "/"
    return f"~{reference[len(home) :]}" if inside else reference


def known_as(reference: str) -> str:
    """As people know it: what lies in the Hugging Face cache and no name leads to, such as an older
    revision or a folder of safetensors, by its repository and the beginning of its revision; any other
    path from ~ on."""
    found = HUB_PATH.fullmatch(reference)
    if found is None:
        return at_home(reference)
    file = f":{found['file']}" if found["file"] else ""
    return f"{found['repository'].replace('--', '/')}{file}@{found['revision'][:7]}"


def widest(name: str, cells: Sequence[Mapping[str, str]]) -> int:
    return max(cell_len(text) for text in (name, *(one[name] for one in cells)))


def nothing(places: Sequence[Record]) -> list[str]:
    """What to say where there is no model at all: where was looked."""
    looked = dict.fromkeys(f"{printable(place['path'])} ({place['store']})" for place in places)
    return ["no models found; looked in", *(f"  {place}" for place in looked)]


def remarks(notes: Sequence[str]) -> list[str]:
    """The first few of what was skipped, and how many there are more."""
    shown = [printable(note) for note in notes[:MOST_NOTES]]
    rest = len(notes) - len(shown)
    return [*shown, *([f"and {rest} more: --json lists all"] if rest else [])]
