"""The command line. Data goes to stdout, everything else to stderr.

Exit codes: 0; 1 runtime error; 2 usage; 3 the lossless check failed, or (check) the draft does not fit;
130 Ctrl-C; 141 stdout was closed; 129 and 143 the terminal was closed, or SIGTERM came, in the middle.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import paceline
from paceline.cli import (
    bench_history,
    certify,
    chat,
    check,
    corpus,
    doctor,
    options,
    pairs,
    pull,
    replay,
    run,
    serve,
    transplant,
    views,
    zoo,
)
from paceline.cli.exits import CLOSED_PIPE, INTERRUPTED
from paceline.cli.help import GroupedCommand
from paceline.cli.interrupts import end_cleanly
from paceline.core.errors import PacelineError
from paceline.core.printable import printable

app = typer.Typer(
    name="paceline",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run", cls=GroupedCommand, short_help="Complete a prompt.", epilog=options.EPILOG)(run.run)
app.command("chat", cls=GroupedCommand, short_help="Talk with a model.", epilog=options.EPILOG)(chat.chat)
app.command(
    "certify", cls=GroupedCommand, short_help="Check that drafting changes nothing.", epilog=options.EPILOG
)(certify.certify)
app.command(
    "replay", cls=GroupedCommand, short_help="Score drafters on recorded requests.", epilog=options.EPILOG
)(replay.replay)
app.command("check", cls=GroupedCommand, short_help="Tell whether a draft fits.", epilog=options.EPILOG)(
    check.check
)
app.command(
    "pairs", cls=GroupedCommand, short_help="Find models, and drafts for one.", epilog=options.EPILOG
)(pairs.pairs)
app.command("transplant", cls=GroupedCommand, short_help="Give a draft another vocabulary.")(
    transplant.transplant
)
app.command(
    "doctor",
    cls=GroupedCommand,
    short_help="What this machine has, what passes cost, why drafts lose.",
    epilog=options.EPILOG,
)(doctor.doctor)
app.command("serve", cls=GroupedCommand, short_help="An OpenAI-compatible server.", epilog=options.EPILOG)(
    serve.serve
)
app.command("pull", cls=GroupedCommand, short_help="Download a model.", epilog=options.EPILOG)(pull.pull)
app.add_typer(bench_history.commands, name="bench")
app.add_typer(corpus.app, name="corpus")
app.add_typer(views.app, name="views")
app.add_typer(zoo.app, name="zoo")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"paceline {paceline.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Faster decoding of the language models you already have, with the same output."""
    options.require_command(context)


def invoke(args: list[str]) -> int:
    """Run one command line; returns its exit code. Every error is one line on stderr."""
    try:
        code = _command(args)
        sys.stdout.flush()
    except PacelineError as error:
        return _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        return _fail(_usage(error), error.exit_code)
    except BrokenPipeError:
        # The reader has seen enough.
        _settle_stdout()
        return CLOSED_PIPE
    except OSError as error:
        _settle_stdout()
        if _is_lost():
            return _fail("the folder that you are in was deleted: go to another one (cd)", 2)
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except MemoryError:
        return _fail("out of memory: ask for less with -c, or use a smaller model", 1)
    except RuntimeError as error:
        if "home directory" not in str(error):
            raise
        return _fail("it is not known where your home directory is: set HOME, or write paths out", 2)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code


def _command(args: list[str]) -> int:
    # Not through app(), which answers a closed pipe in its own way.
    command = typer.main.get_command(app)
    try:
        with command.make_context("paceline", list(args)) as context:
            return int(command.invoke(context) or 0)
    except typer.Exit as end:
        return end.exit_code


def _fail(message: str, code: int) -> int:
    # A message may quote a file's name or a model's own words: no line breaks, no terminal sequences.
    print(f"paceline: {printable(message)}", file=sys.stderr)
    return code


def _usage(error: typer.TyperException) -> str:
    """typer's message, with the environment variable a bad value came from, and where help is."""
    context, param = getattr(error, "ctx", None), getattr(error, "param", None)
    message = error.format_message().rstrip(".")
    if context is None:
        return message
    if param is not None and str(context.get_parameter_source(param.name)).endswith("ENVIRONMENT"):
        message += f" (from {param.envvar})"
    return f"{message}; see {context.command_path} --help"


def _is_lost() -> bool:
    """Whether the folder that the process is in is gone, so that nothing has a path."""
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return True
    return False


def _settle_stdout() -> None:
    """Python flushes stdout once more at exit: what cannot be written has to go somewhere."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    if sys.stdout is None:  # `>&-`
        sys.exit(CLOSED_PIPE)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  # to the end
    end_cleanly()
    # A terminal that is not UTF-8 gets question marks, not an error.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a TextIOWrapper
    sys.exit(invoke(sys.argv[1:]))
