"""What Ctrl-C and the signals that end a process do to a command that spends its time inside llama.cpp.

Python raises KeyboardInterrupt only once the C call returns, which for a long prompt can be minutes later,
and one raised while llama.cpp calls back (it logs as it loads) is printed by ctypes and then forgotten. So
nothing is raised: C's own signal handler wakes a thread through `signal.set_wakeup_fd`.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from types import TracebackType

from paceline.files.scratch import abandon

_DONE = b"\0"  # no signal has this number


# Of what sends these, nobody waits long for an answer: they end the process at once.
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


def end(number: int) -> None:
    """End the process as this signal does, without a file that is half written."""
    abandon()
    os._exit(128 + number)


def end_cleanly() -> None:
    """The same for the whole process, wherever it is. What is ignored (`nohup`) stays so."""
    for number in ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, lambda number, _frame: end(number))


class Interrupts:
    """While entered, Ctrl-C ends the process at once. After `hold` the first one only sets `pressed`, for the
    command to look at between steps and say what there is so far; the second one ends the process. Nothing
    that is half written is left."""

    def __init__(self) -> None:
        self.pressed = False
        self._held = False

    def hold(self) -> None:
        self._held = True

    def __enter__(self) -> Interrupts:
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._handlers = {signal.SIGINT: signal.signal(signal.SIGINT, self._note)}
        for number in ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._handlers[number] = signal.signal(number, self._note)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._watcher = threading.Thread(target=self._watch, name="interrupts", daemon=True)
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._writer.send(_DONE)
        self._watcher.join()
        self._reader.close()
        self._writer.close()

    def _note(self, number: int, _frame: object) -> None:
        if self._held and number == signal.SIGINT:
            self.pressed = True

    def _watch(self) -> None:
        allowed = 1
        while (byte := self._reader.recv(1)) != _DONE:
            if byte[0] not in self._handlers:
                continue
            if byte[0] != signal.SIGINT or not self._held or allowed == 0:
                end(byte[0])
            allowed -= 1
