"""`paceline views`: find parts of a model that draft for it, or write them to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import options
from paceline.cli.groups import DEVICE_OPTIONS, OptionGroup, option_table, with_option_groups
from paceline.cli.help import GroupedCommand
from paceline.cli.interrupts import Interrupts
from paceline.cli.lossy import run
from paceline.cli.options import OUTPUT, argument, model_file, option
from paceline.cli.output import print_note
from paceline.speculative.errors import UsageError

SEARCH = "Search"
app = options.command_group(
    "Parts of a model that draft for it: early exits, and selections of blocks.",
    short_help="Find parts of a model that draft for it.",
)
PLAN_OPTIONS = OptionGroup(option_table(
    SEARCH,
    ("blocks", int, 0, "--blocks", "N", "Blocks to leave out, two a layer; 0 tries several."),
    ("tries", int, 60, "--tries", "N", "Most views to judge.", 1),
    ("items", int, 5, "--items", "N", "Answers to search by, and as many to report.", 1),
    ("n", int, 48, "-n --n-predict", "N", "Tokens of each.", 1),
    ("suite", str, "real", "--suite", "SUITE", "A suite, as for `paceline bench`."),
    env=False,
))  # fmt: skip


@app.command(cls=GroupedCommand, short_help="Find the part of a model that drafts best for it.")
@with_option_groups(models=DEVICE_OPTIONS, search_plan=PLAN_OPTIONS)
def search(*, models: Any, search_plan: Any, as_json: options.AsJson = False) -> None:
    """Search for the blocks that a draft can leave out, and store the best view for `-md view:`.

    The model answers prompts of a suite. The first half of the answers judges views, the second half reports
    the best view. For transformers models (hf:FILE reads a GGUF file with transformers). Ctrl-C ends the
    search with the best view so far."""
    from paceline.prepare.views import search_views
    from paceline.report.variants import write_view

    run(search_views, models, search_plan, write_view, as_json, at_end=False)


@app.command(cls=GroupedCommand, short_help="Write a part of a GGUF model to a file.")
def materialise(
    out: Annotated[Path, argument("OUT", "The GGUF file to write.")],
    model: Annotated[Path, model_file("-m --model", "The GGUF file.")],
    view: Annotated[str, option(OUTPUT, "--view", "VIEW", "exit=N or skip=N: whole layers.", env=False)],
    force: options.Force = False,
) -> None:
    """Write a GGUF file with some layers of a model, for llama.cpp to load as a draft model (-md).

    Unlike a view it has a separate cache and a copy of the weights. The path of the complete file goes to
    stdout."""
    from paceline.backends.views import parse_view
    from paceline.cli.progress import UNKNOWN, progress
    from paceline.models.headers.gguf_file import GGUFFile
    from paceline.models.headers.gguf_writer import layer_count, shorten
    from paceline.models.names import VIEW_PREFIX

    n = layer_count(GGUFFile(model))
    chosen = parse_view(f"{VIEW_PREFIX}{view.removeprefix(VIEW_PREFIX)}", n)
    blocks = None if chosen is None else chosen.active_blocks(n)
    if blocks is None or blocks[0] != blocks[1]:
        whole = "an even number of blocks, or the same layers for attention and feed_forward"
        raise UsageError(f"--view {view}: write exit=N or skip=N; llama.cpp runs whole layers: {whole}")
    with Interrupts() as interrupts, progress({"tensors": UNKNOWN}, interrupts) as tick:
        size = shorten(model, out, blocks[0], force=force, tick=lambda: tick("tensors"))
    print_note(f"{len(blocks[0])} of {n} layers, {size / 1e6:,.1f} MB")
    typer.echo(str(out))
