"""Sources of a chat's messages: a terminal with line editing and a history, or the lines of a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.cli.interrupts import raise_on_interrupt
from paceline.cli.texts import MAX_TEXT_BYTES, decode
from paceline.system.home import make_private_folder
from paceline.system.leaving import cleanup_on_exit

QUOTES = '"""'
HISTORY_LINES = 1000


def strip_block_quotes(text: str) -> str:
    """Return a message without the quotes of a block."""
    inner = text.strip()
    if not inner.startswith(QUOTES):
        return text
    return inner.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")


def is_complete(lines: list[str]) -> bool:
    """Return True if the lines are a whole message: one line, or a block with its closing quotes."""
    first = lines[0].strip()
    if len(lines) == 1 and first.startswith(QUOTES):
        return first[len(QUOTES) :].endswith(QUOTES)
    return len(lines) == 1 or lines[-1].rstrip().endswith(QUOTES)


def read_piped_messages() -> Iterator[str]:
    """Yield the messages of stdin. Raises UsageError for one that is not UTF-8, or too long."""
    if sys.stdin is None:
        return
    lines, left = list[str](), MAX_TEXT_BYTES
    while line := sys.stdin.buffer.readline(left + 1):
        lines.append(decode(line, "stdin", left))
        left -= len(line)
        if is_complete(lines):
            yield "".join(lines).removesuffix("\n").removesuffix("\r")
            lines, left = [], MAX_TEXT_BYTES
    if lines:
        yield "".join(lines)


def read_typed_messages(
    history: Path, warn: Callable[[str], None], sent: Callable[[], None]
) -> Iterator[str]:
    """Yield messages typed at a terminal until Ctrl-D.

    history: the file of earlier lines. sent: called as soon as a line is sent."""
    lines = list[str]()
    with _terminal_restored():
        save = _history(history, warn)
        while True:
            try:
                with raise_on_interrupt():
                    lines.append(input("... " if lines else ">>> "))
                    sent()
            except KeyboardInterrupt:
                sys.stderr.write("\nCtrl-D or /bye ends the chat.\n")
                lines = []
            except EOFError:
                return
            else:
                with suppress(OSError):
                    save()
                if is_complete(lines):
                    yield "\n".join(lines)
                    lines = []


def _history(file: Path, warn: Callable[[str], None]) -> Callable[[], None]:
    """Enable line editing. Return the function that saves the history, readable by the user only."""
    try:
        import readline
    except ImportError:  # Windows
        return lambda: None
    try:
        make_private_folder(file.parent)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
        if file.stat().st_size:
            readline.read_history_file(file)
    except OSError as error:
        warn(f"{file}: cannot be used ({error.strerror}); what is typed is not kept")
        return lambda: None
    readline.set_history_length(HISTORY_LINES)
    return lambda: readline.write_history_file(file)


@contextmanager
def _terminal_restored() -> Iterator[None]:
    """Restore the terminal's settings, however the process ends."""
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    with cleanup_on_exit(lambda: termios.tcsetattr(descriptor, termios.TCSANOW, before)):
        yield
