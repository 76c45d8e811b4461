"""Monitoring of a generation: progress of the prefill, and Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from time import monotonic

from paceline.cli.interrupts import Interrupts
from paceline.engine import Stream
from paceline.request_handle import StepOutput

MIN_PROMPT_TOKENS = 256  # of a prompt whose progress is shown


class PrefillProgress:
    """A progress line of the prefill, for `on_prefill` of `LLM.stream`. `close` removes it.

    Raises KeyboardInterrupt after Ctrl-C."""

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._began, self._width = monotonic(), 0

    def __call__(self, read: int, total: int) -> None:
        self._interrupts.check()
        if read == 0:
            self._began = monotonic()
        if read == total or total < MIN_PROMPT_TOKENS:
            self.close()
        elif sys.stderr.isatty():
            seconds = monotonic() - self._began
            speed = f", {read / seconds:.0f} tokens/s" if read and seconds > 0 else ""
            line = f"reading the prompt: {read:,} of {total:,} tokens{speed}"
            self._width = max(self._width, len(line))
            sys.stderr.write(f"\r{line:{self._width}}")
            sys.stderr.flush()

    def close(self) -> None:
        """Remove the line."""
        if self._width:
            sys.stderr.write(f"\r{'':{self._width}}\r")
            sys.stderr.flush()
            self._width = 0


def until_interrupted(stream: Stream, interrupts: Interrupts) -> Iterator[StepOutput]:
    """Yield an answer's pieces until Ctrl-C, which PrefillProgress may raise during the prefill."""
    try:
        for piece in stream:
            yield piece
            if interrupts.pressed:
                return
    except KeyboardInterrupt:
        pass
