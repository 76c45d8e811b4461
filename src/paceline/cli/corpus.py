"""`paceline corpus`: texts and past answers that drafts can be looked up in."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options
from paceline.cli.help import GroupedCommand
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import OUTPUT, argument, flag, option
from paceline.cli.output import print_json, print_note
from paceline.cli.references import file_option
from paceline.speculative.errors import PacelineError, UsageError

if TYPE_CHECKING:
    from paceline.storage.corpora import Corpus

app = typer.Typer(rich_markup_mode=None, short_help="Build and list corpora to draft from.")
Name = Annotated[str, argument("NAME", "The corpus's name.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
SOURCES = "Sources"


@app.callback(invoke_without_command=True)
def _options(context: typer.Context) -> None:
    """Corpora: text, code and past answers that the drafters ngram and datastore look drafts up in."""
    options.require_command(context)


@app.command(cls=GroupedCommand, short_help="Build a corpus from files, directories or logs.")
def build(
    name: Name,
    more: Annotated[list[Path] | None, argument("PATH", "More files and directories, as --from.")] = None,
    paths: Annotated[
        list[Path] | None,
        option(SOURCES, "--from", "PATH", "Text, code, JSON: a file or a directory.", env=False),
    ] = None,
    logs: Annotated[
        list[Path] | None,
        option(SOURCES, "--from-log", "FILE", "A log of answers, as JSON lines.", env=False),
    ] = None,
    globs: Annotated[
        list[str] | None, option(SOURCES, "--glob", "GLOB", "Of directories these files: '*.py'.", env=False)
    ] = None,
    answers_only: Annotated[
        bool, flag(SOURCES, "--answers-only", "Of logs leave out what was asked.")
    ] = False,
    tokenizer: Annotated[
        Path | None,
        option(
            OUTPUT,
            "--tokenizer",
            "FILE",
            "The target, a GGUF file. Default: the embedded one.",
            env=False,
            callback=file_option,
        ),
    ] = None,
    kinds: Annotated[
        str, option(OUTPUT, "--kinds", "KINDS", "What to make for drafters to look up in.", env=False)
    ] = "ngram,datastore",
    force: Annotated[
        bool, flag(OUTPUT, "--force", "Replace a corpus that was built with another tokenizer.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Build a corpus from files, directories and logs, in place of one of that name and tokenizer.

    Options that name a path or a pattern may be repeated. Logs are chats in OpenAI's format, or recorded
    requests with a text, a completion or tokens. Until the corpus is complete, an older one stays as it is.
    """
    if not (more or paths or logs):
        raise UsageError("nothing to build from: name files or directories (--from) or logs (--from-log)")

    from paceline.backends.registry import open_tokenizer
    from paceline.cli.progress import progress
    from paceline.models import zoo
    from paceline.prepare.corpus.build import Sources, check_kinds
    from paceline.prepare.corpus.build import build as build_corpus
    from paceline.storage.corpora import check_name

    check_name(name)
    wanted = check_kinds([kind.strip() for kind in kinds.split(",")])
    sources = Sources([*(paths or []), *(more or [])], logs or [], globs or [], not answers_only)
    with Interrupts() as interrupts, closing(open_tokenizer(tokenizer or zoo.target_path())) as model:
        phase = partial(progress, interrupts=interrupts)
        corpus, skipped = build_corpus(
            name, sources, model, wanted, force=force, phase=phase, check=interrupts.check
        )
    for reason, n in skipped.counts.items():
        print_note(f"skipped, {reason}: {n:,} ({skipped.examples[reason]}{', ...' if n > 1 else ''})")
    _print(corpus, as_json)


@app.command("list", cls=GroupedCommand)
def list_corpora(as_json: options.AsJson = False) -> None:
    """List the corpora there are."""
    from paceline.report.table import write_table
    from paceline.storage.corpora import find_corpus, names

    records: list[dict[str, Any]] = []
    for name in names():
        try:
            records.append(_record(find_corpus(name)))
        except PacelineError as error:  # one that is damaged does not hide the others
            records.append({"name": name, "error": str(error)})
    if as_json:
        print_json(records)
        return
    rows = [
        (one["name"], "", "", "", one["error"])
        if "error" in one
        else (
            one["name"],
            f"{one['tokens']:,} tokens",
            f"{one['size'] / 1e6:,.1f} MB",
            ",".join(one["kinds"]),
            f"{one['model']}, {one['created'][:10]}",
        )
        for one in records
    ]
    if rows:
        write_table(("name", "length", "size", "kinds", "tokenizer and date"), rows, sys.stdout)
    else:
        print_note("there are no corpora yet: paceline corpus build NAME --from PATH")


@app.command(cls=GroupedCommand)
def show(name: Name, as_json: options.AsJson = False) -> None:
    """Print what a corpus holds, and what it was built from."""
    from paceline.storage.corpora import find_corpus

    _print(find_corpus(name), as_json)


def _record(corpus: Corpus) -> dict[str, Any]:
    paths = {"path": corpus.folder, "static": corpus.static, "datastore": corpus.datastore}
    # A folder that was renamed is known by its new name.
    where = {name: str(path) if path else None for name, path in paths.items()}
    return corpus.manifest.as_dict() | where | {"name": corpus.folder.name, "size": corpus.size}


def _print(corpus: Corpus, as_json: bool) -> None:
    from paceline.report.table import write_table

    record = _record(corpus)
    if as_json:
        print_json(record)
        return
    facts = {
        "name": record["name"],
        "path": record["path"],
        "size": f"{record['size'] / 1e6:,.1f} MB",
        "tokens": f"{record['tokens']:,} in {record['documents']:,} documents",
        "kinds": ",".join(record["kinds"]),
        "tokenizer": f"{record['model']}, {record['n_vocab']:,} tokens",
        "built": f"{record['created']} by paceline {record['paceline']}",
        **{f"skipped, {reason}": f"{n:,}" for reason, n in record["skipped"].items()},
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name:{width}}  {value}")
    typer.echo("")
    counted = ("files", "documents", "bytes", "tokens")
    rows = [(one["path"], *(f"{one[what]:,}" for what in counted)) for one in record["sources"]]
    write_table(("source", *counted), rows, sys.stdout, 1)


@app.command(cls=GroupedCommand, short_help="Forget the answers that --remember kept.")
def forget(
    everything: Annotated[bool, typer.Option("--all", help="Of every project, not only this one.")] = False,
    yes: Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Remove the answers that `run --remember` kept, of the project we are in."""
    from paceline.storage import remembered

    project = None if everything else remembered.project_of(Path.cwd())
    if cached := remembered.describe(project):
        for one in cached:
            print_note(f"{one.project or one.path}: {one.outputs:,} answers, {one.bytes:,} bytes")
        _confirm("Forget them", yes)
    gone = remembered.forget(project)
    if as_json:
        print_json([{"project": str(one.project), "path": str(one.path), "answers": one.outputs,
                     "tokens": one.tokens, "bytes": one.bytes} for one in gone])  # fmt: skip
    elif not gone:
        print_note("nothing was remembered")


def _confirm(what: str, yes: bool) -> None:
    """Go on only where it is wanted."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{what}: not without --yes where nobody can be asked")
    if not typer.confirm(f"{what}?", err=True):
        raise typer.Exit(1)


@app.command("rm", cls=GroupedCommand)
def remove(name: Name, yes: Yes = False, as_json: options.AsJson = False) -> None:
    """Remove a corpus from the disk."""
    from paceline.storage import corpora

    if corpora.check_name(name) not in corpora.names():
        raise UsageError(f"no corpus {name!r}: `paceline corpus list` prints those there are")
    folder = corpora.corpora_folder() / name
    _confirm(f"Remove {folder}", yes)
    corpora.remove(folder)
    if as_json:
        print_json({"name": name, "removed": str(folder)})
