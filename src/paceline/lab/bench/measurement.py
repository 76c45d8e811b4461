"""What was measured: one system, one item, one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from paceline.lab.system import Answer


@dataclass(frozen=True)
class Measurement:
    """What one system did with one item.

    tokens, seconds: decoded once the prompt was read, and how long that took. n_tokens: of the whole answer.
    first: seconds to the first of them. Every other field is None where the system does not tell.
    """

    system: str
    tokens: int
    seconds: float
    n_tokens: int
    first: float
    steps: int | None
    drafted: int | None
    accepted: int | None
    rejected: int | None
    draft_seconds: float | None
    decode_seconds: float | None
    own_speed: float | None

    @classmethod
    def of(cls, system: str, answer: Answer) -> Measurement:
        return cls(
            system=system,
            tokens=answer.decoded,
            seconds=answer.decoding,
            n_tokens=answer.n_tokens,
            first=answer.first,
            steps=answer.steps,
            drafted=answer.drafted,
            accepted=answer.accepted,
            rejected=answer.rejected,
            draft_seconds=None if answer.parts is None else answer.parts.draft_seconds,
            decode_seconds=None if answer.parts is None else answer.parts.seconds,
            own_speed=answer.own_speed,
        )


@dataclass(frozen=True)
class Group:
    """One turn of every system at the same item, in the same minute. measurements: by system. outcomes: by
    system, what the lossless gate found of its greedy answer."""

    round: int
    item: str
    category: str
    measurements: Mapping[str, Measurement]
    outcomes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Group:
        names = [f.name for f in fields(Measurement)]
        measured = {
            system: Measurement(**{name: one[name] for name in names})
            for system, one in stored["measurements"].items()
        }
        return cls(stored["round"], stored["item"], stored["category"], measured, stored["outcomes"])
