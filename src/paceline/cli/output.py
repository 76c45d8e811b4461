"""Output of commands: JSON on stdout, notes on stderr. People get the names that they typed for models."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

from paceline.speculative.printable import printable
from paceline.system.terminal import wrapped

OFF = ("", "0", "f", "false", "n", "no", "off")  # values of a flag in the environment
verbose = False  # --verbose
_typed_names: dict[str, str] = {}  # by the path that a name stands for


def take_verbose(args: Sequence[str]) -> list[str]:
    """Return the arguments of a command line without --verbose, which every command has."""
    global verbose
    _typed_names.clear()
    end = args.index("--") if "--" in args else len(args)
    rest = [arg for arg in args[:end] if arg != "--verbose"]
    verbose = len(rest) < end or os.environ.get("PACELINE_VERBOSE", "").lower() not in OFF
    return [*rest, *args[end:]]


def remember_name(path: str, name: str) -> None:
    """Let messages and reports call a file by the name that was typed for it."""
    _typed_names[path] = name


def with_typed_names(value: Any) -> Any:
    """Return a text, or a record with texts, with the typed names in place of the paths."""
    if isinstance(value, str):
        for path in sorted(_typed_names, key=len, reverse=True):
            whole = re.compile(rf"(?<![\w./-]){re.escape(path)}(?![\w-]|\.\w)")  # not within a longer name
            value = _typed_names[path].join(whole.split(value))
        return value
    if isinstance(value, dict):
        return {key: with_typed_names(item) for key, item in value.items()}
    return [with_typed_names(item) for item in value] if isinstance(value, (list, tuple)) else value


def print_record(record: Any, as_json: bool, write: Callable[[Any, IO[str]], object]) -> None:
    """Print a record on stdout: as JSON, or as `write` does for people."""
    if as_json:
        print_json(record)
    else:
        write(with_typed_names(record), sys.stdout)


def print_json(record: Any) -> None:
    sys.stdout.write(json.dumps(strict_json(record), allow_nan=False) + "\n")


def strict_json(value: Any) -> Any:
    """Return a value with infinities and NaN as strings, which JSON lacks and float() reads back."""
    if isinstance(value, dict):
        return {key: strict_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict_json(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def print_note(text: str) -> None:
    """Write a line to stderr, without line breaks and terminal sequences of quoted names and texts."""
    print(wrapped(printable(with_typed_names(text)), sys.stderr), file=sys.stderr, flush=True)


def print_detail(text: str) -> None:
    """Write a line to stderr with --verbose only."""
    if verbose:
        print(printable(text), file=sys.stderr, flush=True)
