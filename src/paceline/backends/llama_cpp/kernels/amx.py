"""A comparison with ggml's AMX kernels, measured once: some weight types are faster with these."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from paceline.system.atomic import atomic_write
from paceline.system.home import cpu_name, to_stderr

# Seconds of a product, by a type's number, rows of activations and a buffer's name.
Seconds = Callable[[int, int, str], float]

AMX = "AMX"  # ggml's name for the type of buffer
OWN_KERNELS = ""
# ggml's numbers of the types that it has AMX kernels for.
TYPES = {"F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "IQ4_XS": 23}
# The workload: a prompt of so many tokens, and an answer in so many passes of so many rows.
PROMPT, PASSES, ROWS = 512, 128, 4
# AMX has to be faster by this factor, since rows are not equal with it.
MIN_ADVANTAGE = 1.1


def types_faster_with_amx(seconds: Seconds, library: Path) -> tuple[str, ...]:
    """Return the names of types that AMX computes faster. The result is cached next to `library`."""
    file = library.with_suffix(".amx.json")
    with suppress(OSError, ValueError, KeyError, TypeError):
        cached = json.loads(file.read_bytes())
        if cached["processor"] == cpu_name():
            return tuple(name for name in TYPES if name in cached["left"])
    if seconds(TYPES["Q8_0"], 1, AMX) < 0:
        return ()
    to_stderr("comparing kernels with AMX, this once")

    def cost(number: int, buffer: str) -> float:
        """Return the workload's seconds; negative if the buffer takes no such weights."""
        return seconds(number, PROMPT, buffer) + PASSES * seconds(number, ROWS, buffer)

    left = tuple(name for name, n in TYPES.items() if 0 < MIN_ADVANTAGE * cost(n, AMX) < cost(n, OWN_KERNELS))
    with suppress(OSError), atomic_write(file) as part:
        part.write_text(json.dumps({"processor": cpu_name(), "left": left}), "utf-8")
    return left
