"""One thing that speaks for or against a draft model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# fatal: nothing can be drafted. mapping: tokens have to be translated. warning: it costs speed, or may.
# note: worth knowing.
FATAL, MAPPING, WARNING, NOTE = ("fatal", "mapping", "warning", "note")


@dataclass(frozen=True)
class CompatibilityReason:
    """field: what was looked at. target, draft: what each says, as JSON can hold it; None where it says
    nothing. text: what that means, empty where it means nothing. advice: what to do about it, or empty."""

    field: str
    target: Any
    draft: Any
    weight: str
    text: str = ""
    advice: str = ""
