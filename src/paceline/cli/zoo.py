"""`paceline zoo`: models that need no download of their own, and files of any size made from them."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options
from paceline.cli.help import GroupedCommand
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import OUTPUT, argument, option
from paceline.cli.output import print_json, print_note
from paceline.cli.references import file_option
from paceline.speculative.errors import UsageError

app = typer.Typer(rich_markup_mode=None, short_help="List, find and inflate models that come with packages.")
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


@app.callback(invoke_without_command=True)
def _options(context: typer.Context) -> None:
    """Models that come with packages: list them, find their files, make files of any size from them."""
    options.require_command(context)


@app.command("list", cls=GroupedCommand)
def list_models(as_json: options.AsJson = False) -> None:
    """List the models that come with Paceline, and with packages; each can be named as zoo:NAME."""
    from paceline.models import zoo

    models = zoo.models()
    if as_json:
        print_json(
            [
                vars(m)
                | {
                    "path": None if m.path is None else str(m.path),
                    "parameters": m.parameters or None,
                    "missing": m.missing or None,
                }
                for m in models
            ]
        )
        return
    from paceline.report.models import parameters
    from paceline.report.table import size, write_table

    rows = [
        (
            m.name,
            parameters(m.parameters),
            size(m.size) if m.path is not None else "-",
            f"not here: {m.missing}" if m.missing else m.description,
        )
        for m in models
    ]
    write_table(("name", "parameters", "size", "description"), rows, sys.stdout)


@app.command(cls=GroupedCommand)
def path(name: Annotated[str, argument("NAME", "As `paceline zoo list` has it.")]) -> None:
    """Print where a model of the zoo is, for use with other programs."""
    from paceline.models.resolve import local_files
    from paceline.models.stores.reference import ZOO, Reference

    for one in local_files(name, Reference(ZOO, name.removeprefix("zoo:"))):
        typer.echo(str(one.path))


@app.command(cls=GroupedCommand, short_help="Make a larger model that says the same.")
def inflate(
    out: Annotated[Path, argument("OUT", "The GGUF file to write.")],
    params: Annotated[
        str, option(OUTPUT, "--params", "N", "Parameters to reach, e.g. 200M or 1.1B.", env=False)
    ] = "1B",
    ftype: Annotated[
        str, option(OUTPUT, "--type", "TYPE", "F32, F16, BF16, Q8_0, Q4_0, Q4_K_M, ...", env=False)
    ] = "Q8_0",
    source: Annotated[
        Path | None,
        option(
            OUTPUT,
            "--from -m --model",
            "FILE",
            "The Llama GGUF to inflate; names work too (zoo:smollm2). Default: the embedded target.",
            env=False,
            callback=file_option,
        ),
    ] = None,
    force: options.Force = False,
) -> None:
    """Write a model of any size that says what a small one says, to measure speed at realistic cost.

    Its weights are those of the small one, between others that change nothing. Tokenizer and chat template
    are carried along. The source may be of any type; biases and experts are refused.

    The file's path goes to stdout when it is complete; before that there is no file.
    """
    from paceline.cli.progress import STEPS, by_share, progress
    from paceline.models import zoo
    from paceline.models.zoo.inflate import inflate as write

    count, work = parse_count(params), {"write": STEPS, "quantize": STEPS}
    # What is half written must be removed, so the writing stops between steps.
    with Interrupts() as interrupts, progress(work, interrupts, at_end=False) as tick:
        tell = by_share(tick)
        layout, size = write(source or zoo.target_path(), out, count, ftype, force=force, progress=tell)
    print_note(f"{layout.parameters / 1e6:,.0f}M parameters, {size / 1e6:,.0f} MB")
    typer.echo(str(out))


def parse_count(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMB]?)", text.strip().upper(), re.ASCII)
    if match is None:
        raise UsageError(f"--params {text}: write a number of parameters such as 200M or 1.1B")
    return int(float(match[1]) * UNITS[match[2]])
