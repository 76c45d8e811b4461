"""Command lines of llama.cpp's programs, for builds since 2026."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.speculative.errors import PeerError
from paceline.speculative.sampling import Sampling

# Our drafters -> llama.cpp's speculation types.
TYPES = {"model": "draft-simple", "lookup": "ngram-simple"}
SELF_DRAFTING = "draft-mtp"  # its draft model is inside the target's file
SIZED = ("ngram-simple", "ngram-map-k", "ngram-map-k4v")  # types with a copy length


def spec_types(method: str) -> tuple[str, ...]:
    """Return llama.cpp's names of a method: our name, llama.cpp's, or a comma-separated list; none for
    plain."""
    names = [name.strip() for name in method.split(",")]
    return tuple(TYPES.get(name, name) for name in names if name not in ("plain", "none"))


def find_program(path: str, advice: str = "") -> str:
    """Return the absolute path of a program of llama.cpp. advice: for one that is missing. Raises
    PeerError."""
    if (program := shutil.which(path)) is None:
        ways = ", ".join(filter(None, [f"as in --peer {Path(path).name}=PATH", "put it on PATH", advice]))
        raise PeerError(
            f"there is no program {path}: build llama.cpp's (python benchmarks/native_llama.py) and give the "
            f"path of this one, {ways}"
        )
    return str(Path(program).resolve())


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
