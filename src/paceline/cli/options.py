"""Declarations of options, and the options that several commands share."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.help import COMPLETIONS
from paceline.cli.references import file_option
from paceline.drafter_table import DRAFTERS
from paceline.speculative.errors import UsageError

EPILOG = (
    "--verbose also prints the file and hash of each model.\n\n"
    "Settings can also be given in the environment, as PACELINE_ and an option's long name in capitals "
    "(PACELINE_THREADS=4, PACELINE_TOP_P=0.9); the command line wins. --no-chat, --no-json and so on "
    "unset a flag.\n\n"
    "Exit codes: 0; 1 runtime error; 2 usage; 3 drafted output is not the plain output, or (check) the draft "
    "does not fit; 130 Ctrl-C; 141 stdout was closed."
)
if TYPE_CHECKING:
    from paceline.speculative.sampling import Sampling

MODELS = "Models"
PROMPT = "Prompt"
GENERATION = "Generation"
SAMPLING = "Sampling"
DRAFTING = "Drafting"
OUTPUT = "Output"


def option(
    panel: str,
    names: str,
    metavar: str | None,
    help: str,  # noqa: A002  # typer's word
    *,
    env: bool = True,
    minimum: float | None = None,
    maximum: float | None = None,
    callback: Callable[[Any], Any] | None = None,
) -> Any:
    """Return a typer option. names: such as "-n --n-predict". metavar: None for a flag.
    env: True if the long name's environment variable sets the option, too."""
    name = names.split()[-1].partition("/")[0]
    return typer.Option(
        *names.split(),
        envvar=variable(name) if env else None,
        show_envvar=False,
        show_default=metavar is not None and "Default:" not in help,
        help=help,
        metavar=metavar,
        min=minimum,
        max=maximum,
        rich_help_panel=panel,
        callback=callback,
        autocompletion=COMPLETIONS.get(name),
    )


def model_file(names: str, help: str) -> Any:  # noqa: A002
    """Return an option for the file of a model, which may also be named."""
    return option(OUTPUT, names, "MODEL", help, env=False, callback=file_option)


def flag(panel: str, name: str, help: str) -> Any:  # noqa: A002
    """Return a switch. Its opposite (--no-) lets the command line overrule the environment."""
    opposite = f"--{name[5:]}" if name.startswith("--no-") else f"--no-{name[2:]}"
    return option(panel, f"{name}/{opposite}", None, help)


def argument(metavar: str, help: str, panel: str | None = None, **more: Any) -> Any:  # noqa: A002
    more["autocompletion"] = COMPLETIONS.get(metavar)
    return typer.Argument(metavar=metavar, help=help, show_default=False, rich_help_panel=panel, **more)


def variable(name: str) -> str:
    return "PACELINE_" + name.lstrip("-").replace("-", "_").upper()


Drafters = Annotated[
    str | None,
    option(
        DRAFTING,
        "--draft",
        "NAMES",
        "Drafters: auto, none or names (lookup,model). auto (the default): "
        f"{DRAFTERS['auto'].about}; none: plain decoding; names, in the order they are called: "
        + ", ".join(f"{row.name} ({row.about})" for row in DRAFTERS.values() if not row.alone or row.window)
        + ".",
    ),
]
Seed = Annotated[int | None, option(SAMPLING, "--seed", "N", "Seed. Default: random, printed.", minimum=0)]
Corpora = Annotated[list[str] | None, option(DRAFTING, "--corpus", "NAME", "Draft from corpora.", env=False)]
Profile = Annotated[
    str,
    option(
        DRAFTING,
        "--profile",
        "NAME",
        "Settings of `paceline tune`; none: without. Default: auto, which takes those for this model and "
        "machine unless drafts are set by other options.",
    ),
]
AsJson = Annotated[bool, flag(OUTPUT, "--json", "One JSON object on stdout.")]
Force = Annotated[bool, flag(OUTPUT, "--force", "Overwrite the file if it exists.")]


def seed_for(given: int | None, sampling: Sampling) -> tuple[int, bool]:
    """Return the request's seed, and True if it is random; greedy decoding needs none."""
    if given is not None or sampling.greedy:
        return given or 0, False
    return secrets.randbelow(1 << 32), True


def format_random_seed(seed: int) -> str:
    return f"seed {seed} (by chance; --seed {seed} draws the same again)"


def require_command(context: typer.Context) -> None:
    """Print the help and exit with code 2 if no subcommand is given."""
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


def require_continue_alone(context: typer.Context) -> None:
    """Raise UsageError for an option beside --continue; those of the environment are no error."""
    given = {it for it in context.params if str(context.get_parameter_source(it)).endswith("COMMANDLINE")}
    if given - {"interrupted", "as_json"}:
        raise UsageError("--continue: a run goes on with its own settings; give only --json with it")


def command_group(help: str, **more: Any) -> typer.Typer:  # noqa: A002
    """Return a command that only has subcommands."""
    more |= {"callback": require_command, "invoke_without_command": True}
    return typer.Typer(rich_markup_mode=None, help=help, **more)
