"""`paceline launch`: a coding agent or another client, set up for a server, which is started if none runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Annotated, Any

from paceline.cli.options import argument, flag
from paceline.cli.output import print_note
from paceline.speculative.errors import BaselineError, MissingExtraError, UsageError

START_SECONDS = 600.0  # until a server must answer; a large model takes minutes to load
CONTEXT = 16384  # of a server that is started: agents begin with 8,000 to 16,000 tokens


def launch(
    *,
    tool: Annotated[str, argument("TOOL", "aider, claude, codex, goose, open-webui, opencode, qwen.")],
    rest: Annotated[list[str] | None, argument("[-- ARGUMENT...]", "Of the tool.")] = None,
    model: Annotated[
        str, flag("Server", "-m --model", "The model of a server that is started.")
    ] = "zoo:smollm2",
    n_ctx: Annotated[int, flag("Server", "-c --n-ctx", "Its context.")] = CONTEXT,
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
        print("\n".join(f"{name}={value}" for name, value in environment.items()))
        print(*command)
        return 0
    if shutil.which(entry.program) is None:
        raise MissingExtraError(f"{entry.program} is not installed: {entry.install}")
    with running_server(url, key, model, n_ctx, port) as name:
        command, environment = configured(entry, url, name, key)
        return subprocess.run([*command, *(rest or [])], env={**os.environ, **environment}).returncode


@contextmanager
def running_server(url: str, key: str, model: str, n_ctx: int, port: int) -> Iterator[str]:
    """Yield the name of the model that a server has, which is started if none answers."""
    if (name := served_model(url, key)) is not None:
        print_note(f"the server at {url} has {name}")
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
        yield wait_for(server, url, key, log)
    finally:
        server.terminate()
        server.wait()


def wait_for(server: subprocess.Popen[bytes], url: str, key: str, log: Path) -> str:
    """Return the name of the model when the server answers. Raises BaselineError otherwise."""
    end = monotonic() + START_SECONDS
    while monotonic() < end:
        if server.poll() is not None:
            last = log.read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            raise BaselineError(f"the server has ended: {last.removeprefix('paceline: ')}")
        if (name := served_model(url, key)) is not None:
            return name
        sleep(0.5)
    raise BaselineError(f"the server does not answer after {START_SECONDS:.0f} seconds: see {log}")


def served_model(url: str, key: str) -> str | None:
    """Return the name of the first model of a server; None if nothing answers there.
    Raises UsageError for a server that refuses the key, or that is no such server."""
    import json
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urlopen(Request(f"{url}/v1/models", headers=headers), timeout=5) as answer:
            models: Any = json.load(answer)
        return str(models["data"][0]["id"])
    except HTTPError as error:
        raise UsageError(
            f"the server at {url} answers {error.code}: set PACELINE_API_KEY, or --port"
        ) from None
    except (URLError, TimeoutError):
        return None
    except (ValueError, KeyError, IndexError, TypeError):
        raise UsageError(f"what is at {url} has no list of models: choose another --port") from None
