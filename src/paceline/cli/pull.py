"""`paceline pull`: download a model, or see what a name stands for on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli.options import OUTPUT, flag
from paceline.cli.references import hash_of
from paceline.core.errors import UsageError
from paceline.core.printable import amount, printable

if TYPE_CHECKING:
    from paceline.machine.stores.reference import Held, Reference


def pull(
    *,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="hf.co/USER/REPO[:QUANT] or USER/REPO[:QUANT].",
            show_default=False,
        ),
    ],
    offline: Annotated[
        bool, flag("--offline", panel="Downloading", help="Only look at what is on this machine.")
    ] = False,
    as_json: Annotated[bool, flag("--json", panel=OUTPUT, help="One JSON object on stdout.")] = False,
) -> int:
    """Download a model from the Hugging Face hub into its cache, where other programs find it too.

    Of several quantisations Q4_K_M is taken, or Q8_0; others are named after a colon, and so may be a file.
    Whatever ends a download, the same command goes on from there.
    The HF_ variables are obeyed.

    Prints the files, their sizes and hashes. Whatever -m takes can be given: what ollama:NAME, zoo:target or
    a path stands for is printed, too.
    """
    from paceline.machine.stores.reference import HUB, OLLAMA, parse
    from paceline.naming import held

    reference = parse(model)
    if reference.kind == HUB:
        files = _downloaded(reference, offline)
    else:
        try:
            files = held(model, reference)
        except UsageError as error:
            ollama = reference.kind == OLLAMA and "ollama pull" in str(error)
            raise UsageError(f"{error} (Ollama keeps its own store)" if ollama else str(error)) from error
    _print(reference, files, as_json)
    return 0


def _downloaded(reference: Reference, offline: bool) -> list[Held]:
    from paceline.cli.interrupts import raised
    from paceline.machine.stores.download import pull as download
    from paceline.machine.stores.hub_api import host

    with raised(), watching() as watch:
        try:
            files = download(reference, watch, offline=offline)
        except KeyboardInterrupt:
            print(f"interrupted; `paceline pull {reference}` goes on from there", file=sys.stderr)
            raise
    new = [one for one in files if one.got]
    if not new:
        said = "it is on this machine already; its hash was not computed again"
    elif not all(one.checked for one in new):
        said = f"downloaded; not checked against a SHA-256 of {host()}'s"
    else:
        said = f"downloaded; the SHA-256{'' if new == files else ' of what came'} is as {host()} states it"
    print(said, file=sys.stderr)
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
    from paceline.machine.stores.hub_layout import is_set

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    tasks = {}
    with bars(*columns, drawn=not is_set("HF_HUB_DISABLE_PROGRESS_BARS")) as progress:

        def watch(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(printable(name), total=total)
                if progress.disable:
                    print(f"downloading {printable(name)}, {amount(total)}", file=sys.stderr)
            progress.update(tasks[name], completed=done)

        yield watch


def _print(reference: Reference, files: list[Held], as_json: bool) -> None:
    if as_json:
        from paceline.machine.identity import fingerprint

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
        typer.echo(json.dumps({"model": str(reference), "files": records}))
        return

    for one in files:
        what, value = hash_of(one)
        facts = {"file": printable(str(one.path)), "size": amount(one.size), what: value}
        for name, fact in facts.items():
            typer.echo(f"{name:11}  {fact}")
