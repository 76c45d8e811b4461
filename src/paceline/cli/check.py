"""`paceline check`: whether one model can draft for another, before anything is loaded."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from paceline.cli.options import OUTPUT, flag
from paceline.cli.references import resolved

UNFIT = 3


def check(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="The model to make faster.", show_default=False)
    ],
    draft: Annotated[
        str, typer.Argument(metavar="DRAFT", help="The smaller one that would draft.", show_default=False)
    ],
    as_json: Annotated[bool, flag("--json", panel=OUTPUT, help="One JSON object on stdout.")] = False,
) -> int:
    """Tell whether a draft model fits a target, why, and what to do if not.

    Reads the headers of GGUF files, or config.json and tokenizer.json of a folder; never the weights. Exit
    code 3 where it does not fit.
    """
    from paceline.engines.openers import place_of
    from paceline.machine.fit.compatibility import compare
    from paceline.machine.models.header import read

    found = compare(read(place_of(resolved(target))), read(place_of(resolved(draft))))
    if as_json:
        print(json.dumps(found.as_dict()))
    else:
        from paceline.report.compatibility import write

        write(found.as_dict(), sys.stdout)
    return 0 if found.usable else UNFIT
