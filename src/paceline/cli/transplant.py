"""`paceline transplant`: give a draft model another model's vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options
from paceline.cli.options import OUTPUT, argument, flag, model_file, option
from paceline.cli.output import print_json, print_note
from paceline.cli.references import file_option

TYPES = "Type of the new rows: F32, F16, BF16, Q8_0 or Q4_0. Default: the draft's; K-quants become Q8_0."
TIED = "One matrix for embeddings and output (--no-tied: two). Default: two, where llama.cpp can."


def transplant(
    draft: Annotated[Path, argument("DRAFT", "The draft model.", callback=file_option)],
    vocab_of: Annotated[Path, model_file("--vocab-of", "The model it is to draft for.")],
    out: Annotated[Path, option(OUTPUT, "-o --out", "FILE", "The GGUF file to write.", env=False)],
    ftype: Annotated[str | None, option(OUTPUT, "--type", "TYPE", TYPES, env=False)] = None,
    tied: Annotated[bool | None, flag(OUTPUT, "--tied", TIED)] = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Give a draft model another model's vocabulary, so that it can draft for it without --cross-vocab.

    The row of each token combines the rows of the draft's tokens that spell it; a shared token keeps its row.
    All other weights stay. Only the target's vocabulary is read. The path of the complete file goes to
    stdout. A little training improves the draft (docs/transplant.md).
    """
    from paceline.cli.interrupts import Interrupts
    from paceline.cli.progress import progress
    from paceline.prepare.transplant import Transplant
    from paceline.system.whole import check_output

    check_output(out, draft, vocab_of, force=force)  # before anything large is read
    with (
        Interrupts() as interrupts,
        Transplant(draft, vocab_of, new_type=ftype, tied=tied) as made,
        progress(made.steps, interrupts) as tick,
    ):
        report = made.write(out, force=force, tick=tick)
    if as_json:
        print_json(report)
        return
    matrices = "one matrix" if report["tied"] else "two matrices"
    print_note(
        "{vocab:,} tokens: {same:,} of the draft's own, {spelled:,} made of {pieces:.1f} pieces, {special:,} "
        "control tokens it knows, {silent:,} it does not; {type}, ".format(**report)
        + f"{matrices}, {report['size'] / 1e6:,.1f} MB"
    )
    typer.echo(report["out"])
