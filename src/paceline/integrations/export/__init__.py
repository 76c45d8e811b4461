"""Commands that start another engine with Paceline's settings (docs/engines.md)."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from paceline.integrations.export import llama_server, sglang, vllm
from paceline.integrations.export.engine_request import EngineRequest as EngineRequest
from paceline.speculative.errors import MissingExtraError, UsageError
from paceline.speculative.validation import unknown

ENGINES = {"vllm": vllm.arguments, "sglang": sglang.arguments, "llama-server": llama_server.arguments}
INSTALL = {
    "vllm": "pip install vllm==0.33.0",
    "sglang": "pip install sglang==0.5.23",
    "llama-server": "build llama.cpp (python benchmarks/native_llama.py)",
}


def command(engine: str, request: EngineRequest) -> list[str]:
    """Return the command that starts the engine. Raises UsageError if the engine cannot do it losslessly."""
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    return ENGINES[engine](request)


def launch(command: Sequence[str]) -> NoReturn:
    """Print the command and replace this process by it, so that signals and the exit code pass through.
    Raises MissingExtraError if the program is not installed, UsageError if it cannot be started."""
    print(redacted_command(command), file=sys.stderr, flush=True)
    name = command[0]
    program = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if program is None:
        where = "here or in an environment on PATH"
        raise MissingExtraError(f"{name} is not installed: {INSTALL[name]}, {where}")
    sys.stdout.flush()
    try:
        os.execv(program, [program, *command[1:]])
    except OSError as error:
        raise UsageError(f"{program}: cannot be started ({error.strerror})") from error


def redacted_command(command: Sequence[str]) -> str:
    """Return the command for a shell, without the API key."""
    before = ["", *command]
    return shlex.join("..." if before[at] == "--api-key" else word for at, word in enumerate(command))
