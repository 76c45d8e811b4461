"""Options that several commands share. Each can also come from the environment as PACELINE_<FLAG>."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.core.errors import UsageError


def option(*flags: str, env: str, help: str) -> Any:  # noqa: A002  # typer's own word
    return typer.Option(*flags, envvar=f"PACELINE_{env}", help=help, show_default=True)


Model = Annotated[
    str | None, option("-m", "--model", env="MODEL", help="Target, a GGUF file. Default: embedded.")
]
DraftModel = Annotated[
    str | None, option("-md", "--model-draft", env="MODEL_DRAFT", help="Draft model, a GGUF file.")
]
Drafters = Annotated[
    str | None,
    option(
        "--draft", env="DRAFT", help="Drafters in the order asked, of: lookup, model, none. E.g. lookup,model"
    ),
]
Context = Annotated[
    int, option("-c", "--ctx-size", env="CTX_SIZE", help="Context in tokens; 0: the model's own.")
]
Threads = Annotated[
    int | None, option("-t", "--threads", env="THREADS", help="Threads. Default: physical cores.")
]
GpuLayers = Annotated[int, option("-ngl", "--gpu-layers", env="GPU_LAYERS", help="Layers to keep on a GPU.")]


def read_prompt(argument: str | None, option_: str | None, file: Path | None) -> str:
    """The prompt from exactly one place: the argument, -p, -f, or stdin ("-" or none of these)."""
    given = [x for x in (argument, option_, file) if x is not None]
    if len(given) > 1:
        raise UsageError("more than one prompt: give it as an argument, with -p, with -f or on stdin")
    if file is not None:
        return _read_file(file)
    text = argument if argument is not None else option_
    if text is None or text == "-":
        if sys.stdin is None or (text is None and sys.stdin.isatty()):
            raise UsageError("no prompt: give it as an argument, with -p, with -f FILE or on stdin")
        text = _decoded(sys.stdin.buffer.read(), "stdin")
    if not text:
        raise UsageError("the prompt is empty: give some text to complete")
    return text


def _read_file(file: Path) -> str:
    try:
        text = _decoded(file.read_bytes(), str(file))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})") from error
    if not text:
        raise UsageError(f"{file}: is empty; give a file with some text to complete")
    return text


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: is not UTF-8 text (byte {error.start})") from error
