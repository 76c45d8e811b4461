"""`paceline pull` and `paceline zoo`: models from the Hugging Face hub, and those that come with packages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import options
from paceline.cli.help import GroupedCommand
from paceline.cli.options import argument, flag
from paceline.cli.output import print_json, print_note
from paceline.cli.references import hash_of
from paceline.speculative.printable import format_bytes, printable

if TYPE_CHECKING:
    from paceline.models.stores.reference import LocalFile, Reference

app = options.command_group("List and find models that come with packages.")


def pull(
    *,
    model: Annotated[str, argument("MODEL", "hf.co/USER/REPO[:QUANT] or USER/REPO[:QUANT].")],
    offline: Annotated[bool, flag("Downloading", "--offline", "Use only files on this machine.")] = False,
    as_json: options.AsJson = False,
) -> int:
    """Download a model or a draft head from the Hugging Face hub into its cache, which other programs share.

    The default quantisation is Q4_K_M, or Q8_0; a colon and a name choose another one, or a file. The same
    command resumes an interrupted download. The HF_ variables are obeyed.

    The files, their sizes and hashes are printed, also for any other name that -m takes."""
    from paceline.models.resolve import local_files
    from paceline.models.stores.reference import HUB, parse
    from paceline.system.home import file_fingerprint

    reference = parse(model)
    files = downloaded(reference, offline) if reference.kind == HUB else local_files(model, reference)
    if as_json:
        records = [
            {
                "path": str(file.path),
                "size": file.size,
                "sha256": file.sha256 or None,
                "fingerprint": file_fingerprint(file.path),
                "downloaded": file.downloaded_bytes,
                "checked": file.hash_verified,
            }
            for file in files
        ]
        print_json({"model": str(reference), "files": records})
        return 0
    for file in files:
        facts = [("file", printable(str(file.path))), ("size", format_bytes(file.size)), hash_of(file)]
        for name, fact in facts:
            typer.echo(f"{name:11}  {fact}")
    return 0


def downloaded(reference: Reference, offline: bool) -> list[LocalFile]:
    from paceline.cli.interrupts import on_interrupt
    from paceline.models.stores.download import host
    from paceline.models.stores.download import pull as download

    with on_interrupt(), download_bars() as watch:
        try:
            files = download(reference, watch, offline=offline)
        except KeyboardInterrupt:
            print_note(f"interrupted; `paceline pull {reference}` goes on from there")
            raise
    if any(file.downloaded_bytes for file in files):
        print_note(f"downloaded; the SHA-256 is as {host()} states it")
    else:
        print_note("it is on this machine already; its hash was not computed again")
    return files


@contextmanager
def download_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Draw a bar for each file on stderr; without a terminal, print a line as it begins."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from paceline.cli.progress import bars

    name_column = TextColumn("{task.description}", markup=False)
    columns = (name_column, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    tasks = {}
    with bars(*columns) as progress:

        def watch(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(printable(name), total=total)
                if progress.disable:
                    print_note(f"downloading {name}, {format_bytes(total)}")
            progress.update(tasks[name], completed=done)

        yield watch


@app.command("list", cls=GroupedCommand)
def list_models(as_json: options.AsJson = False) -> None:
    """List the models that come with Paceline and with packages; -m takes zoo:NAME."""
    from paceline.models import zoo

    records = zoo.records()
    if as_json:
        print_json(records)
        return
    from paceline.report.pairs import parameters
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
