"""What Ctrl-C and the signals that end a process do to a command that spends its time inside llama.cpp.

Python raises KeyboardInterrupt only once the C call returns, which for a long prompt can be minutes later,
and one raised while llama.cpp calls back (it logs as it loads) is printed by ctypes and then forgotten. So
nothing is raised: C's own signal handler wakes a thread through `signal.set_wakeup_fd`.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.system.leaving import exit_now

INTERRUPTED, CLOSED_PIPE = 130, 141  # exit codes that belong to no exception of ours
_FINISHED_SIGNALS = b"\0"  # no signal has this number
# What else ends a process; a terminal that is closed sends the second one, which Windows does not have.
_ENDING_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def raise_on_interrupt() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, as Python does by itself: for work that waits in Python alone."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def install_exit_handlers() -> None:
    """Ctrl-C and the others end the whole process at once, wherever it is, and nothing that is half written
    is left. What is ignored (`nohup`, a background job) stays so."""
    for number in (signal.SIGINT, *_ENDING_SIGNALS):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _frame: exit_now(128 + number))


class Interrupts:
    """While entered, Ctrl-C ends the process at once. After `hold` the first one only sets `pressed`, for the
    command to look at between steps and say what there is so far; the second one ends the process. SIGTERM
    and SIGHUP end it at once, too, where they are not ignored. Nothing that is half written is left."""

    def __init__(self) -> None:
        self.pressed = False
        self._deferred = False

    def defer_first(self) -> None:
        self._deferred = True

    def check(self) -> None:
        """Raise KeyboardInterrupt once Ctrl-C was pressed."""
        if self.pressed:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        found = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ENDING_SIGNALS)}
        ignored = {number for number in _ENDING_SIGNALS if found[number] == signal.SIG_IGN}
        self._handlers = {number: found[number] for number in found if number not in ignored}
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._watcher = threading.Thread(target=self._watch, name="interrupts", daemon=True)
        self._watcher.start()
        # In this order, and in the other one at the end, no signal is noted that nobody watches for.
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in self._handlers:
            signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._writer.send(_FINISHED_SIGNALS)
        self._watcher.join()
        self._reader.close()
        self._writer.close()

    def _note(self, number: int, _frame: object) -> None:
        if self._deferred and number == signal.SIGINT:
            self.pressed = True

    def _watch(self) -> None:
        allowed = 1
        while (byte := self._reader.recv(1)) != _FINISHED_SIGNALS:
            number = byte[0]
            if number not in self._handlers:
                continue
            if number != signal.SIGINT or not self._deferred or allowed == 0:
                exit_now(128 + number)
            allowed -= 1


class PendingInterrupt:
    """While entered, Ctrl-C outside of an `Interrupts` is noted and does nothing else: between a line that is
    typed and the answer to it, and between that and the next line."""

    def __init__(self) -> None:
        self.pressed = False

    def forget(self) -> None:
        self.pressed = False

    def _note(self, _number: int, _frame: object) -> None:
        self.pressed = True

    def __enter__(self) -> PendingInterrupt:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)
