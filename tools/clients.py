"""Run the blocks of docs/clients.md as they stand, each client in an environment of its own.

    python -m tools.clients [NAME ...]

Installs what a block installs below build/clients, starts the server that its section needs (SmolLM2's, or a
scripted model's for agents), and prints a line for each: whether it ended well, and the last line it printed.
The whole output is in build/clients/NAME.log. The exit code is 1 if a block fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from urllib.request import urlopen

DOCS = Path("docs/clients.md")
BUILD = Path("build/clients").absolute()
AGENTS = "Coding agents"
PORT = 8080
LIMIT_SECONDS = 1800
SERVERS = {
    True: ["-m", "tools.scripted_model", "--port", str(PORT)],
    False: [
        "-m",
        "paceline",
        "serve",
        "-m",
        "zoo:smollm2",
        "--alias",
        "*",
        "--temp",
        "0",
        "-n",
        "64",
        "--quiet",
    ],
}


@dataclass(frozen=True)
class Client:
    name: str
    is_agent: bool
    block: str


def clients(text: str) -> Iterator[Client]:
    """Yield the clients of the page: a heading and a block of commands each."""
    for section in re.split(r"(?m)^## ", text)[1:]:
        title = section.splitlines()[0]
        for name, block in re.findall(r"(?ms)^### ([^\n]+)\n```sh\n(.*?)^```", section):
            yield Client(name, title == AGENTS, block)


@contextmanager
def serving(is_agent: bool) -> Iterator[None]:
    with (BUILD / "server.log").open("ab") as log:
        server = subprocess.Popen([sys.executable, *SERVERS[is_agent]], stdout=log, stderr=log)
    try:
        while server.poll() is None:
            try:
                urlopen(f"http://127.0.0.1:{PORT}/health", timeout=5).close()
                break
            except OSError:
                sleep(0.5)
        yield
    finally:
        server.terminate()
        server.wait()


def write_tokenizer() -> None:
    """Write the tokenizer of SmolLM2 as measuring programs read it."""
    from transformers import AutoTokenizer

    from paceline.models import zoo

    file = zoo.path("smollm2")
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(BUILD / "tokenizer")


def run(client: Client) -> tuple[bool, str]:
    """Run a client's block; return whether it ended well, and its last line."""
    folder = BUILD / client.name.replace(" ", "-").lower()
    work, environment = folder / "work", folder / "venv"
    work.mkdir(parents=True, exist_ok=True)
    if not environment.exists():
        venv.create(environment, with_pip=True)
        if uv := shutil.which("uv"):  # the same in seconds
            (environment / "bin" / "pip").write_text(f'#!/bin/sh\nexec {uv} pip "$@"\n')
    (work / "greet.py").write_text('print("Hi, world")\n')
    subprocess.run(["git", "init", "-q"], cwd=work, check=True)
    own = {
        "HOME": str(folder),
        "VIRTUAL_ENV": str(environment),
        "NPM_CONFIG_PREFIX": str(BUILD / "npm"),
        "PATH": f"{environment}/bin:{BUILD}/npm/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TOKENIZER": str(BUILD / "tokenizer"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    log = BUILD / f"{folder.name}.log"
    command = ["timeout", str(LIMIT_SECONDS), "bash", "-euo", "pipefail", "-c", client.block]
    with log.open("wb") as file:
        ended = subprocess.run(
            command, cwd=work, env={**os.environ, **own}, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    good = ended.returncode == 0
    if client.is_agent:
        good &= "Hello" in (work / "greet.py").read_text()
    lines = log.read_text(errors="replace").strip().splitlines()
    return good, lines[-1] if lines else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a client, as its heading names it")
    names, failed = parser.parse_args().names, 0
    chosen = [client for client in clients(DOCS.read_text()) if not names or client.name in names]
    BUILD.mkdir(parents=True, exist_ok=True)
    write_tokenizer()
    for is_agent in (False, True):
        these = [client for client in chosen if client.is_agent == is_agent]
        if not these:
            continue
        with serving(is_agent):
            for client in these:
                began = perf_counter()
                good, last = run(client)
                failed += not good
                word = "fine" if good else "FAILED"
                print(f"{client.name:16} {word:6} {perf_counter() - began:5.0f} s  {last[:70]}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
