"""The command line for tests: in this process, or as a program."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.app import invoke

HOME = "PACELINE_HOME"  # the tests' own (conftest.py)
PROGRAM = [sys.executable, "-m", "paceline"]


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The single JSON object on stdout."""
        assert self.out.count("\n") == 1
        record = json.loads(self.out, parse_constant=lambda name: pytest.fail(f"not JSON: {name}"))
        assert isinstance(record, dict)
        return record

    def refused(self, code: int, *words: str) -> None:
        """Check for an empty stdout, one line on stderr with all `words`, and this exit code."""
        assert (self.code, self.out) == (code, "")
        assert self.err.startswith("paceline: ")
        assert self.err.count("\n") == 1
        assert [word for word in words if word not in self.err] == []


def command(capsys: pytest.CaptureFixture[str], *args: str | Path, stdin: bytes = b"", **env: str) -> Done:
    """Run a command in this process."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PACELINE_")]:
            if name != HOME:
                patch.delenv(name)
        for name, value in env.items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = invoke([str(arg) for arg in args])
    return Done(code, *capsys.readouterr())


def run(
    capsys: pytest.CaptureFixture[str], model: Path, *args: str | Path, stdin: bytes = b"", **env: str
) -> Done:
    """Run `paceline run` on a tiny model with one thread: more threads are slow on a busy machine."""
    return command(capsys, "run", "-m", model, "-t", "1", *args, stdin=stdin, **env)


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without variables that change the program's output."""
    users = ("PACELINE_", "NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(users)}
    home = {name: value for name, value in os.environ.items() if name == HOME}
    # A trial of flash attention would say so on a machine too busy for it.
    fixed = {"PACELINE_THREADS": "1", "PACELINE_FLASH_ATTN": "on"}
    return clean | home | fixed | {"TERM": "xterm"} | more


def program(*args: str | Path, stdin: bytes = b"", **env: str) -> Done:
    """Run the program in a new process."""
    done = subprocess.run(
        [*PROGRAM, *map(str, args)],
        input=stdin,
        capture_output=True,
        env=environment(**env),
        timeout=120,
        check=False,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def start(*args: str | Path, **env: str) -> subprocess.Popen[bytes]:
    """Start the program in a new process."""
    return subprocess.Popen(
        [*PROGRAM, *map(str, args)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**env),
    )


def chunks(terminal: int) -> Iterator[bytes]:
    """Yield the terminal's output until its last writer exits, which Linux reports as an error."""
    with suppress(OSError):
        while chunk := os.read(terminal, 65536):
            yield chunk
