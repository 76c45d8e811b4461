"""`paceline views`: parts of a model that draft for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import options
from paceline.cli.groups import takes
from paceline.cli.help import GroupedCommand
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import OUTPUT, flag
from paceline.cli.references import file_option
from paceline.core.errors import UsageError

app = typer.Typer(rich_markup_mode=None, short_help="Find parts of a model that draft for it.")


@app.callback(invoke_without_command=True)
def _options(context: typer.Context) -> None:
    """Parts of a model that draft for it: early exits, and choices of blocks."""
    options.require_command(context)


def device_models(
    model: options.Model = None,
    threads: options.Threads = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    attention: options.Attention = "auto",
) -> dict[str, Any]:
    """What `load` takes to find and run a transformers model."""
    return {"target": model, "threads": threads, "device": device, "dtype": dtype, "attention": attention}


@app.command(cls=GroupedCommand, short_help="Find the part of a model that drafts best for it.")
@takes(device_models)
def search(
    device_models: dict[str, Any],
    blocks: Annotated[
        int,
        typer.Option("--blocks", metavar="N", help="Blocks to leave out, two a layer; 0 tries several."),
    ] = 0,
    tries: Annotated[int, typer.Option("--tries", metavar="N", help="Views that are judged, at most.")] = 60,
    items: Annotated[
        int,
        typer.Option("--items", metavar="N", help="Answers to search by, and as many to report."),
    ] = 5,
    n_predict: Annotated[int, typer.Option("-n", "--n-predict", metavar="N", help="Tokens of each.")] = 48,
    suite: Annotated[
        str, typer.Option("--suite", metavar="SUITE", help="As `paceline bench` has it.")
    ] = "real",
    as_json: Annotated[bool, flag("--json", panel=OUTPUT, help="One JSON object on stdout.")] = False,
) -> None:
    """Search for the blocks that a model's draft can do without, and keep what was found.

    The model answers prompts of a suite; views are held against the first half of its answers, and the best
    one against the other half. It is kept on disk for this model, and `-md view:` drafts with it. For
    transformers models (hf:FILE reads a GGUF file with transformers). Ctrl-C ends the search with the best
    view so far.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from paceline.cli.progress import bars
    from paceline.lab.views import Plan, searched

    if min(tries, items, n_predict) < 1:
        raise UsageError("--tries, --items and -n must be at least 1")
    plan = Plan(blocks, tries, items, n_predict, suite)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Interrupts() as interrupts, bars(*columns) as drawing:
        interrupts.hold()
        tasks = {kind: drawing.add_task(kind, total=n, start=False) for kind, n in plan.work.items()}

        def tick(kind: str) -> None:
            if interrupts.pressed:
                raise KeyboardInterrupt
            drawing.start_task(tasks[kind])
            drawing.advance(tasks[kind])

        found = searched(device_models, plan, tick)
    if as_json:
        typer.echo(json.dumps(found.as_dict()))
        return
    from paceline.report.views import write

    write(found.as_dict(), sys.stdout)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@app.command(cls=GroupedCommand, short_help="Write a part of a GGUF model to a file of its own.")
def materialise(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The GGUF file to write.", show_default=False)],
    model: Annotated[
        Path,
        typer.Option(
            "-m",
            "--model",
            metavar="FILE",
            callback=file_option,
            help="The GGUF file; names work too.",
            show_default=False,
        ),
    ],
    view: Annotated[
        str,
        typer.Option("--view", metavar="VIEW", help="exit=N or skip=N: whole layers.", show_default=False),
    ],
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write a GGUF file with some layers of a model, which llama.cpp loads as a draft model (-md).

    Unlike a view it has a cache and a copy of the weights of its own. The file's path goes to stdout when it
    is complete; before that there is no file.
    """
    from paceline.cli.progress import UNKNOWN, progress
    from paceline.engines.views import PREFIX, parse
    from paceline.machine.models.header import read_parts
    from paceline.zoo.shorten import layers_of, shorten

    read_parts(model, tokens=True)  # gguf's own reader believes what a header claims
    n = layers_of(model)
    chosen = parse(f"{PREFIX}{view.removeprefix(PREFIX)}", n)
    if chosen is None:
        raise UsageError("--view: write exit=N or skip=N")
    attention, feed_forward = chosen.kept(n)
    if attention != feed_forward:
        raise UsageError(
            f"--view {view}: leaves out a half of a layer, and llama.cpp runs whole layers: an even number "
            "of blocks, or the same layers for attention and feed_forward"
        )
    with Interrupts() as interrupts, progress({"tensors": UNKNOWN}, interrupts) as tick:
        size = shorten(model, out, attention, force=force, tick=lambda: tick("tensors"))
    say(f"{len(attention)} of {n} layers, {size / 1e6:,.1f} MB")
    typer.echo(str(out))
