"""--record: what was asked and answered, kept as traces for `paceline replay`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from paceline.cli.options import OUTPUT, option
from paceline.core.errors import UsageError

if TYPE_CHECKING:
    from paceline.lab.replay.recording import Recorder

Record = Annotated[
    Path | None,
    option(
        "--record",
        panel=OUTPUT,
        metavar="FILE",
        help="Append requests and answers to FILE, for `paceline replay`.",
    ),
]
RecordTopK = Annotated[
    int,
    option(
        "--record-top-k",
        panel=OUTPUT,
        metavar="K",
        help="With --record: the target's K likeliest tokens at each place too.",
    ),
]


def recorder(file: Path | None, top_k: int) -> Recorder | None:
    """Raises UsageError for a file that cannot be recorded to, before a model is loaded."""
    if file is None:
        if top_k:
            raise UsageError(f"--record-top-k {top_k}: is recorded in a file only; name it with --record")
        return None
    from paceline.lab.replay.recording import Recorder

    return Recorder(file, _warn, top_k=top_k)


def _warn(said: str) -> None:
    from paceline.core.printable import printable

    print(f"paceline: {printable(said)}", file=sys.stderr)
