"""Prompts and messages from files, stdin, and a terminal with line editing and a history."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paceline.cli.interrupts import on_interrupt
from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError
from paceline.system.home import make_private_folder
from paceline.system.leaving import cleanup_on_exit

MAX_TEXT_BYTES = 1 << 26  # more than any context holds; a device may be endless
BYTE_ORDER_MARK = "\ufeff"
QUOTES = '"""'
HISTORY_LINES = 1000


def read_text(file: Path) -> str:
    """Return the text of a file. Raises UsageError if it cannot be read, is too long or not UTF-8."""
    try:
        with file.open("rb") as stream:
            return decode(stream.read(MAX_TEXT_BYTES + 1), str(file))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror}); give a text file") from error


def read_prompt(argument: str | None, option: str | None, file: Path | None) -> str:
    """Return the prompt from the argument, -p, -f or stdin ("-", or no source). Raises UsageError."""
    if sum(x is not None for x in (argument, option, file)) > 1:
        raise UsageError("more than one prompt: give it as an argument, with -p, with -f or on stdin")
    text = argument if argument is not None else option
    where = "the prompt"
    if file is not None and str(file) != "-":
        text, where = read_text(file), f"{file}: the file"
    elif text is not None and text != "-":
        text = typed.text("the prompt", text)
    elif sys.stdin is not None and (text is not None or file is not None or not sys.stdin.isatty()):
        text, where = decode(sys.stdin.buffer.read(MAX_TEXT_BYTES + 1), "stdin"), "stdin: the prompt"
    if not text:
        why = "no prompt" if text is None else f"{where} is empty"
        raise UsageError(f"{why}: give it as an argument, with -p, with -f FILE or on stdin")
    return text


def read_prompts(file: Path) -> list[str]:
    """Return a prompt for each line: text or (.jsonl) an object with a "prompt". Raises UsageError."""
    prompts = []
    # splitlines() would also split at form feeds and other characters of a prompt.
    for number, line in enumerate(read_text(file).removesuffix("\n").split("\n"), 1):
        where, text = f"{file}, line {number}", line.removesuffix("\r")
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            text = json.loads(text)["prompt"] if file.suffix == ".jsonl" else text
            if typed.text(where, text).strip():
                prompts.append(text)
                continue
        form = 'a JSON object with a "prompt"' if file.suffix == ".jsonl" else "a prompt"
        raise UsageError(f"{where}: give {form} in every line")
    return prompts


def decode(data: bytes, where: str, limit: int | None = None) -> str:
    """Return UTF-8 text without a byte order mark. Raises UsageError for more than `limit` bytes."""
    why = f"has more than {MAX_TEXT_BYTES >> 20} MiB, which no model reads: shorten it"
    if len(data) <= (MAX_TEXT_BYTES if limit is None else limit):
        try:
            return data.decode().removeprefix(BYTE_ORDER_MARK)
        except UnicodeDecodeError as error:
            why = f"is not UTF-8 text (byte {error.start}); convert it first"
    raise UsageError(f"{where}: {why}")


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


def read_typed_messages(file: Path, warn: Callable[[str], None], sent: Callable[[], None]) -> Iterator[str]:
    """Yield messages typed at a terminal until Ctrl-D.
    file: of earlier lines. sent: called as soon as a line is sent."""
    lines = list[str]()
    with _terminal_restored():
        save = _history(file, warn)
        while True:
            try:
                with on_interrupt():
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
