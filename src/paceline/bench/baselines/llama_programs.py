"""Command lines of llama.cpp's programs, for builds since 2026, and causes of failures in their logs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from paceline.bench.baselines.process import BackgroundProgram
from paceline.speculative.errors import PeerError
from paceline.speculative.printable import truncated
from paceline.speculative.sampling import Sampling

# Our drafters -> llama.cpp's speculation types.
TYPES = {"model": "draft-simple", "lookup": "ngram-simple"}
SELF_DRAFTING = "draft-mtp"  # its draft model is inside the target's file
SIZED = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")  # types with a copy length
HELP_SECONDS = 60.0
TAIL = 1 << 16  # characters at the end of an output that are searched
LONGEST_LINE = 1000  # characters; some patterns take quadratic time

OTHER_VOCABULARY = (
    r"vocabs are not compatible|is not compatible with the target model|draft model vocab (?:type )?must",
    "the draft model has another vocabulary than the target, which llama.cpp does not speculate with: "
    "choose another draft, or leave this method out",
)
NO_SPECULATION = (r"failed to initialize speculative decoding context: (.*)", "it cannot speculate: {0}")
# Log messages and their meanings; the first match is the cause of later ones.
CAUSES = (
    OTHER_VOCABULARY,
    (
        r"(?:error: invalid argument: |error: unknown argument: |unrecognized arguments: )(\S+)",
        "it does not know the flag {0}: this build is older or newer; see its --help",
    ),
    (r'error while handling argument "([^"]+)": (.*)', "it refuses the flag {0}: {1}"),
    (r"unknown model architecture: '([^']+)'", "it does not know the architecture {0}: take a newer build"),
    (r"invalid magic characters", "a model file is no GGUF file"),
    (r"failed to open GGUF file '([^']+)'", "{0} cannot be opened"),
    (
        r"failed to allocate|unable to allocate|out of memory",
        "it ran out of memory: take a smaller context, fewer slots or fewer layers on the GPU",
    ),
    (r"failed to load (?:draft )?model,? '([^']+)'", "{0} cannot be loaded"),
    NO_SPECULATION,
)


def output_of(command: Sequence[str], flag: str) -> str:
    """Return the output of a program for a flag. Raises PeerError if it fails."""
    name = shlex.join(command)
    with closing(BackgroundProgram(name, [*command, flag])) as program:
        program.run_to_end(HELP_SECONDS)
        if program.returncode != 0:
            raise PeerError(f"{name} {flag} {program.exit_description()}")
        return program.output_tail()


def spec_types(method: str) -> tuple[str, ...]:
    """Return llama.cpp's names of a method: our name, llama.cpp's, or a comma-separated list; none for
    plain."""
    names = [name.strip() for name in method.split(",")]
    return tuple(TYPES.get(name, name) for name in names if name not in ("plain", "none"))


def require_files(name: str, *paths: Path | None) -> None:
    """Raise PeerError for a missing model file."""
    for path in paths:
        if path is not None and not path.is_file():
            raise PeerError(f"{name}: there is no file {path}")


def require_types(command: Sequence[str], types: Sequence[str]) -> None:
    """Raise PeerError unless the program supports these speculation types."""
    output = output_of(command, "--help") if types else ""
    for one in types:
        if re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", output) is None:
            raise PeerError(
                f"{Path(command[-1]).name} does not draft by {one}: see --spec-type in its --help; builds "
                "before 2026 have none"
            )


def needs_draft(types: Sequence[str]) -> bool:
    return any(one.startswith("draft-") and one != SELF_DRAFTING for one in types)


def model_arguments(
    target: Path,
    draft: Path | None,
    *,
    n_ctx: int,
    threads: int,
    flash_attention: bool | None = None,
    cache_type: str = "f16",
    gpu_layers: int = 0,
) -> list[str]:
    out = ["-m", str(target), "-c", str(n_ctx), "-t", str(threads), "-tb", str(threads)]
    out += ["-ngl", str(gpu_layers), "-ctk", cache_type, "-ctv", cache_type]
    if flash_attention is not None:
        out += ["-fa", "on" if flash_attention else "off"]
    if draft is not None:
        out += ["-md", str(draft), "--spec-draft-ngl", str(gpu_layers)]
        out += ["-ctkd", cache_type, "-ctvd", cache_type]
    return [*out, "--fit", "off"]  # automatic settings would make runs incomparable


def draft_arguments(n_draft: int | None, p_min: float | None) -> list[str]:
    """Return the flags of the draft length; None leaves a setting to the program."""
    out = [] if n_draft is None else ["--spec-draft-n-max", str(n_draft), "--spec-draft-n-min", "0"]
    return out if p_min is None else [*out, "--spec-draft-p-min", f"{p_min:g}"]


def speculation_arguments(types: Sequence[str], n_draft: int | None, p_min: float | None) -> list[str]:
    """Return llama-server's speculation flags. n_draft also sets the length that SIZED types copy."""
    if not types:
        return []
    out = draft_arguments(n_draft, p_min) if any(one.startswith("draft-") for one in types) else []
    for one in types:
        if n_draft is not None and one in SIZED:
            out += [f"--spec-{one}-size-m", str(n_draft)]
    return [*out, "--spec-type", ",".join(types)]


def greedy_arguments(sampling: Sampling) -> list[str]:
    """Return the flags of greedy decoding with the penalties and biases of `sampling`."""
    flags: dict[str, Any] = {"--temp": 0.0}
    if sampling.penalised:
        flags |= {"--repeat-last-n": sampling.repeat_last_n, "--repeat-penalty": sampling.repeat_penalty}
        flags |= {"--presence-penalty": sampling.presence_penalty}
        flags |= {"--frequency-penalty": sampling.frequency_penalty}
    out = [word for name, value in flags.items() for word in (name, f"{value:g}")]
    for token, bias in sampling.logit_bias.items():
        out += ["-l", f"{token}{bias:+g}"]
    return out


def cause(log: str, causes: tuple[tuple[str, str], ...] = CAUSES) -> str:
    """Return the cause of a failure by the log; "" if unknown."""
    message = "\n".join(line[:LONGEST_LINE] for line in log[-TAIL:].splitlines())
    for pattern, meaning in causes:
        if found := re.search(pattern, message):
            return meaning.format(*map(truncated, found.groups()))
    return ""


def cause_of_no_speculation(log: str) -> str:
    """Return why a running server does not speculate; "" if it does."""
    return cause(log, (OTHER_VOCABULARY, NO_SPECULATION))


def failure(name: str, program: BackgroundProgram, description: str) -> PeerError:
    """Return the error of a program that failed: the cause by its log, or else `description`."""
    why = cause(program.output_tail())
    return PeerError(f"{name}: {why}" if why else description)
