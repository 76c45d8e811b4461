"""Starting the engine that a command names."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from paceline.speculative.errors import MissingExtraError, UsageError

# What installs each program. Both bring gigabytes for NVIDIA's GPUs; other devices have pages of their own.
INSTALL = {"vllm": "pip install vllm==0.33.0", "sglang": "pip install sglang==0.5.23"}
SECRET = "--api-key"


def launch(command: Sequence[str]) -> NoReturn:
    """Print the command, and become it: from then on this process is the engine, so that signals reach it and
    its exit code is ours. Raises MissingExtraError where it is not installed, UsageError where it cannot be
    started."""
    print(
        shown(command), file=sys.stderr, flush=True
    )  # first: where it is not installed, it can be elsewhere
    program = find(command[0])
    sys.stdout.flush()
    try:
        os.execv(program, [program, *command[1:]])
    except OSError as error:
        raise UsageError(f"{program}: cannot be started ({error.strerror})") from error


def find(program: str) -> str:
    """On PATH, or beside the Python that runs us. Raises MissingExtraError."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which(program) or shutil.which(program, path=beside)
    if found is None:
        raise MissingExtraError(
            f"{program} is not installed: {INSTALL[program]}, here or in an environment that is on PATH"
        )
    return found


def shown(command: Sequence[str]) -> str:
    """For a shell, the API key left out."""
    hidden = [
        "..." if before == SECRET else word for before, word in zip(["", *command], command, strict=False)
    ]
    return shlex.join(hidden)
