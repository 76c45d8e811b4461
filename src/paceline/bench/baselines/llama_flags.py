"""llama.cpp's flags of several years: a program is asked for its own, by --help, before it is given any."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from paceline.speculative.errors import PeerError

# How llama.cpp calls what our drafters do.
TYPES = {"model": "draft-simple", "lookup": "ngram-simple"}
PLAIN = ("plain", "none")
SELF_DRAFTING = "draft-mtp"  # the one draft-* type whose draft is inside the target's file
HELP_SECONDS = 60.0


@dataclass(frozen=True)
class Flags:
    """What a program's --help says."""

    program: str
    text: str = field(repr=False)

    def has(self, word: str) -> bool:
        return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", self.text) is not None

    def select(self, *names: str) -> str:
        """The first of `names` that the program knows. Raises PeerError where it knows none."""
        for name in names:
            if self.has(name):
                return name
        raise PeerError(
            f"{self.program} has no {names[0]}: it is too old or too new for this; see its --help"
        )

    def takes_value(self, name: str) -> bool:
        """Whether `name` is followed by one of several values, [on|off|auto], and is no mere switch."""
        return re.search(rf"{re.escape(name)}\s+\[", self.text) is not None


def read_flags(command: Sequence[str]) -> Flags:
    """Raises PeerError where the program does not run."""
    path = Path(shutil.which(command[0]) or command[0])
    if not path.is_file():
        raise PeerError(f"there is no program {command[0]}: give its path, or leave this peer out")
    return _read_flags(tuple(command), path.stat().st_mtime_ns)


@lru_cache
def _read_flags(command: tuple[str, ...], changed: int) -> Flags:  # noqa: ARG001  # part of the key
    program = Path(command[0]).name if len(command) == 1 else command[-1].rpartition(".")[2]
    return Flags(program, output_of(command, "--help"))


def output_of(command: Sequence[str], flag: str) -> str:
    """What a program prints and exits. Raises PeerError where it fails without a word of help: builds of 2024
    print theirs and call it a failure."""
    name = shlex.join(command)
    try:
        done = subprocess.run(
            [*command, flag],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=HELP_SECONDS,
            check=False,
        )
    except OSError as error:
        raise PeerError(f"{name}: {command[0]} cannot be started: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"{name} {flag} did not end within {HELP_SECONDS:g} s and was stopped") from error
    said = done.stdout.decode(errors="replace")
    if done.returncode != 0 and "--help" not in said:
        tail = said.strip()[-300:]
        raise PeerError(f"{name} {flag} failed with exit status {done.returncode}: {tail}")
    return said


def spec_types(method: str) -> tuple[str, ...]:
    """llama.cpp's names of a method: ours, its own, or a comma list of them; none for plain decoding."""
    names = [name.strip() for name in method.split(",")]
    return tuple(TYPES.get(name, name) for name in names if name not in PLAIN)


def needs_draft(types: Sequence[str]) -> bool:
    return any(one.startswith("draft-") and one != SELF_DRAFTING for one in types)


def model_arguments(
    flags: Flags,
    target: Path,
    *,
    n_ctx: int,
    threads: int,
    parallel: int,
    flash_attention: bool | None,
    cache_type: str,
    gpu_layers: int,
) -> list[str]:
    """The target and how it is run. n_ctx: of each of `parallel` slots."""
    arguments = ["-m", str(target), "-c", str(n_ctx * parallel), "-np", str(parallel)]
    arguments += ["-t", str(threads), "-tb", str(threads), "-ngl", str(gpu_layers)]
    arguments += ["-ctk", cache_type, "-ctv", cache_type]
    if flash_attention is not None:
        if flags.takes_value("--flash-attn"):
            arguments += ["-fa", "on" if flash_attention else "off"]
        elif flash_attention:
            arguments += ["-fa"]
    # Memory of prompts past, and settings that it may choose by itself, would make runs incomparable.
    for name, value in (("--cache-ram", "0"), ("--fit", "off")):
        if flags.has(name):
            arguments += [name, value]
    return arguments


def speculation_arguments(
    flags: Flags,
    types: Sequence[str],
    draft: Path | None,
    *,
    n_draft: int | None,
    p_min: float | None,
    cache_type: str,
    gpu_layers: int,
) -> list[str]:
    """How to draft. n_draft, p_min: None leaves them to the program; n_draft is also the length of what
    ngram-simple and ngram-map-k copy, but not of ngram-mod, whose lengths go together."""
    if not types:
        return []
    # Before draft models had a name among the types, naming the file was enough.
    named = [one for one in types if one != "draft-simple" or flags.has(one)]
    for one in named:
        if not flags.has(one):
            raise PeerError(f"{flags.program} does not draft by {one}: see --spec-type in its --help")
    arguments: list[str] = []
    if draft is not None and needs_draft(types):
        arguments += ["-md", str(draft), flags.select("--spec-draft-ngl", "-ngld"), str(gpu_layers)]
        if flags.has("-ctkd"):
            arguments += ["-ctkd", cache_type, "-ctvd", cache_type]
    if any(one.startswith("draft-") for one in types):
        if n_draft is not None:
            arguments += [flags.select("--spec-draft-n-max", "--draft-max"), str(n_draft)]
            arguments += [flags.select("--spec-draft-n-min", "--draft-min"), "0"]
        if p_min is not None:
            arguments += [flags.select("--spec-draft-p-min", "--draft-p-min"), f"{p_min:g}"]
    for one in types:
        if n_draft is not None and one in ("ngram-simple", "ngram-map-k", "ngram-map-k4v"):
            arguments += [flags.select(f"--spec-{one}-size-m", "--spec-ngram-size-m"), str(n_draft)]
    return [*arguments, *(["--spec-type", ",".join(named)] if named else [])]
