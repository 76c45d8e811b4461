"""`paceline zoo`: the models that come with packages, and larger models made from them."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options
from paceline.cli.help import GroupedCommand
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import OUTPUT, argument, model_file, option
from paceline.cli.output import print_json, print_note
from paceline.speculative.errors import UsageError
from paceline.speculative.validation import read_number

app = options.command_group("List, find and inflate models that come with packages.")
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


@app.command("list", cls=GroupedCommand)
def list_models(as_json: options.AsJson = False) -> None:
    """List the models that come with Paceline and with packages; -m takes zoo:NAME."""
    from paceline.models import zoo

    records = zoo.records()
    if as_json:
        print_json(records)
        return
    from paceline.report.models import parameters
    from paceline.report.table import size, write_table

    rows = []
    for it in records:
        about = f"not here: {it['missing']}" if it["missing"] else it["description"]
        file_size = size(it["size"]) if it["path"] else "-"
        rows.append((f"zoo:{it['name']}", parameters(it["parameters"]), file_size, about))
    write_table(("name", "parameters", "size", "description"), rows, sys.stdout)


@app.command(cls=GroupedCommand)
def path(name: Annotated[str, argument("NAME", "As `paceline zoo list` has it.")]) -> None:
    """Print the path of a model, for other programs."""
    from paceline.models.resolve import local_files
    from paceline.models.stores.reference import ZOO, Reference

    for file in local_files(name, Reference(ZOO, name.removeprefix("zoo:"))):
        typer.echo(str(file.path))


@app.command(cls=GroupedCommand, short_help="Make a larger model with the same output.")
def inflate(
    out: Annotated[Path, argument("OUT", "The GGUF file to write.")],
    params: Annotated[str, option(OUTPUT, "--params", "N", "Parameters, e.g. 200M.", env=False)] = "1B",
    ftype: Annotated[str, option(OUTPUT, "--type", "TYPE", "F32, F16, BF16, Q8_0, Q4_0", env=False)] = "Q8_0",
    source: Annotated[Path | None, model_file("--from -m --model", "The model to inflate.")] = None,
    force: options.Force = False,
) -> None:
    """Write a larger model with the output of a small model, to measure speed at realistic cost.

    The additional weights do not change the output. Tokenizer and chat template are copied. The source may be
    of any type, without biases and experts. The path of the complete file goes to stdout."""
    from paceline.cli.progress import STEPS, by_share, progress
    from paceline.models import zoo
    from paceline.models.zoo.inflate import inflate as write

    count = parse_count(params)
    # Ctrl-C stops between steps, so that the partial file is removed.
    with Interrupts() as interrupts, progress({"write": STEPS}, interrupts, at_end=False) as tick:
        share = partial(by_share(tick), "write")
        layout, size = write(source or zoo.target_path(), out, count, ftype, force=force, progress=share)
    print_note(f"{layout.parameters / 1e6:,.0f}M parameters, {size / 1e6:,.0f} MB")
    typer.echo(str(out))


def parse_count(text: str) -> int:
    """Return the number of a text such as 200M or 1.1B. Raises UsageError."""
    written = text.strip().upper()
    unit = written[-1:] if written[-1:] in UNITS else ""
    with suppress(ValueError):
        if (count := int(read_number(float, written.removesuffix(unit)) * UNITS[unit])) >= 1:
            return count
    raise UsageError(f"--params {text}: write a number of parameters such as 200M or 1.1B")
