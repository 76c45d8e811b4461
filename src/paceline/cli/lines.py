"""Where the messages of a chat come from: a terminal with line editing and a history, or lines of a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.texts import LONGEST, MARK
from paceline.speculative.errors import UsageError

if TYPE_CHECKING:
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.history import History

QUOTES = '"""'
LONGEST_HISTORY = 1 << 20  # bytes; then the older half is dropped
PROMPT, MORE = ">>> ", "... "
HINT = "Send a message (/help for help)"


def is_open(text: str) -> bool:
    """Whether a block that begins with three quotes goes on."""
    begun = text.lstrip()
    return begun.startswith(QUOTES) and not begun[len(QUOTES) :].rstrip().endswith(QUOTES)


def unquoted(text: str) -> str:
    """Without the quotes around a block of several lines."""
    inner = text.strip()
    if not inner.startswith(QUOTES):
        return text
    return inner.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")


def piped() -> Iterator[str]:
    """The lines of stdin, of which several are one message where quotes are around them. Raises UsageError
    for what is not UTF-8 text, or too long for any model."""
    if sys.stdin is None:
        return
    message, left = list[str](), LONGEST
    for number in count(1):
        line = sys.stdin.buffer.readline(left + 1)
        if not line:
            break
        if (left := left - len(line)) < 0:
            raise UsageError(
                f"stdin, line {number}: the message has more than {LONGEST >> 20} MiB, which no model reads"
            )
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"stdin, line {number}: is not UTF-8 text; convert it first") from error
        message.append(text.removeprefix(MARK) if number == 1 else text)
        # A block that is open ends with the line that ends with quotes.
        if text.rstrip().endswith(QUOTES) if message[1:] else not is_open(message[0]):
            yield "".join(message).removesuffix("\n").removesuffix("\r")
            message, left = [], LONGEST
    if message:
        yield "".join(message)


def typed_in(history: Path, warn: Callable[[str], None], sent: Callable[[], None]) -> Iterator[str]:
    """What is typed at a terminal until Ctrl-D. history: the file that it is kept in. sent: called the moment
    that a message is sent off."""
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession(
        message=PROMPT,
        multiline=True,
        prompt_continuation=MORE,
        placeholder=_hint,
        key_bindings=_keys(sent),
        history=_history(history, warn),
    )
    with _as_found():
        while True:
            try:
                yield session.prompt()
            except KeyboardInterrupt:
                sys.stderr.write("Ctrl-D or /bye ends the chat.\n")
            except EOFError:
                return


def _hint() -> StyleAndTextTuples:
    """While there is nothing on the line; not on the line that a chat ends with."""
    from prompt_toolkit.application import get_app

    return [] if get_app().is_done else [("fg:ansibrightblack", HINT)]


def _keys(sent: Callable[[], None]) -> Any:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            sent()
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


def _history(file: Path, warn: Callable[[str], None]) -> History:
    """For the user's eyes only; in memory alone where the disk refuses."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    from paceline.system.home import private_folder, write_whole

    try:
        private_folder(file.parent)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        file.chmod(0o600)
        if file.stat().st_size > LONGEST_HISTORY:
            kept = file.read_bytes()[-LONGEST_HISTORY // 2 :].partition(b"\n# ")[2]
            write_whole(file, f"\n# {kept.decode(errors='replace')}")
    except OSError as error:
        warn(f"{file}: cannot be written ({error.strerror}); what is typed is not kept")
        return InMemoryHistory()
    return FileHistory(str(file))


@contextmanager
def _as_found() -> Iterator[None]:
    """The terminal is left as it was, whatever ends the process while a line is edited."""
    from paceline.system.leaving import undone

    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    with undone(lambda: termios.tcsetattr(descriptor, termios.TCSANOW, before)):
        yield
