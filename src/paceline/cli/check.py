"""`paceline check`: whether one model can draft for another, before anything is loaded."""

from __future__ import annotations

import sys
from typing import Annotated

from paceline.cli import options
from paceline.cli.options import argument
from paceline.cli.output import print_json
from paceline.cli.references import resolved

UNFIT = 3


def check(
    target: Annotated[str, argument("TARGET", "The model to make faster.")],
    draft: Annotated[str, argument("DRAFT", "The smaller one that would draft.")],
    as_json: options.AsJson = False,
) -> int:
    """Tell whether a draft model fits a target, why, and what to do if not.

    Reads the headers of GGUF files, or config.json and tokenizer.json of a folder; never the weights. Exit
    code 3 where it does not fit.
    """
    from paceline.models.compatibility.check import compare
    from paceline.models.headers.header import read
    from paceline.models.names import place_of

    found = compare(read(place_of(resolved(target))), read(place_of(resolved(draft))))
    if as_json:
        print_json(found.as_dict())
    else:
        from paceline.report.compatibility import write

        write(found.as_dict(), sys.stdout)
    return 0 if found.usable else UNFIT
