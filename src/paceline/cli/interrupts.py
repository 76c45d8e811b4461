"""Ctrl-C, SIGTERM and SIGHUP in commands that spend their time inside llama.cpp.

Python raises KeyboardInterrupt only after the C call returns, which can take minutes for a long prompt, and
ctypes drops one raised in a callback. So the signal wakes a thread through `signal.set_wakeup_fd`."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from paceline.system.shutdown import exit_now

INTERRUPTED, CLOSED_PIPE = 130, 141  # exit codes
_FINISHED_SIGNALS = b"\0"  # no signal has this number
# A terminal that is closed sends SIGHUP, which Windows does not have.
_ENDING_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def on_interrupt(
    handler: Callable[[int, FrameType | None], object] = signal.default_int_handler,
) -> Iterator[None]:
    """Let Ctrl-C call `handler`, as long as no `Interrupts` is entered. By default it raises
    KeyboardInterrupt, for work that waits in Python only."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def install_exit_handlers() -> None:
    """Let the signals end the process at once and remove partial files. Ignored signals stay ignored."""
    for number in (signal.SIGINT, *_ENDING_SIGNALS):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _frame: exit_now(128 + number))


class Interrupts:
    """A context in which Ctrl-C, SIGTERM and SIGHUP end the process at once and remove partial files.
    After `defer_first`, the first Ctrl-C only sets `pressed`, so that a command can end between two steps and
    print its results so far; the second ends the process."""

    def __init__(self) -> None:
        self.pressed = False
        self._deferred = False

    def defer_first(self) -> None:
        self._deferred = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if Ctrl-C was pressed."""
        if self.pressed:
            raise KeyboardInterrupt

    def __enter__(self) -> Interrupts:
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ENDING_SIGNALS)}
        ignored = {number for number in _ENDING_SIGNALS if handlers[number] == signal.SIG_IGN}
        self._handlers = {number: handlers[number] for number in handlers if number not in ignored}
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._watcher = threading.Thread(target=self._watch, name="interrupts", daemon=True)
        self._watcher.start()
        # In this order, reversed in __exit__, every noted signal reaches the thread.
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
