"""`paceline zoo`: the models that come with packages."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from paceline.cli import options
from paceline.cli.help import GroupedCommand
from paceline.cli.options import argument
from paceline.cli.output import print_json

app = options.command_group("List and find models that come with packages.")


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
