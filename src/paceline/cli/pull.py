"""`paceline pull`: download a model, or see what a name stands for on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import options
from paceline.cli.options import argument, flag
from paceline.cli.output import print_json, print_note
from paceline.cli.references import hash_of
from paceline.speculative.printable import format_count, printable

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
    from paceline.system.identity import file_fingerprint

    reference = parse(model)
    files = _downloaded(reference, offline) if reference.kind == HUB else local_files(model, reference)
    if as_json:
        records = [
            {
                "path": str(one.path),
                "size": one.size,
                "sha256": one.sha256 or None,
                "fingerprint": file_fingerprint(one.path),
                "downloaded": one.downloaded_bytes,
                "checked": one.hash_verified,
            }
            for one in files
        ]
        print_json({"model": str(reference), "files": records})
        return 0
    for one in files:
        what, value = hash_of(one)
        for name, fact in (
            ("file", printable(str(one.path))),
            ("size", format_count(one.size)),
            (what, value),
        ):
            typer.echo(f"{name:11}  {fact}")
    return 0


def _downloaded(reference: Reference, offline: bool) -> list[LocalFile]:
    from paceline.cli.interrupts import raise_on_interrupt
    from paceline.models.stores.download import pull as download
    from paceline.models.stores.hub_api import host

    with raise_on_interrupt(), watching() as watch:
        try:
            files = download(reference, watch, offline=offline)
        except KeyboardInterrupt:
            print_note(f"interrupted; `paceline pull {reference}` goes on from there")
            raise
    new = [one for one in files if one.downloaded_bytes]
    if not new:
        print_note("it is on this machine already; its hash was not computed again")
    elif all(one.hash_verified for one in new):
        print_note(f"downloaded; the SHA-256 is as {host()} states it")
    else:
        print_note(f"downloaded; not checked against a SHA-256 of {host()}'s")
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
                    print_note(f"downloading {name}, {format_count(total)}")
            progress.update(tasks[name], completed=done)

        yield watch
