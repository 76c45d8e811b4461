"""The command line. Data goes to stdout, everything else to stderr.

Exit codes: 0; 1 runtime error; 2 usage; 3 the lossless check failed; 130 Ctrl-C; 141 stdout was closed.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

import paceline
from paceline.cli import run, zoo
from paceline.cli.exits import CLOSED_PIPE, INTERRUPTED
from paceline.core.errors import PacelineError

app = typer.Typer(
    name="paceline",
    help="Faster decoding of the language models you already have, with the same output.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.add_typer(zoo.app, name="zoo")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"paceline {paceline.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Faster decoding of the language models you already have, with the same output."""


def invoke(args: list[str]) -> int:
    """Run one command line; returns its exit code. Every error is one line on stderr."""
    try:
        code = app(args=args, prog_name="paceline", standalone_mode=False)
        sys.stdout.flush()
    except PacelineError as error:
        print(f"paceline: {error}", file=sys.stderr)
        return error.exit_code
    except typer.TyperException as error:
        print(f"paceline: {error.format_message()}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader has seen enough. Python flushes stdout once more at exit; give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return int(code or 0)


def main() -> None:
    sys.exit(invoke(sys.argv[1:]))
