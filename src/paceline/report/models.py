"""The table of the models on a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from paceline.report.table import joined, size, write_table
from paceline.speculative.printable import printable

Record = Mapping[str, Any]

COLUMNS = ("model", "family", "params", "quant", "size", "context", "notes")
MAX_NOTES = 12


def write(models: Sequence[Record], file: IO[str]) -> None:
    """Write the table. models: records of Model.as_dict (models/stores/inventory.py)."""
    write_table(COLUMNS, [row(model, short=file.isatty()) for model in models], file)


def row(model: Record, *, short: bool) -> tuple[str, ...]:
    return (
        printable(abbreviate_home(model["model"]) if short else model["model"]),
        printable(model["family"]),
        parameters(model["parameters"]),
        printable(model["quantisation"]),
        size(model["size"]),
        context(model["context"]),
        model_notes(model),
    )


def model_notes(model: Record) -> str:
    """Return the differences from a plain transformer in a GGUF file."""
    used = f"{model['experts_used']} of " if model["experts_used"] else ""
    return joined(
        model["experts"] and f"MoE {used}{model['experts']}",
        model["memory"] != "attention" and printable(model["memory"]),
        model["sliding_window"] and f"window {context(model['sliding_window'])}",
        model["format"] != "gguf" and "safetensors",
    )


def parameters(n: int | None) -> str:
    """Return a number of parameters such as 0.6B or 12.6M."""
    if not n:
        return "-"
    unit, mark = (1e9, "B") if n >= 499.5e6 else (1e6, "M") if n >= 999.5e3 else (1e3, "K")
    return f"{n / unit:.0f}{mark}" if n >= 99.95 * unit else f"{n / unit:.1f}{mark}"


def context(n: int) -> str:
    """Return a number of tokens such as 512 or 128K."""
    if not n:
        return "-"
    return f"{n // 1024}K" if n % 1024 == 0 else f"{n:,}"


def abbreviate_home(reference: str) -> str:
    home = str(Path.home())
    inside = reference.startswith(home.rstrip("/") + "/") and home != "/"
    return f"~{reference[len(home) :]}" if inside else reference


def no_models_lines(places: Sequence[Record]) -> list[str]:
    """Return the message for a machine without models, with the searched folders."""
    looked = dict.fromkeys(f"{printable(place['path'])} ({place['store']})" for place in places)
    return ["no models found; looked in", *(f"  {place}" for place in looked)]


def first_notes(notes: Sequence[str]) -> list[str]:
    """Return the first notes, and a line with the number of others."""
    rest = [f"and {len(notes) - MAX_NOTES} more: --json lists all"] if len(notes) > MAX_NOTES else []
    return [*map(printable, notes[:MAX_NOTES]), *rest]
