"""Commands that start another engine with what a user asked of Paceline (docs/engines.md)."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from paceline.integrations.export import sglang, vllm
from paceline.integrations.export.engine_request import EngineRequest as EngineRequest
from paceline.speculative.errors import MissingExtraError, UsageError

ENGINES = {"vllm": vllm.arguments, "sglang": sglang.arguments}
# What installs each program. Both bring gigabytes for NVIDIA's GPUs; other devices have pages of their own.
INSTALL = {"vllm": "pip install vllm==0.33.0", "sglang": "pip install sglang==0.5.23"}


def command(engine: str, request: EngineRequest) -> list[str]:
    """Return the command that starts the engine; its first word is the program.

    Raises UsageError, with the reason, where the engine cannot do it, or not with the model's own output.
    """
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}: choose from {', '.join(ENGINES)}")
    return ENGINES[engine](request)


def launch(command: Sequence[str]) -> NoReturn:
    """Print the command, and become it: signals reach the engine, and its exit code is ours.

    The program is looked for on PATH and beside our Python. Raises MissingExtraError where it is not
    installed, UsageError where it cannot be started."""
    print(
        redacted_command(command), file=sys.stderr, flush=True
    )  # to be run elsewhere, where it is not installed here
    name = command[0]
    program = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if program is None:
        raise MissingExtraError(
            f"{name} is not installed: {INSTALL[name]}, here or in an environment that is on PATH"
        )
    sys.stdout.flush()
    try:
        os.execv(program, [program, *command[1:]])
    except OSError as error:
        raise UsageError(f"{program}: cannot be started ({error.strerror})") from error


def redacted_command(command: Sequence[str]) -> str:
    """Return the command for a shell, without the API key."""
    before = ["", *command]
    return shlex.join("..." if before[at] == "--api-key" else word for at, word in enumerate(command))
