"""Output of commands: JSON on stdout, notes on stderr."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

from paceline.speculative.printable import printable


def print_json(record: Any) -> None:
    sys.stdout.write(json.dumps(strict_json(record), allow_nan=False) + "\n")


def strict_json(value: Any) -> Any:
    """Return a value with infinities and NaN as strings, which JSON lacks and float() reads back."""
    if isinstance(value, dict):
        return {key: strict_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict_json(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def print_note(text: str) -> None:
    """Write a line to stderr, without line breaks and terminal sequences of quoted names and texts."""
    print(printable(text), file=sys.stderr, flush=True)
