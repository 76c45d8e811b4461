"""`paceline zoo`: the models that come with the package, and files of any size made from them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from paceline.core.errors import UsageError

app = typer.Typer(
    help="The embedded models: list them, find their files, inflate them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


@app.command("list")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON array on stdout.")] = False,
) -> None:
    """The embedded models."""
    from paceline import zoo

    models = zoo.models()
    if as_json:
        records = [
            {
                "name": m.name,
                "path": str(m.path),
                "size": m.size,
                "parameters": m.parameters,
                "description": m.description,
            }
            for m in models
        ]
        json.dump(records, sys.stdout)
        sys.stdout.write("\n")
        return
    from paceline.report.table import listing

    rows = [
        (m.name, f"{m.parameters / 1e6:.1f}M", f"{m.size / 1e6:.1f} MB", m.description, str(m.path))
        for m in models
    ]
    listing(("name", "parameters", "size", "description", "path"), rows, sys.stdout)


@app.command()
def path(name: Annotated[str, typer.Argument(help="target or draft")]) -> None:
    """The file of an embedded model, for use with other programs."""
    from paceline import zoo

    paths = {"target": zoo.target_path, "draft": zoo.draft_path}
    if name not in paths:
        raise UsageError(f"no embedded model {name!r}: choose from {', '.join(paths)}")
    typer.echo(str(paths[name]()))


@app.command()
def inflate(
    out: Annotated[Path, typer.Argument(help="The GGUF file to write.")],
    params: Annotated[str, typer.Option("--params", help="Parameters to reach, e.g. 200M or 1.1B.")] = "1B",
    ftype: Annotated[str, typer.Option("--type", help="F32, F16, BF16, Q8_0 or Q4_0.")] = "Q8_0",
    source: Annotated[
        Path | None, typer.Option("-m", "--model", help="The Llama GGUF to inflate. Default: the target.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write a model of any size that says what the embedded target says, to measure speed at realistic cost."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from paceline import zoo
    from paceline.zoo.inflate import inflate as write

    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bars:
        tasks = {phase: bars.add_task(phase, total=1.0, visible=False) for phase in ("write", "quantize")}

        def progress(phase: str, done: float) -> None:
            bars.update(tasks[phase], completed=done, visible=True)

        layout = write(
            source or zoo.target_path(), out, parse_count(params), ftype, force=force, progress=progress
        )
    size = out.stat().st_size
    print(f"{layout.parameters / 1e6:,.0f}M parameters, {size / 1e6:,.0f} MB", file=sys.stderr)
    typer.echo(str(out))


def parse_count(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMB]?)", text.strip().upper())
    if match is None:
        raise UsageError(f"--params {text}: write a number of parameters such as 200M or 1.1B")
    return int(float(match[1]) * UNITS[match[2]])
