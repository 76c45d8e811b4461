"""The candidates of a tune: methods with settings of the engine, and the usual ones of a draft."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.bench.method import Method
from paceline.drafter_table import DRAFT
from paceline.drafts import kind_of
from paceline.fits import drafters_of
from paceline.settings import AUTO, Drafting, make_settings

DRAFT_LENGTHS = (4, 8, 12, 16, 24)  # of a draft model
HEAD_LENGTHS = (1, 2, 3, 5, 7)
P_MIN = (0.3, 0.7)  # besides the default


@dataclass(frozen=True, eq=False)
class Candidate:
    """A method. engine: settings of its own, for which the model is loaded again. label: of its draft, if
    there are several."""

    method: Method
    engine: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    @property
    def name(self) -> str:
        label = [self.label] if self.label else []
        return ":".join(
            [self.method.name, *label, *(f"{name}={value}" for name, value in self.engine.items())]
        )


def method_of(settings: Mapping[str, Any], draft: Path | None = None) -> Method:
    """Return the method of these fields of Drafting, with a name that `paceline bench --methods` reads.
    Raises UsageError."""
    drafting = make_settings(Drafting, settings)
    names = "+".join(drafting.drafters)
    if drafting.plain:
        return Method("plain", drafting)
    changes = [f"{name}={value}" for name, value in drafting.explicit_settings.items()]
    return Method(":".join([names, *changes]), drafting, draft)


def settings_of(method: Method) -> dict[str, Any]:
    """Return the fields of Drafting that make a method, as JSON."""
    return {"drafters": list(method.drafting.drafters), **method.drafting.explicit_settings}


DEFAULT = Candidate(method_of({"drafters": (AUTO,)}))  # what a model has without a profile
PLAIN_DECODING = Candidate(method_of({"drafters": ("none",)}))


def draft_methods(draft: Path, base: Mapping[str, Any], *, replayed: bool = False) -> list[Method]:
    """Return methods with a draft, the most promising first. base: fields of Drafting for all. replayed: its
    lengths and p_min are searched in replays."""
    kind = kind_of(draft)
    drafter = drafters_of(kind)[0]
    lengths = DRAFT_LENGTHS if kind == DRAFT else HEAD_LENGTHS
    varied: list[dict[str, Any]] = [{}]
    if not replayed:
        varied += [{"policy": "fixed", "n_draft": n} for n in lengths]
        varied += [{"p_min": p} for p in P_MIN] if kind == DRAFT else []
    settings: list[dict[str, Any]] = [{"drafters": (AUTO,)}]
    settings += [{"drafters": (drafter,), **one} for one in varied]
    settings += [{"drafters": (copier, drafter)} for copier in ("lookup", "suffix")]
    return [method_of({**base, **one}, draft) for one in settings]
