"""Text from files and stdin."""

from __future__ import annotations

import json
import sys
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
    if file is not None and str(file) != "-":
        text, where = read_text(file), f"{file}: the file"
    elif text is None or text == "-":
        if sys.stdin is None or (text is None and file is None and sys.stdin.isatty()):
            raise UsageError("no prompt: give it as an argument, with -p, with -f FILE or on stdin")
        text, where = decode(sys.stdin.buffer.read(MAX_TEXT_BYTES + 1), "stdin"), "stdin: the prompt"
    else:
        text, where = typed.text("the prompt", text), "the prompt"
    if not text:
        raise UsageError(f"{where} is empty: give some text to complete")
    return text


def read_prompts(file: Path) -> list[str]:
    """Return a prompt for each line: text or (.jsonl) an object with a "prompt". Raises UsageError."""
    prompts = []
    # splitlines() would also split at form feeds and other characters of a prompt.
    for number, line in enumerate(read_text(file).removesuffix("\n").split("\n"), 1):
        where, text = f"{file}, line {number}", line.removesuffix("\r")
        if file.suffix == ".jsonl":
            try:
                text = json.loads(text)["prompt"]
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise UsageError(f'{where}: is no JSON object with a "prompt"') from error
        if not typed.text(where, text).strip():
            raise UsageError(f"{where}: is empty; give a prompt in every line")
        prompts.append(text)
    return prompts


def decode(data: bytes, where: str, limit: int | None = None) -> str:
    """Return UTF-8 text without a byte order mark. Raises UsageError for more than `limit` bytes."""
    if len(data) > (MAX_TEXT_BYTES if limit is None else limit):
        raise UsageError(
            f"{where}: has more than {MAX_TEXT_BYTES >> 20} MiB, which no model reads: shorten it"
        )
    try:
        return data.decode().removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: is not UTF-8 text (byte {error.start}); convert it first") from error
