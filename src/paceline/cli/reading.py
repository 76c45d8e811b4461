"""An answer as it comes, until Ctrl-C; and while its prompt is read, on stderr, how far that is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from threading import Timer
from time import monotonic

from paceline.cli.interrupts import Interrupts
from paceline.engine import Stream
from paceline.handle import StepOutput

SOON = 0.5  # seconds without a word on a terminal
OFTEN = 5.0  # seconds between lines elsewhere


class Reading:
    """What `LLM.stream` takes as `on_read`: a line on a terminal, which is gone afterwards; elsewhere one
    every few seconds. Raises KeyboardInterrupt once Ctrl-C was pressed. Close it.

    quiet: say nothing."""

    def __init__(
        self, interrupts: Interrupts, *, quiet: bool = False, clock: Callable[[], float] = monotonic
    ) -> None:
        self._interrupts, self._quiet, self._clock = interrupts, quiet, clock
        self._terminal = sys.stderr.isatty()
        self._began = self._said = clock()
        self._timer: Timer | None = None
        self._width = 0

    def __call__(self, read: int, total: int) -> None:
        if self._interrupts.pressed:
            raise KeyboardInterrupt
        if read == 0:
            self._began = self._said = self._clock()
        if self._quiet:
            return
        self._stop()
        if read == total:
            self.close()
        elif self._terminal and self._clock() - self._began < SOON:
            self._timer = Timer(SOON, self._show, (line(read, total, 0.0),))
            self._timer.daemon = True
            self._timer.start()
        elif self._terminal:
            self._show(line(read, total, self._clock() - self._began))
        elif self._clock() - self._said >= OFTEN:
            self._said = self._clock()
            sys.stderr.write(f"paceline: {line(read, total, self._clock() - self._began)}\n")

    def _show(self, text: str) -> None:
        self._width = max(self._width, len(text))
        sys.stderr.write(f"\r{text:{self._width}}")
        sys.stderr.flush()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
            self._timer = None

    def close(self) -> None:
        """Takes the line away."""
        self._stop()
        if self._width:
            sys.stderr.write(f"\r{'':{self._width}}\r")
            sys.stderr.flush()
            self._width = 0


def until_stopped(stream: Stream, interrupts: Interrupts) -> Iterator[StepOutput]:
    """The pieces of an answer up to Ctrl-C, which may come while the prompt is read (see Reading)."""
    try:
        for piece in stream:
            yield piece
            if interrupts.pressed:
                return
    except KeyboardInterrupt:
        pass


def line(read: int, total: int, seconds: float) -> str:
    speed = f", {read / seconds:.0f} tokens/s" if read and seconds > 0 else ""
    return f"reading the prompt: {read:,} of {total:,} tokens{speed}"
