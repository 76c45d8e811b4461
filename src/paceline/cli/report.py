"""`paceline report`: a page, Markdown or pictures of what other commands have measured."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options
from paceline.cli.options import OUTPUT, argument, flag, option
from paceline.cli.output import strict_json
from paceline.speculative.errors import UsageError

if TYPE_CHECKING:
    from paceline.bench.run_file import Run

# What a record has: the first kind that fits.
KINDS = {
    "tune": {"kind", "format"}, "bench": {"plan", "provenance"}, "replay": {"files", "requests", "results"},
    "certify": {"certified"}, "doctor": {"hardware"}, "experts": {"experts", "rows"},
    "prefill": {"prompt_tokens", "rows"}, "train": {"kind", "acceptance"}, "run": {"stats"},
    "compare": {"plain", "drafted"},
}  # fmt: skip
DAMAGE = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError)


def report(
    records: Annotated[list[Path], argument("RECORD", "Files of `bench -o` or --json; folders of heads.")],
    out: Annotated[Path | None, option(OUTPUT, "-o --out", "FILE", "The file to write.", env=False)] = None,
    md: Annotated[bool, flag(OUTPUT, "--md", "Markdown, not a page; without -o on stdout.")] = False,
    png: Annotated[
        Path | None, option(OUTPUT, "--png", "FOLDER", "Save each plot in a folder, by Chromium.", env=False)
    ] = None,
    force: options.Force = False,
) -> None:
    """Show what bench, replay, certify, doctor, experts, prefill, train and run measured on one page.

    The page is one file, and needs no network. Records of bench are the files of its -o, of train the folders
    of heads; tune, experts and prefill name theirs, the other commands print them with --json."""
    from paceline.report.page import markdown, pictures, render
    from paceline.system.atomic import check_output, write_output

    if out is None and png is None and not md:
        raise UsageError("nothing to write: give a file for the page (-o report.html), --md or --png FOLDER")
    if out is not None:
        check_output(out, *records, force=force)
    views = [read_view(path) for path in records]
    page = render(views)
    if png is not None:
        png.mkdir(parents=True, exist_ok=True)
        for name, data in pictures(page):
            check_output(png / name, force=force)
            (png / name).write_bytes(data)
            typer.echo(str(png / name))
    text = markdown(views) if md else page
    if out is not None:
        with write_output(out) as part:
            part.write_text(text, "utf-8")
        typer.echo(str(out))
    elif md:
        typer.echo(text, nl=False)


def read_view(path: Path) -> dict[str, Any]:
    """Return what the page shows of a record. Raises UsageError for a file that is none."""
    from paceline.bench import run_file
    from paceline.bench.jsonl import whole_objects
    from paceline.bench.replay import replay, tables
    from paceline.doctor import diagnosis
    from paceline.heads.files import CARD, CONFIG
    from paceline.report.page import view
    from paceline.system.strict_json import parse_json
    from paceline.tune import record as tune_record

    file = path.with_suffix("") if path.suffix == ".gguf" else path  # an MTP layer is beside its run's folder
    if file.is_dir():
        file = next(filter(Path.is_file, (file / CARD, file / CONFIG)), file)
    lines = whole_objects(file)
    with suppress(OSError, ValueError):
        lines = [parse_json(file.read_bytes())]  # of several lines
    first = lines[0] if lines else {}
    first = card if isinstance(card := first.get("card"), dict) else first  # of a confidence
    kind = next((kind for kind, has in KINDS.items() if has <= first.keys()), "")
    formats = {
        "bench": run_file.FORMAT,
        "replay": replay.FORMAT,
        "doctor": diagnosis.FORMAT,
        "tune": tune_record.FORMAT,
    }
    ours = formats.get(kind, 1)
    if not kind:
        raise UsageError(
            f"{path}: is no record of bench, replay, certify, doctor, experts, prefill, train or run"
        )
    if (number := first.get("format", ours)) != ours:
        raise UsageError(f"{path}: format {number} of `paceline {kind}` is another version's, ours is {ours}")
    try:
        blocks = []
        if kind == "tune":
            first = tune_record.read(path).as_dict()
            first["results"] = first["stages"] = [stage for stage in first["stages"] if stage["results"]]
        elif kind == "bench" and "results" not in first:
            first = finished(run_file.read(file)).as_dict()
        elif kind == "replay" and first["results"]:
            blocks = [*tables.blocks(first)]
        made = view(kind.replace("compare", "run"), strict_json(first), blocks)
    except DAMAGE as error:
        why = f"is damaged, or of another version of `paceline {kind}` ({type(error).__name__}: {error})"
        raise UsageError(f"{path}: {why}") from error
    if not first.get("results", True):
        raise UsageError(f"{path}: has no results yet: there is nothing to show")
    return made


def finished(run: Run) -> Run:
    """Return a run with results; those of an interrupted one are of what it measured."""
    from paceline.bench.gate import severity
    from paceline.bench.method import PLAIN
    from paceline.bench.summary import summarize

    if run.groups and not run.results:
        run.status, rows = "interrupted", []
        for name in dict.fromkeys(name for group in run.groups for name in group.measurements):
            outcomes = [group.outcomes[name] for group in run.groups if name in group.outcomes]
            worst = max(outcomes, key=severity, default="reference" if name == PLAIN else "not checked yet")
            lossless = name == PLAIN or (bool(outcomes) and severity(worst) < 2)
            rows.append({"system": name, "lossless": lossless, "verdict": worst, "memory": None})
        run.results = [asdict(one) for one in summarize(rows, run.groups, PLAIN)]
    return run
