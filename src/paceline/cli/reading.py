"""An answer as it comes, until Ctrl-C; and while its prompt is read, on stderr, how far that is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from time import monotonic

from paceline.cli.interrupts import Interrupts
from paceline.engine import Stream
from paceline.request_handle import StepOutput

LONG = 256  # tokens of a prompt whose progress is shown
SECONDS = 5.0  # between two lines where there is no terminal


class PrefillProgress:
    """What `LLM.stream` takes as `on_prefill`: a line on a terminal, which is gone afterwards; elsewhere a
    line every few seconds. Raises KeyboardInterrupt once Ctrl-C was pressed. Close it."""

    def __init__(self, interrupts: Interrupts, *, clock: Callable[[], float] = monotonic) -> None:
        self._interrupts, self._clock = interrupts, clock
        self._terminal = sys.stderr.isatty()
        self._began = self._shown = clock()
        self._width = 0

    def __call__(self, read: int, total: int) -> None:
        self._interrupts.check()
        if read == 0:
            self._began = self._shown = self._clock()
        if read == total or total < LONG:
            self.close()
            return
        seconds = self._clock() - self._began
        speed = f", {read / seconds:.0f} tokens/s" if read and seconds > 0 else ""
        line = f"reading the prompt: {read:,} of {total:,} tokens{speed}"
        if self._terminal:
            self._width = max(self._width, len(line))
            sys.stderr.write(f"\r{line:{self._width}}")
            sys.stderr.flush()
        elif self._clock() - self._shown >= SECONDS:
            self._shown = self._clock()
            sys.stderr.write(f"paceline: {line}\n")

    def close(self) -> None:
        """Take the line away."""
        if self._width:
            sys.stderr.write(f"\r{'':{self._width}}\r")
            sys.stderr.flush()
            self._width = 0


def until_stopped(stream: Stream, interrupts: Interrupts) -> Iterator[StepOutput]:
    """Yield an answer's pieces up to Ctrl-C, which may come while the prompt is read (see
    PrefillProgress)."""
    try:
        for piece in stream:
            yield piece
            if interrupts.pressed:
                return
    except KeyboardInterrupt:
        pass
