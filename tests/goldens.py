"""Recorded results that must not change: a file of JSON, made once and compared from then on.

    PACELINE_RECORD_GOLDENS=1 pytest tests/golden    records anew what the tests run

A key of JSON that is renamed gets a row in RENAMED, so that the records stay."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "golden" / "recorded"
RENAMED: dict[str, str] = {}  # what a key is called today: what the records call it


def as_recorded(value: Any) -> Any:
    """Return the value with the records' names, and numbers rounded to what all machines agree on."""
    if isinstance(value, dict):
        return {RENAMED.get(key, key): as_recorded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_recorded(inner) for inner in value]
    return round(value, 3) + 0.0 if isinstance(value, float) else value


def matches(file: str, case: str, found: Any) -> None:
    """Assert that `found` equals the record of the case, or record it."""
    path = FOLDER / file
    recorded = json.loads(path.read_text()) if path.exists() else {}
    if os.environ.get("PACELINE_RECORD_GOLDENS"):
        recorded[case] = as_recorded(found)
        path.parent.mkdir(exist_ok=True)
        lines = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in sorted(recorded.items())]
        path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    if not recorded:
        pytest.skip(f"{file} was not recorded")
    assert differences(as_recorded(found), recorded[case]) == []


def differences(found: Any, recorded: Any, at: str = "") -> list[str]:
    """Return the paths that differ. Floats may differ by rounding."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        if found.keys() != recorded.keys():
            return [f"{at}: keys {sorted(found)}, not {sorted(recorded)}"]
        return [line for key in recorded for line in differences(found[key], recorded[key], f"{at}.{key}")]
    if isinstance(recorded, list) and isinstance(found, list) and len(found) == len(recorded):
        pairs = enumerate(zip(found, recorded, strict=True))
        return [line for n, (one, other) in pairs for line in differences(one, other, f"{at}[{n}]")]
    if isinstance(recorded, float) and isinstance(found, float):
        return [] if abs(found - recorded) < 2e-3 else [f"{at}: {found}, not {recorded}"]
    return [] if found == recorded else [f"{at}: {found!r}, not {recorded!r}"]
