"""`paceline corpus`: texts and past answers that drafts can be looked up in."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options
from paceline.cli.help import GroupedCommand
from paceline.cli.references import file_option
from paceline.core.errors import PacelineError, UsageError
from paceline.core.printable import printable

if TYPE_CHECKING:
    from paceline.lab.corpus.collect import Skipped
    from paceline.machine.corpora import Corpus

app = typer.Typer(rich_markup_mode=None, short_help="Build and list corpora to draft from.")
Name = Annotated[str, typer.Argument(metavar="NAME", help="The corpus's name.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]


@app.callback(invoke_without_command=True)
def _options(context: typer.Context) -> None:
    """Corpora: text, code and past answers that the drafters ngram and datastore look drafts up in."""
    options.require_command(context)


@app.command(cls=GroupedCommand, short_help="Build a corpus from files, directories or logs.")
def build(
    name: Name,
    more: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="More files and directories, as --from.", show_default=False),
    ] = None,
    paths: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="PATH", help="Text, code, JSON: a file or a directory.", show_default=False
        ),
    ] = None,
    logs: Annotated[
        list[Path] | None,
        typer.Option(
            "--from-log", metavar="FILE", help="A log of answers, as JSON lines.", show_default=False
        ),
    ] = None,
    globs: Annotated[
        list[str] | None,
        typer.Option(
            "--glob", metavar="GLOB", help="Of directories these files: '*.py'.", show_default=False
        ),
    ] = None,
    answers_only: Annotated[
        bool, typer.Option("--answers-only", help="Of logs leave out what was asked.")
    ] = False,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer",
            metavar="FILE",
            callback=file_option,
            help="The target, a GGUF file. Default: the embedded one.",
        ),
    ] = None,
    kinds: Annotated[
        str, typer.Option("--kinds", metavar="KINDS", help="What to make for drafters to look up in.")
    ] = "ngram,datastore",
    force: Annotated[
        bool, typer.Option("--force", help="Replace a corpus that was built with another tokenizer.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Build a corpus from files, directories and logs, in place of one of that name and tokenizer.

    Options that name a path or a pattern may be repeated. Logs are chats in OpenAI's format, or recorded
    requests with a text, a completion or tokens. Until the corpus is complete, an older one stays as it is.
    """
    if not (more or paths or logs):
        raise UsageError("nothing to build from: name files or directories (--from) or logs (--from-log)")

    from paceline import zoo
    from paceline.cli.interrupts import Interrupts
    from paceline.cli.progress import progress
    from paceline.engines.openers import open_tokenizer
    from paceline.lab.corpus.build import Sources, check_kinds
    from paceline.lab.corpus.build import build as build_corpus
    from paceline.machine.corpora import check_name

    check_name(name)
    wanted = check_kinds([kind.strip() for kind in kinds.split(",")])
    sources = Sources([*(paths or []), *(more or [])], logs or [], globs or [], not answers_only)
    with Interrupts() as interrupts, closing(open_tokenizer(tokenizer or zoo.target_path())) as model:

        def check() -> None:
            if interrupts.pressed:
                raise KeyboardInterrupt

        phase = partial(progress, interrupts=interrupts)
        corpus, skipped = build_corpus(name, sources, model, wanted, force=force, phase=phase, check=check)
    _tell(skipped)
    _print(corpus, as_json)


def _tell(skipped: Skipped) -> None:
    for reason, n in skipped.counts.items():
        where = skipped.examples[reason]
        line = f"skipped, {reason}: {n:,} ({where}{', ...' if n > 1 else ''})"
        print(printable(line), file=sys.stderr)


@app.command("list", cls=GroupedCommand)
def list_corpora(as_json: AsJson = False) -> None:
    """List the corpora there are."""
    from paceline.machine.corpora import find_corpus, names

    records: list[dict[str, Any]] = []
    for name in names():
        try:
            records.append(_record(find_corpus(name)))
        except PacelineError as error:  # one that is damaged does not hide the others
            records.append({"name": name, "error": str(error)})
    if as_json:
        typer.echo(json.dumps(records))
        return
    from paceline.report.table import listing

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
        listing(("name", "length", "size", "kinds", "tokenizer and date"), rows, sys.stdout)
    else:
        print("there are no corpora yet: paceline corpus build NAME --from PATH", file=sys.stderr)


@app.command(cls=GroupedCommand)
def show(name: Name, as_json: AsJson = False) -> None:
    """Print what a corpus holds, and what it was built from."""
    from paceline.machine.corpora import find_corpus

    _print(find_corpus(name), as_json)


def _record(corpus: Corpus) -> dict[str, Any]:
    static, datastore = (str(path) if path else None for path in (corpus.static, corpus.datastore))
    # A folder that was renamed is known by its new name.
    where = {
        "name": corpus.folder.name,
        "path": str(corpus.folder),
        "size": corpus.size,
        "static": static,
        "datastore": datastore,
    }
    return corpus.manifest.as_dict() | where


def _print(corpus: Corpus, as_json: bool) -> None:
    record = _record(corpus)
    if as_json:
        typer.echo(json.dumps(record))
        return
    from paceline.report.table import listing

    facts = (
        ("name", record["name"]),
        ("path", record["path"]),
        ("size", f"{record['size'] / 1e6:,.1f} MB"),
        ("tokens", f"{record['tokens']:,} in {record['documents']:,} documents"),
        ("kinds", ",".join(record["kinds"])),
        ("tokenizer", f"{record['model']}, {record['n_vocab']:,} tokens"),
        ("built", f"{record['created']} by paceline {record['paceline']}"),
        *((f"skipped, {reason}", f"{n:,}") for reason, n in record["skipped"].items()),
    )
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        typer.echo(f"{name:{width}}  {value}")
    typer.echo("")
    rows = [
        (one["path"], *(f"{one[what]:,}" for what in ("files", "documents", "bytes", "tokens")))
        for one in record["sources"]
    ]
    listing(("source", "files", "documents", "bytes", "tokens"), rows, sys.stdout, 1)


@app.command(cls=GroupedCommand, short_help="Forget the answers that --remember kept.")
def forget(
    everything: Annotated[bool, typer.Option("--all", help="Of every project, not only this one.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove the answers that `run --remember` kept, of the project we are in."""
    from paceline.machine import remembered
    from paceline.report.table import listing

    project = None if everything else remembered.project_of(Path.cwd())
    kept = remembered.describe(project)
    if kept and not as_json:
        rows = [
            (str(one.project or one.path), f"{one.outputs:,}", f"{one.tokens:,}", f"{one.bytes:,}")
            for one in kept
        ]
        listing(("project", "answers", "tokens", "bytes"), rows, sys.stdout, 1)
    if kept:
        n = sum(one.outputs for one in kept)
        of = f" of {len(kept)} project{'s' * (len(kept) != 1)}" if everything else ""
        _ask(f"Forget {n:,} answer{'s' * (n != 1)}{of}", yes)
    gone = remembered.forget(project)
    if as_json:
        typer.echo(json.dumps([{"project": str(one.project), "path": str(one.path), "answers": one.outputs,
                                "tokens": one.tokens, "bytes": one.bytes} for one in gone]))  # fmt: skip
    elif not gone:
        print("nothing was remembered", file=sys.stderr)


def _ask(what: str, yes: bool) -> None:
    """Go on only where it is wanted."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{what}: not without --yes where nobody can be asked")
    # typer.confirm would write to stdout too.
    print(f"{what}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Exit(1)


@app.command("rm", cls=GroupedCommand)
def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a corpus from the disk."""
    from paceline.machine import corpora

    if corpora.check_name(name) not in corpora.names():
        raise UsageError(f"no corpus {name!r}: `paceline corpus list` prints those there are")
    folder = corpora.corpora_folder() / name
    _ask(f"Remove {folder}", yes)
    corpora.remove(folder)
    if as_json:
        typer.echo(json.dumps({"name": name, "removed": str(folder)}))
