"""Flash attention or none, on a processor: tried with a model.

It goes through the cache once for every row, and needs no room for what all rows make of all of it. llama.cpp
takes it where it is left the choice. Prompts are faster with it; a pass over the few rows of a draft may take
half of the time without (docs/log.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from statistics import median_low
from time import perf_counter
from typing import Any

import numpy as np

from paceline.core.measuring import release
from paceline.core.ports import Target, Want
from paceline.core.tree import EMPTY, chain

TURN = "attention"  # of a progress bar
ROUNDS = 3
DEPTH = 512  # tokens of the prompt, that passes come after
ROWS = 8  # of a pass that verifies a draft
ALIKE = 0.03  # a difference that three rounds cannot tell from none

Clock = Callable[[], float]


@dataclass(frozen=True)
class Attention:
    """prompt: tokens a second, of one of `depth` tokens. token, draft: seconds of a pass after it over one
    row and over `rows`."""

    flash: bool
    depth: int
    rows: int
    prompt: float
    token: float
    draft: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def tried(
    targets: Mapping[bool, Target], tick: Callable[[str], None] = lambda _: None, clock: Clock = perf_counter
) -> list[Attention]:
    """targets: one model, by whether it has flash attention. They take turns; of the rounds the median. tick:
    told after every turn; what it raises ends it."""
    taken: dict[bool, list[tuple[float, float, float]]] = {flash: [] for flash in targets}
    with ExitStack() as stack:
        trials = {
            flash: stack.enter_context(closing(_Trial(target, clock))) for flash, target in targets.items()
        }
        for round_ in range(ROUNDS):
            for flash in sorted(trials, reverse=round_ % 2 == 0):
                taken[flash].append(trials[flash].turn())
                tick(TURN)
    return [
        Attention(flash, trials[flash].depth, trials[flash].rows, *map(median_low, zip(*some, strict=True)))
        for flash, some in taken.items()
    ]


def best(tried: Sequence[Attention]) -> Attention:
    """The faster at decoding, plainly and drafted for; of those that are alike the one with flash attention,
    which reads prompts faster."""
    least = [min(one.token for one in tried), min(one.draft for one in tried)]

    def slowness(one: Attention) -> float:
        return (one.token / least[0]) * (one.draft / least[1])

    fastest = min(map(slowness, tried))
    return max(
        (one for one in tried if slowness(one) <= fastest * (1 + ALIKE) ** 2), key=lambda one: one.flash
    )


class _Trial:
    """Owns one session."""

    def __init__(self, target: Target, clock: Clock) -> None:
        self._target, self._clock = target, clock
        self._session = target.open()
        self.depth = max(1, min(DEPTH, target.caps.n_ctx // 2))
        self.rows = max(1, min(ROWS, target.caps.rows, target.caps.n_ctx // 2))
        length = self.depth + ROUNDS + ROWS
        self._text: list[int] = np.random.default_rng(0).integers(target.vocab.size, size=length).tolist()
        self._at = 0

    def close(self) -> None:
        release(self._target, self._session)

    def turn(self) -> tuple[float, float, float]:
        """Tokens a second of a prompt, and seconds of both passes after it."""
        self._at += 1  # another first token: nothing is in the cache
        text = self._text[self._at : self._at + self.depth]
        began = self._clock()
        self._session.prefill(text)
        self._target.forward([(self._session, EMPTY)], Want())
        read = self._clock() - began
        return len(text) / max(read, 1e-9), self._pass(text, 1), self._pass(text, self.rows)

    def _pass(self, text: Sequence[int], rows: int) -> float:
        self._session.prefill(text)
        draft = chain(self._text[: rows - 1], "filler")
        began = self._clock()
        self._target.forward([(self._session, draft)], Want())
        return max(self._clock() - began, 1e-9)
