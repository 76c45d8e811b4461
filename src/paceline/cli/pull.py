"""`paceline pull`: download a model, or see what a name stands for on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import options
from paceline.cli.options import argument, flag
from paceline.cli.output import note, print_json
from paceline.cli.references import hash_of
from paceline.speculative.printable import amount, printable

if TYPE_CHECKING:
    from paceline.models.stores.reference import LocalFile, Reference


def pull(
    *,
    model: Annotated[str, argument("MODEL", "hf.co/USER/REPO[:QUANT] or USER/REPO[:QUANT].")],
    offline: Annotated[
        bool, flag("Downloading", "--offline", "Only look at what is on this machine.")
    ] = False,
    as_json: options.AsJson = False,
) -> int:
    """Download a model from the Hugging Face hub into its cache, where other programs find it too.

    Of several quantisations Q4_K_M is taken, or Q8_0; others are named after a colon, and so may be a file.
    Whatever ends a download, the same command goes on from there.
    The HF_ variables are obeyed.

    Prints the files, their sizes and hashes. Whatever -m takes can be given: what ollama:NAME, zoo:target or
    a path stands for is printed, too.
    """
    from paceline.models.resolve import local_files
    from paceline.models.stores.reference import HUB, parse
    from paceline.system.identity import fingerprint

    reference = parse(model)
    files = _downloaded(reference, offline) if reference.kind == HUB else local_files(model, reference)
    if as_json:
        records = [
            {
                "path": str(one.path),
                "size": one.size,
                "sha256": one.sha256 or None,
                "fingerprint": fingerprint(one.path),
                "downloaded": one.got,
                "checked": one.checked,
            }
            for one in files
        ]
        print_json({"model": str(reference), "files": records})
        return 0
    for one in files:
        what, value = hash_of(one)
        for name, fact in (("file", printable(str(one.path))), ("size", amount(one.size)), (what, value)):
            typer.echo(f"{name:11}  {fact}")
    return 0


def _downloaded(reference: Reference, offline: bool) -> list[LocalFile]:
    from paceline.cli.interrupts import raised
    from paceline.models.stores.download import pull as download
    from paceline.models.stores.hub_api import host

    with raised(), watching() as watch:
        try:
            files = download(reference, watch, offline=offline)
        except KeyboardInterrupt:
            note(f"interrupted; `paceline pull {reference}` goes on from there")
            raise
    new = [one for one in files if one.got]
    if not new:
        note("it is on this machine already; its hash was not computed again")
    elif all(one.checked for one in new):
        note(f"downloaded; the SHA-256 is as {host()} states it")
    else:
        note(f"downloaded; not checked against a SHA-256 of {host()}'s")
    return files


@contextmanager
def watching() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each file, on stderr; where there is no terminal to draw it a line when it begins."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from paceline.cli.progress import bars

    name_column = TextColumn("{task.description}", markup=False)
    columns = (name_column, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    tasks = {}
    with bars(*columns) as progress:

        def watch(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(printable(name), total=total)
                if progress.disable:
                    note(f"downloading {name}, {amount(total)}")
            progress.update(tasks[name], completed=done)

        yield watch
