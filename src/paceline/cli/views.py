"""`paceline views`: parts of a model that draft for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import options
from paceline.cli.groups import DEVICE_OPTIONS, with_option_groups
from paceline.cli.help import GroupedCommand
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import OUTPUT, argument, option
from paceline.cli.output import print_json, print_note
from paceline.cli.references import file_option, resolve_models
from paceline.speculative.errors import UsageError

SEARCH = "Search"
app = typer.Typer(rich_markup_mode=None, short_help="Find parts of a model that draft for it.")


@app.callback(invoke_without_command=True)
def _options(context: typer.Context) -> None:
    """Parts of a model that draft for it: early exits, and choices of blocks."""
    options.require_command(context)


@app.command(cls=GroupedCommand, short_help="Find the part of a model that drafts best for it.")
@with_option_groups(models=DEVICE_OPTIONS)
def search(
    models: Any,
    blocks: Annotated[
        int, option(SEARCH, "--blocks", "N", "Blocks to leave out, two a layer; 0 tries several.", env=False)
    ] = 0,
    tries: Annotated[
        int, option(SEARCH, "--tries", "N", "Views that are judged, at most.", env=False, minimum=1)
    ] = 60,
    items: Annotated[
        int,
        option(SEARCH, "--items", "N", "Answers to search by, and as many to report.", env=False, minimum=1),
    ] = 5,
    n_predict: Annotated[
        int, option(SEARCH, "-n --n-predict", "N", "Tokens of each.", env=False, minimum=1)
    ] = 48,
    suite: Annotated[
        str, option(SEARCH, "--suite", "SUITE", "As `paceline bench` has it.", env=False)
    ] = "real",
    as_json: options.AsJson = False,
) -> None:
    """Search for the blocks that a model's draft can do without, and keep what was found.

    The model answers prompts of a suite; views are held against the first half of its answers, and the best
    one against the other half. It is kept on disk for this model, and `-md view:` drafts with it. For
    transformers models (hf:FILE reads a GGUF file with transformers). Ctrl-C ends the search with the best
    view so far.
    """
    from paceline.cli.progress import progress
    from paceline.prepare.views import ViewSearchPlan, search_views

    plan = ViewSearchPlan(blocks, tries, items, n_predict, suite)
    with Interrupts() as interrupts, progress(plan.work, interrupts, at_end=False) as tick:
        found = search_views(resolve_models(models), plan, tick)
    if as_json:
        print_json(found)
        return
    from paceline.report.views import write

    write(found, sys.stdout)


@app.command(cls=GroupedCommand, short_help="Write a part of a GGUF model to a file of its own.")
def materialise(
    out: Annotated[Path, argument("OUT", "The GGUF file to write.")],
    model: Annotated[
        Path,
        option(
            OUTPUT, "-m --model", "FILE", "The GGUF file; names work too.", env=False, callback=file_option
        ),
    ],
    view: Annotated[str, option(OUTPUT, "--view", "VIEW", "exit=N or skip=N: whole layers.", env=False)],
    force: options.Force = False,
) -> None:
    """Write a GGUF file with some layers of a model, which llama.cpp loads as a draft model (-md).

    Unlike a view it has a cache and a copy of the weights of its own. The file's path goes to stdout when it
    is complete; before that there is no file.
    """
    from paceline.backends.views import parse_view
    from paceline.cli.progress import UNKNOWN, progress
    from paceline.models.names import VIEW_PREFIX
    from paceline.models.zoo.shorten import layers_of, shorten

    n = layers_of(model)
    chosen = parse_view(f"{VIEW_PREFIX}{view.removeprefix(VIEW_PREFIX)}", n)
    if chosen is None:
        raise UsageError("--view: write exit=N or skip=N")
    attention, feed_forward = chosen.active_blocks(n)
    if attention != feed_forward:
        raise UsageError(
            f"--view {view}: leaves out a half of a layer, and llama.cpp runs whole layers: an even number "
            "of blocks, or the same layers for attention and feed_forward"
        )
    with Interrupts() as interrupts, progress({"tensors": UNKNOWN}, interrupts) as tick:
        size = shorten(model, out, attention, force=force, tick=lambda: tick("tensors"))
    print_note(f"{len(attention)} of {n} layers, {size / 1e6:,.1f} MB")
    typer.echo(str(out))
