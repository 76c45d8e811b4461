"""`paceline corpus`: texts and past answers to draft from."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options
from paceline.cli.groups import OptionGroup, option_table, with_option_groups
from paceline.cli.help import GroupedCommand
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import OUTPUT, argument, flag, model_file, option
from paceline.cli.output import print_json, print_note, print_record
from paceline.speculative.errors import PacelineError, UsageError
from paceline.speculative.printable import count

if TYPE_CHECKING:
    from paceline.storage.corpora import Corpus

app = options.command_group("Build and list corpora to draft from.")
Name = Annotated[str, argument("NAME", "The corpus's name.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
SOURCES = "Sources"

SOURCE_OPTIONS = OptionGroup(option_table(
    SOURCES,
    ("paths", list[Path] | None, None, "--from", "PATH", "Text, code, JSON: a file or a directory."),
    ("logs", list[Path] | None, None, "--from-log", "FILE", "A log of answers, as JSON lines."),
    ("globs", list[str] | None, None, "--glob", "GLOB", "Use only these files of directories: '*.py'."),
    ("answers_only", bool, False, "--answers-only", "", "Leave out the prompts of logs."),
    env=False,
))  # fmt: skip


@app.command(cls=GroupedCommand, short_help="Build a corpus from files, directories or logs.")
@with_option_groups(sources=SOURCE_OPTIONS)
def build(
    *,
    name: Name,
    more: Annotated[list[Path] | None, argument("PATH", "More files and directories, as --from.")] = None,
    sources: Any,
    tokenizer: Annotated[Path | None, model_file("--tokenizer -m --model", "Default: the toy model.")] = None,
    kinds: Annotated[
        str, option(OUTPUT, "--kinds", "KINDS", "Indexes to build for drafters.", env=False)
    ] = "ngram,datastore",
    force: Annotated[
        bool, flag(OUTPUT, "--force", "Replace a corpus that was built with another tokenizer.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Build a corpus from files, directories and logs. It replaces one of the same name and tokenizer.

    Options that name a path or a pattern may be repeated. Logs are chats in OpenAI's format, or recorded
    requests with a text, a completion or tokens. An older corpus stays until the new one is complete."""
    paths, logs = [*(sources["paths"] or []), *(more or [])], sources["logs"] or []

    from paceline.backends.registry import open_tokenizer
    from paceline.cli.progress import progress
    from paceline.models import zoo
    from paceline.prepare.corpus import Sources
    from paceline.prepare.corpus import build as build_corpus

    selected = [kind.strip() for kind in kinds.split(",")]
    texts = Sources(paths, logs, sources["globs"] or [], not sources["answers_only"])
    with Interrupts() as interrupts, closing(open_tokenizer(tokenizer or zoo.target_path())) as model:
        watch: Any = {"phase": partial(progress, interrupts=interrupts), "check": interrupts.check}
        corpus, skipped = build_corpus(name, texts, model, selected, force=force, **watch)
    for reason, n in skipped.counts.items():
        print_note(f"skipped, {reason}: {n:,} ({skipped.examples[reason]}{', ...' if n > 1 else ''})")
    print_record(_record(corpus), as_json, _write)


@app.command("list", cls=GroupedCommand)
def list_corpora(as_json: options.AsJson = False) -> None:
    """List the corpora."""
    from paceline.report.table import write_table
    from paceline.storage.corpora import find_corpus, names

    records: list[dict[str, Any]] = []
    for name in names():
        try:
            records.append(_record(find_corpus(name)))
        except PacelineError as error:  # a damaged corpus does not hide the others
            records.append({"name": name, "error": str(error)})
    if as_json:
        print_json(records)
        return
    rows = []
    for it in records:
        length, size, kinds, about = "", "", "", it.get("error")
        if about is None:
            length, size = count(it["tokens"], "token"), f"{it['size'] / 1e6:,.1f} MB"
            kinds, about = ",".join(it["kinds"]), f"{it['model']}, {it['created'][:10]}"
        rows.append((it["name"], length, size, kinds, about))
    if rows:
        write_table(("name", "length", "size", "kinds", "tokenizer and date"), rows, sys.stdout)
    else:
        print_note("there are no corpora yet: paceline corpus build NAME --from PATH")


@app.command(cls=GroupedCommand)
def show(name: Name, as_json: options.AsJson = False) -> None:
    """Print a corpus's size, tokenizer and sources."""
    from paceline.storage.corpora import find_corpus

    print_record(_record(find_corpus(name)), as_json, _write)


def _record(corpus: Corpus) -> dict[str, Any]:
    paths = {"path": corpus.folder, "static": corpus.static, "datastore": corpus.datastore}
    record = {name: str(path) if path else None for name, path in paths.items()}
    # The folder may have been renamed.
    return asdict(corpus.manifest) | record | {"name": corpus.folder.name, "size": corpus.size}


def _write(record: dict[str, Any], file: IO[str]) -> None:
    from paceline.report.table import write_table

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
    file.writelines(f"{name:{width}}  {value}\n" for name, value in facts.items())
    file.write("\n")
    counted = ("files", "documents", "bytes", "tokens")
    rows = [(source["path"], *(f"{source[name]:,}" for name in counted)) for source in record["sources"]]
    write_table(("source", *counted), rows, file, 1)


@app.command(cls=GroupedCommand, short_help="Remove the answers stored by --remember.")
def forget(
    everything: Annotated[bool, typer.Option("--all", help="Remove the answers of all projects.")] = False,
    yes: Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Remove the answers that --remember has stored for the current project."""
    from paceline.storage import remembered

    project = None if everything else remembered.project_of(Path.cwd())
    if files := remembered.describe(project):
        for file in files:
            print_note(f"{file.project or file.path}: {count(file.outputs, 'answer')}, {file.bytes:,} bytes")
        _confirm("Forget them", yes)
    removed = remembered.forget(project)
    if as_json:
        print_json([{"project": str(file.project), "path": str(file.path), "answers": file.outputs,
                     "tokens": file.tokens, "bytes": file.bytes} for file in removed])  # fmt: skip
    elif not removed:
        print_note("nothing was remembered")


def _confirm(what: str, yes: bool) -> None:
    """Ask the user unless --yes is given. Raises UsageError without a terminal, or Exit."""
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
        corpora.find_corpus(name)  # raises with the names of those there are
    folder = corpora.corpora_folder() / name
    _confirm(f"Remove {folder}", yes)
    corpora.remove(folder)
    if as_json:
        print_json({"name": name, "removed": str(folder)})
