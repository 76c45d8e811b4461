"""Which benches of a history are being measured: for each there is a file beside the history that its process
holds a lock on. The system gives a lock back however the process ends, so that one that was killed is known
to be gone; its id or the time of its start would have to be asked for, and mean nothing on another machine.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from paceline.system.locks import lock, still_named

WAIT = 0.5  # seconds: whoever only looks holds a lock for an instant
PAUSE = 0.01


class Alive:
    """Owns the locks of the benches that this process measures. Raises OSError."""

    def __init__(self, history: Path) -> None:
        self._history = history.resolve()
        self._held: dict[int, int] = {}

    def begin(self, run: int) -> bool:
        """False where another process measures it."""
        if run in self._held:
            return True
        end = time.monotonic() + WAIT
        while True:
            handle = os.open(self._path(run), os.O_CREAT | os.O_RDWR, 0o600)
            held = lock(handle)
            if held is not False and still_named(handle, self._path(run)):
                self._held[run] = handle
                return True
            os.close(handle)
            if held is False and time.monotonic() > end:
                return False
            time.sleep(PAUSE)

    def end(self, run: int) -> None:
        """Nothing where this process does not measure it."""
        if (handle := self._held.pop(run, None)) is not None:
            with suppress(OSError):
                self._path(run).unlink()
            os.close(handle)

    def forget(self, run: int) -> None:
        """What a killed process has left of a run that is gone."""
        if self._path(run).exists() and self.is_measured(run) is False and self.begin(run):
            self.end(run)

    def is_measured(self, run: int) -> bool | None:
        """None where it cannot be told: there are no locks here, or it is somebody else's."""
        if run in self._held:
            return True
        try:
            handle = os.open(self._path(run), os.O_RDWR)
        except FileNotFoundError:
            return False
        except PermissionError:
            return None
        try:
            held = lock(handle)
        finally:
            os.close(handle)
        return None if held is None else not held

    def close(self) -> None:
        for run in list(self._held):
            self.end(run)

    def _path(self, run: int) -> Path:
        return self._history.with_name(f"{self._history.name}-run-{run}")
