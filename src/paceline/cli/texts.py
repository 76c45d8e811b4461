"""Text from files and stdin."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path

from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError

MAX_TEXT_BYTES = 1 << 26  # more than any context holds; a device may be endless
BYTE_ORDER_MARK = "\ufeff"


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
