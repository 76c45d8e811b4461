"""Paceline's settings as the arguments, files and programs of other engines (docs/engines.md)."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from paceline import plan
from paceline.integrations.export import documents, llama, sglang, vllm
from paceline.integrations.export.engine_request import EngineRequest as EngineRequest
from paceline.integrations.export.engine_request import version_numbers
from paceline.settings import AUTO, EngineOptions, LoadOptions
from paceline.speculative.errors import MissingExtraError, UsageError
from paceline.speculative.validation import unknown

ENGINES: dict[str, Callable[[EngineRequest], list[str]]] = {
    "vllm": vllm.arguments, "sglang": sglang.arguments, llama.SERVER: llama.arguments,
}  # fmt: skip
INSTALL = {"vllm": "pip install vllm==0.33.0", "sglang": "pip install sglang==0.5.23",
           llama.SERVER: "build llama.cpp (python benchmarks/native_llama.py)"}  # fmt: skip
PROGRAMS = (llama.SIMPLE, llama.TREE, llama.LOOKUP)  # they answer one prompt
COMMANDS = ENGINES | {name: partial(llama.arguments, program=name) for name in PROGRAMS}
DOCUMENTS = {"transformers": documents.transformers, "trtllm": documents.trtllm, "ollama": documents.ollama}
TARGETS = (*COMMANDS, *DOCUMENTS)
# The oldest versions whose names are known here.
OLDEST = dict.fromkeys((llama.SERVER, *PROGRAMS), "5000")
OLDEST |= {"vllm": "0.6.4", "sglang": "0.4.6", "transformers": "5.0", "trtllm": "1.0", "ollama": "0.32"}


def request_of(options: LoadOptions, **served: Any) -> EngineRequest:
    """Return the request for options of `load` and a named profile. served: more fields."""
    options = plan.with_profile(options, anywhere=True) if options.profile != AUTO else options
    if lossy := options.quality.lossy or ("role speed" if options.quality.role == "speed" else ""):
        raise UsageError(f"{lossy} changes the text: other engines are told lossless settings only")
    given, usual = options.drafting.explicit_settings, asdict(EngineOptions())
    return EngineRequest(
        str(options.target), draft=str(options.draft or ""), drafters=options.drafting.drafters,
        n_draft=given.pop("n_draft", 0), n_ctx=options.engine.n_ctx, drafting_settings=given,
        corpora=tuple(map(str, options.corpora)), **served,
        engine_options={n: v for n, v in asdict(options.engine).items() if v != usual[n] and n != "n_ctx"},
    )  # fmt: skip


def command(engine: str, request: EngineRequest) -> list[str]:
    """Return the command that starts the engine. Raises UsageError if the engine cannot do it losslessly."""
    if engine not in COMMANDS:
        raise unknown("engine", engine, COMMANDS)
    return COMMANDS[engine](request)


def exported(engine: str, request: EngineRequest, form: str = "") -> str:
    """Return a text for an engine. form: command, json, python, yaml or modelfile; "": the usual one.
    Raises UsageError."""
    if engine not in TARGETS:
        raise unknown("engine", engine, TARGETS)
    if request.version and version_numbers(request.version) < version_numbers(OLDEST[engine]):
        raise UsageError(f"{engine} {request.version}: names are known here since {OLDEST[engine]}")
    words = command(engine, request) if engine in COMMANDS else []
    texts = {"command": shlex.join(words), "json": json.dumps(words)} if words else DOCUMENTS[engine](request)
    if form and form not in texts:
        raise unknown(f"format for {engine}", form, texts)
    return texts[form or next(iter(texts))]


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
