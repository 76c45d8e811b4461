"""The interface of measured systems: Paceline with some drafter, or another program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from paceline.speculative.sampling import Sampling

Measurement = dict[str, Any]


@dataclass(frozen=True)
class BenchRequest:
    """A request for exactly max_tokens, also after the end of a text.
    tokens: the prompt. prompt: its text, for programs without token input."""

    prompt: str
    tokens: tuple[int, ...]
    max_tokens: int
    seed: int = 0
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class BenchAnswer:
    """An answer and its measurements; None where the system does not report a value.
    Times are of our clock unless a system's docstring says otherwise. first, seconds: from the request to the
    first token (or the first ones that came together) and to the last. decoded, decoding: tokens decoded
    after the prefill and their seconds; a first token from the prefill pass is not counted. rejected: steps
    that accepted less than was drafted. draft_seconds, decode_seconds: of drafting and of all decoding.
    own_speed: tokens/s as the system reports it. times: of decoding, by phase. by_position: as in Stats.
    parts: pieces of the text, each with its drafter."""

    text: str
    tokens: tuple[int, ...] | None
    n_tokens: int
    n_prompt: int
    first: float
    seconds: float
    decoded: int
    decoding: float
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    rejected: int | None = None
    draft_seconds: float | None = None
    decode_seconds: float | None = None
    own_speed: float | None = None
    times: Mapping[str, float] | None = None
    by_position: Sequence[Sequence[int]] | None = None
    parts: Sequence[tuple[str, str]] = ()


class System(Protocol):
    """A row of a comparison: a way to answer requests. ours: Paceline, not another program."""

    name: str
    ours: ClassVar[bool] = False

    def answer(self, request: BenchRequest) -> BenchAnswer:
        """Answer a request with an empty cache. Raises BaselineError if the program fails."""

    def memory(self) -> int | None:
        """Return the bytes of memory that answering takes; None if unknown."""
        return None

    def version(self) -> str:
        """Return the program's version; "" if it does not report one."""
        return ""

    def close(self) -> None:
        """End what the system started."""
        return


NOT_STORED = {"text", "parts", "tokens", "n_prompt", "seconds", "decoded", "decoding"}


def measurement(system: str, answer: BenchAnswer) -> Measurement:
    """Return the measurement of an answer, with the names of `BenchAnswer`. tokens, seconds: of decoding."""
    values = {name: value for name, value in vars(answer).items() if name not in NOT_STORED}
    return {"system": system, "tokens": answer.decoded, "seconds": answer.decoding, **values}


@dataclass(frozen=True)
class ItemMeasurements:
    """The measurements of one item in one round, and the outcomes of greedy answers, by system."""

    round: int
    item: str
    category: str
    measurements: Mapping[str, Measurement]
    outcomes: Mapping[str, str] = field(default_factory=dict)
