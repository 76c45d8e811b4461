"""The models of a machine, as a table."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from paceline.report.table import size, write_table
from paceline.speculative.printable import printable

Record = Mapping[str, Any]

COLUMNS = ("model", "family", "params", "quant", "size", "context", "notes")
HUB_PATH = re.compile(
    r".*/models--(?P<repository>[^/]+)/snapshots/(?P<revision>[0-9a-f]{40})(?:/(?P<file>.+))?", re.DOTALL
)
MOST_NOTES = 12


def write(models: Sequence[Record], file: IO[str]) -> None:
    """Write the table of models. models: the names of Model.as_dict (models/stores/inventory.py)."""
    write_table(COLUMNS, [row(model, short=file.isatty()) for model in models], file)


def row(model: Record, *, short: bool) -> tuple[str, ...]:
    """Return one model's cells. short: a path in the home folder begins with ~."""
    return (
        printable(display_name(model["model"]) if short else model["model"]),
        printable(model["family"]),
        parameters(model["parameters"]),
        printable(model["quantisation"]),
        size(model["size"]),
        context(model["context"]),
        ", ".join(model_notes(model)),
    )


def model_notes(model: Record) -> list[str]:
    """Return what sets a model apart from a plain transformer in a GGUF file."""
    lines = []
    if experts := model["experts"]:
        lines.append(
            f"MoE {model['experts_used']} of {experts}" if model["experts_used"] else f"MoE {experts}"
        )
    if model["memory"] != "attention":
        lines.append(printable(model["memory"]))
    if window := model["sliding_window"]:
        lines.append(f"window {context(window)}")
    if model["format"] != "gguf":
        lines.append("safetensors")
    return lines


def parameters(n: int | None) -> str:
    """0.6B, 12.6M."""
    if not n:
        return "-"
    unit, mark = (1e9, "B") if n >= 499.5e6 else (1e6, "M") if n >= 999.5e3 else (1e3, "K")
    return f"{n / unit:.0f}{mark}" if n >= 99.95 * unit else f"{n / unit:.1f}{mark}"


def context(n: int) -> str:
    """Tokens: 512, 128K."""
    if not n:
        return "-"
    return f"{n // 1024}K" if n % 1024 == 0 else f"{n:,}"


def abbreviate_home(reference: str) -> str:
    home = str(Path.home())
    inside = reference.startswith(home.rstrip("/") + "/") and home != "/"
    return f"~{reference[len(home) :]}" if inside else reference


def display_name(reference: str) -> str:
    """Return a short name: a path in the Hugging Face cache as repository@revision, others from ~ on."""
    found = HUB_PATH.fullmatch(reference)
    if found is None:
        return abbreviate_home(reference)
    file = f":{found['file']}" if found["file"] else ""
    return f"{found['repository'].replace('--', '/')}{file}@{found['revision'][:7]}"


def no_models_lines(places: Sequence[Record]) -> list[str]:
    """Return the message for a machine without models: the places that were searched."""
    looked = dict.fromkeys(f"{printable(place['path'])} ({place['store']})" for place in places)
    return ["no models found; looked in", *(f"  {place}" for place in looked)]


def first_notes(notes: Sequence[str]) -> list[str]:
    """Return the first few notes, and how many more there are."""
    shown = [printable(note) for note in notes[:MOST_NOTES]]
    rest = len(notes) - len(shown)
    return [*shown, *([f"and {rest} more: --json lists all"] if rest else [])]
