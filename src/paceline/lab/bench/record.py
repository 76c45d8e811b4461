"""What a bench found: one Result a system. Tables, files and the history hold these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Result:
    """One row. A measure is None where the system does not tell it, and every speed where its output was not
    the target's own: no speed without proof.

    point: {}, as in the records of versions that swept a setting. category: of the suite's items; "" for
    all of them. verdict: the lossless gate's, in words; lossless: whether it passed. items, rounds: what
    the figures rest on. n_tokens: decoded in all rounds. speed, speed_sd: tokens/s of decoding, mean and
    standard deviation over the rounds. speedup: over plain decoding. ttft, tpot: seconds
    to the first token and for each later one, mean. draft_share: of the time of decoding. acceptance: the
    chance that the next drafted token is kept, given that those before it were. memory: bytes. own_speed:
    by the system's own word. clear: whether its speed differs from plain decoding's by more than chance: of
    enough items, the interval leaves 1 out.
    """

    point: Mapping[str, Any]
    system: str
    category: str
    lossless: bool
    verdict: str
    items: int
    rounds: int
    n_tokens: int
    speed: float | None = None
    speed_sd: float | None = None
    speedup: Interval | None = None
    acceptance_rate: float | None = None
    acceptance_length: float | None = None
    acceptance: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    draft_share: float | None = None
    memory: int | None = None
    own_speed: float | None = None
    clear: bool | None = None
