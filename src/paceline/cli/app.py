"""The command line. Data goes to stdout, everything else to stderr. options.EPILOG has the exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

import paceline
from paceline.cli import (
    bench,
    certify,
    chat,
    corpus,
    doctor,
    export,
    launch,
    models,
    options,
    pairs,
    replay,
    report,
    run,
    serve,
    train,
    tune,
    variants,
)
from paceline.cli.help import VARIABLE, GroupedCommand, print_completions
from paceline.cli.interrupts import CLOSED_PIPE, INTERRUPTED, install_exit_handlers
from paceline.cli.output import print_note, take_verbose
from paceline.speculative.errors import PacelineError

app = typer.Typer(
    name="paceline",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[Callable[..., Any], str] = {
    run.run: "Complete a prompt.",
    chat.chat: "Talk with a model.",
    certify.certify: "Check that drafting changes nothing.",
    bench.bench: "Measure methods and other systems.",
    tune.tune: "Find the fastest settings for a model here.",
    tune.try_: "The whole way: drafts, measurements, a profile.",
    replay.replay: "Score drafters on recorded requests.",
    report.report: "A page of what was measured.",
    pairs.check: "Check whether a draft fits.",
    pairs.pairs: "Find models, and drafts for one.",
    variants.transplant: "Give a draft another vocabulary.",
    train.train: "Train a draft head for a model.",
    variants.experts: "A mixture of experts with fewer experts a token.",
    variants.prefill: "Long prompts computed in part: time to the first token and quality.",
    doctor.doctor: "What this machine has, what passes cost, why drafts lose.",
    serve.serve: "An OpenAI-compatible server.",
    launch.launch: "An agent or a chat page, set up for a server.",
    export.export: "Settings for vLLM, llama-server and others.",
    export.import_: "Settings from vLLM or llama-server.",
    models.pull: "Download a model.",
}
for _command, _help in COMMANDS.items():
    _name = _command.__name__.rstrip("_")
    app.command(_name, cls=GroupedCommand, short_help=_help, epilog=options.EPILOG)(_command)
for _name, _group in {"corpus": corpus, "profile": tune, "views": variants, "zoo": models}.items():
    app.add_typer(_group.app, name=_name)


def _print_version(requested: bool) -> None:
    if requested:
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
    """Run one command line and return its exit code. Every error is one line on stderr."""
    command = typer.main.get_command(app)  # app() would handle a closed pipe with another exit code
    try:
        with command.make_context("paceline", take_verbose(args)) as context:
            code = int(command.invoke(context) or 0)
        sys.stdout.flush()
    except typer.Exit as end:
        return end.exit_code
    except PacelineError as error:
        return _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        return _fail(_usage(error), error.exit_code)
    except BrokenPipeError:
        _discard_stdout()
        return CLOSED_PIPE
    except OSError as error:
        _discard_stdout()
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except MemoryError:
        return _fail("out of memory: ask for less with -c, or use a smaller model", 1)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    return code


def _fail(message: str, code: int) -> int:
    print_note(f"paceline: {message}")
    return code


def _usage(error: typer.TyperException) -> str:
    """Return typer's message, the environment variable that a bad value came from, and the help command."""
    context, param = getattr(error, "ctx", None), getattr(error, "param", None)
    message = error.format_message().rstrip(".")
    if context is None:
        return message
    if param is not None and str(context.get_parameter_source(param.name)).endswith("ENVIRONMENT"):
        message += f" (from {param.envvar})"
    return f"{message}; see {context.command_path} --help"


def _discard_stdout() -> None:
    """Send unwritable output to the null device: Python flushes stdout once more at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    if sys.stdout is None:  # `>&-`
        sys.exit(CLOSED_PIPE)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  # to the end
    if VARIABLE in os.environ:
        return print_completions(app)
    install_exit_handlers()
    # A terminal that is not UTF-8 gets question marks, not an error.
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a TextIOWrapper
    sys.exit(invoke(sys.argv[1:]))
