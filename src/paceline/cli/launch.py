"""`paceline launch`: a coding agent or another client, set up for a server, which is started if none runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from socket import socket
from time import monotonic, sleep
from typing import Annotated

from paceline.cli.options import argument, flag
from paceline.cli.output import print_note
from paceline.speculative.errors import BaselineError, MissingExtraError, UsageError

START_SECONDS = 600.0  # until a server must answer; a large model takes minutes to load


def launch(
    *,
    tool: Annotated[str, argument("TOOL", "aider, claude, codex, goose, open-webui, opencode, qwen.")],
    rest: Annotated[list[str] | None, argument("[-- ARGUMENT...]", "Of the tool.")] = None,
    model: Annotated[
        str, flag("Server", "-m --model", "The model of a server that is started.")
    ] = "zoo:smollm2",
    n_ctx: Annotated[int, flag("Server", "-c --n-ctx", "Its context. Default: as `serve` chooses.")] = 0,
    port: Annotated[int, flag("Server", "--port", "The server's port.")] = 8080,
    dry_run: Annotated[bool, flag("Server", "--dry-run", "Print what would be run.")] = False,
) -> int:
    """Start a tool that is configured for a Paceline server on this machine, and the server if none runs.

    A server that this command starts ends with the tool; its log is in PACELINE_HOME. PACELINE_API_KEY is
    the key of a server that has keys."""
    from paceline.integrations.tools import TOOLS, configured
    from paceline.speculative.validation import unknown

    if tool not in TOOLS:
        raise unknown("tool", tool, TOOLS)
    entry = TOOLS[tool]
    url, key = f"http://127.0.0.1:{port}", os.environ.get("PACELINE_API_KEY", "")
    if dry_run:
        command, environment = configured(entry, url, "MODEL", key)
        print(*(f"{name}={value}" for name, value in environment.items()), " ".join(command), sep="\n")
        return 0
    if shutil.which(entry.program) is None:
        raise MissingExtraError(f"{entry.program} is not installed: {entry.install}")
    with running_server(port, key, model, n_ctx) as name:
        command, environment = configured(entry, url, name, key)
        return subprocess.run([*command, *(rest or [])], env={**os.environ, **environment}).returncode


@contextmanager
def running_server(port: int, key: str, model: str, n_ctx: int) -> Iterator[str]:
    """Yield the name of the model that a server has, which is started if none answers."""
    if (name := served_model(port, key)) is not None:
        print_note(f"the server on port {port} has {name}")
        yield name
        return
    from paceline.system.home import home

    log = home() / "launch.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    arguments = ["serve", "-m", model, "-c", str(n_ctx), "--port", str(port), "--quiet"]
    with log.open("wb") as file:
        server = subprocess.Popen([sys.executable, "-m", "paceline", *arguments], stdout=file, stderr=file)
    try:
        print_note(f"starting a server with {model} (its log: {log})")
        end = monotonic() + START_SECONDS
        while (name := served_model(port, key)) is None:
            if server.poll() is not None:
                last = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
                raise BaselineError(f"the server has ended: {last.removeprefix('paceline: ')}")
            if monotonic() > end:
                raise BaselineError(f"no answer after {START_SECONDS:.0f} seconds: see {log}")
            sleep(0.5)
        yield name
    finally:
        server.terminate()
        server.wait()


def served_model(port: int, key: str) -> str | None:
    """Return the name of the first model of a server; None if nothing listens there.
    Raises UsageError for a server that wants a key, and BaselineError for one that has no such list."""
    from paceline.bench.baselines.openai import MODELS, Endpoint, ModelList

    with socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)):
            return None
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    server = Endpoint(f"the server on port {port}", f"http://127.0.0.1:{port}", 5.0, headers)
    status, models = server.fetch(MODELS, allowed=(401,))
    if status == 401:
        raise UsageError(f"{server.name} wants a key: set PACELINE_API_KEY, or choose another --port")
    return server.validated(ModelList, models).data[0].id
