"""`paceline transplant`: a draft model with another model's vocabulary."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli.references import file_option


def transplant(
    draft: Annotated[
        Path,
        typer.Argument(metavar="DRAFT", help="The draft model.", show_default=False, callback=file_option),
    ],
    vocab_of: Annotated[
        Path,
        typer.Option(
            "--vocab-of",
            metavar="TARGET",
            help="The model it is to draft for.",
            show_default=False,
            callback=file_option,
        ),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FILE", help="The GGUF file to write.", show_default=False)
    ],
    ftype: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Of the new rows: F32, F16, BF16, Q8_0 or Q4_0. Default: the draft's, K-quants become Q8_0.",
        ),
    ] = None,
    tied: Annotated[
        bool | None,
        typer.Option(
            "--tied/--untied",
            help="One matrix to read and write with (--untied: two). Default: two, where llama.cpp can.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object on stdout.")] = False,
) -> None:
    """Give a draft model another model's vocabulary, so that it can draft for it without --cross-vocab.

    Each of the target's tokens is put together from the rows of the pieces that spell it in the draft's
    vocabulary; tokens that both have keep theirs. Nothing else of the draft changes. Of the target only the
    vocabulary is read. The file's path goes to stdout when it is complete; before that there is no file.
    Trained on for a little while it drafts better (docs/transplant.md).
    """
    from paceline.cli.interrupts import Interrupts
    from paceline.cli.progress import progress
    from paceline.lab.transplant import Rules, Transplant
    from paceline.system.whole import check_output

    kind = ftype.upper() if ftype else None
    rules = Rules(kind, tied)
    check_output(out, draft, vocab_of, force=force)  # before anything large is read
    with (
        Interrupts() as interrupts,
        Transplant(draft, vocab_of, rules) as made,
        progress(made.steps, interrupts) as tick,
    ):
        report = made.write(out, force=force, tick=tick)
    if as_json:
        typer.echo(json.dumps(asdict(report) | {"out": str(report.out)}))
        return
    print(
        f"{report.vocab:,} tokens: {report.same:,} of the draft's own, {report.spelled:,} made of "
        f"{report.pieces:.1f} pieces, {report.special:,} control tokens it knows, {report.silent:,} it "
        "does not; "
        f"{report.type}, {'one matrix' if report.tied else 'two matrices'}, {report.size / 1e6:,.1f} MB",
        file=sys.stderr,
    )
    typer.echo(str(report.out))
