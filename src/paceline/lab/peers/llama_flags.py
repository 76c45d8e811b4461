"""The command line of llama-server, as builds since 2026 take it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from paceline.core.errors import PeerError

# How llama.cpp calls what our drafters do.
TYPES = {"model": "draft-simple", "lookup": "ngram-simple"}
PLAIN = ("plain", "none")
SELF_DRAFTING = "draft-mtp"  # the one draft-* type whose draft is inside the target's file
SIZED = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")  # copy as many tokens as they are told
HELP_SECONDS = 60.0


def output_of(command: Sequence[str], flag: str) -> str:
    """What a program prints and exits. Raises PeerError where it does not run, or fails."""
    name = shlex.join(command)
    if shutil.which(command[0]) is None:
        raise PeerError(f"there is no program {command[0]}: give its path, or leave this peer out")
    try:
        done = subprocess.run(
            [*command, flag], capture_output=True, timeout=HELP_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerError(f"{name} {flag} cannot be asked: {error}") from error
    said = (done.stdout + done.stderr).decode(errors="replace")
    if done.returncode != 0:
        tail = said.strip()[-300:]
        raise PeerError(f"{name} {flag} failed with exit status {done.returncode}: {tail}")
    return said


def spec_types(method: str) -> tuple[str, ...]:
    """llama.cpp's names of a method: ours, its own, or a comma list of them; none for plain decoding."""
    names = [name.strip() for name in method.split(",")]
    return tuple(TYPES.get(name, name) for name in names if name not in PLAIN)


def require_types(command: Sequence[str], types: Sequence[str]) -> None:
    """Raises PeerError where the program does not draft in one of these ways."""
    said = output_of(command, "--help") if types else ""
    for one in types:
        if re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", said) is None:
            raise PeerError(
                f"{Path(command[-1]).name} does not draft by {one}: see --spec-type in its --help; builds "
                "before 2026 have none"
            )


def needs_draft(types: Sequence[str]) -> bool:
    return any(one.startswith("draft-") and one != SELF_DRAFTING for one in types)


def arguments(
    target: Path,
    types: Sequence[str],
    draft: Path | None,
    *,
    n_draft: int | None,
    p_min: float | None,
    n_ctx: int,
    threads: int,
    parallel: int,
    flash_attention: bool | None,
    cache_type: str,
    gpu_layers: int,
) -> list[str]:
    """The models, how they are run, and how to draft. n_ctx: of each of `parallel` slots. n_draft, p_min:
    None leaves them to the program; n_draft is also the length of what ngram-simple and ngram-map-k copy, but
    not of ngram-mod, whose lengths go together."""
    out = ["-m", str(target), "-c", str(n_ctx * parallel), "-np", str(parallel)]
    out += ["-t", str(threads), "-tb", str(threads), "-ngl", str(gpu_layers)]
    out += ["-ctk", cache_type, "-ctv", cache_type]
    if flash_attention is not None:
        out += ["-fa", "on" if flash_attention else "off"]
    # Memory of prompts past, and settings that it may choose by itself, would make runs incomparable.
    out += ["--cache-ram", "0", "--fit", "off"]
    if draft is not None and needs_draft(types):
        out += ["-md", str(draft), "--spec-draft-ngl", str(gpu_layers)]
        out += ["-ctkd", cache_type, "-ctvd", cache_type]
    if any(one.startswith("draft-") for one in types):
        if n_draft is not None:
            out += ["--spec-draft-n-max", str(n_draft), "--spec-draft-n-min", "0"]
        if p_min is not None:
            out += ["--spec-draft-p-min", f"{p_min:g}"]
    for one in types:
        if n_draft is not None and one in SIZED:
            out += [f"--spec-{one}-size-m", str(n_draft)]
    return [*out, *(["--spec-type", ",".join(types)] if types else [])]
