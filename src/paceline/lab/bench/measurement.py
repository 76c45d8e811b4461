"""What was measured: one system, one group of requests, one round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from paceline.lab.system import Answer


@dataclass(frozen=True)
class Measurement:
    """What one system did with one group of requests, all asked at once (one, but in a sweep over batches).

    tokens, seconds: decoded once the prompt was read, and how long that took; of requests that were asked at
    once all tokens, from the asking on, since one's prompt is another's pause. Every other field is the sum
    over the answers; None where one of them does not tell. later_*: of the steps that decoding is made of.
    """

    system: str
    tokens: int
    seconds: float
    answers: int
    n_tokens: int
    first: float
    steps: int | None
    drafted: int | None
    accepted: int | None
    rejected: int | None
    later_steps: int | None
    later_drafted: int | None
    draft_seconds: float | None
    forward_seconds: float | None
    decode_seconds: float | None
    own_speed: float | None

    @classmethod
    def of(cls, system: str, answers: Sequence[Answer]) -> Measurement:
        def total(values: Iterable[Any]) -> Any:
            told = list(values)
            return None if any(value is None for value in told) else sum(told)

        def part(name: str) -> Any:
            return total(None if answer.parts is None else getattr(answer.parts, name) for answer in answers)

        alone = len(answers) == 1
        own = total(answer.own_speed for answer in answers)
        return cls(
            system=system,
            tokens=sum(answer.decoded if alone else answer.n_tokens for answer in answers),
            seconds=answers[0].decoding if alone else max(answer.seconds for answer in answers),
            answers=len(answers),
            n_tokens=sum(answer.n_tokens for answer in answers),
            first=sum(answer.first for answer in answers),
            steps=total(answer.steps for answer in answers),
            drafted=total(answer.drafted for answer in answers),
            accepted=total(answer.accepted for answer in answers),
            rejected=total(answer.rejected for answer in answers),
            later_steps=part("steps"),
            later_drafted=part("drafted"),
            draft_seconds=part("draft_seconds"),
            forward_seconds=part("forward_seconds"),
            decode_seconds=part("seconds"),
            own_speed=None if own is None else own / len(answers),
        )

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Measurement:
        return cls(**{f.name: stored[f.name] for f in fields(cls)})


@dataclass(frozen=True)
class Group:
    """One turn of every system at the same item, in the same minute."""

    round: int
    item: str
    category: str
    measurements: Mapping[str, Measurement]  # by system
