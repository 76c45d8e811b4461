"""Options that several commands share. Each can also come from the environment as PACELINE_<FLAG>."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.references import model_option
from paceline.cli.texts import read_stdin, read_text
from paceline.core import typed
from paceline.core.drafters import DRAFTERS
from paceline.core.errors import UsageError

EPILOG = (
    "Every option can also be set in the environment, as PACELINE_ and its long name in capitals "
    "(PACELINE_THREADS=4, PACELINE_TOP_P=0.9); the command line wins. --no-chat, --no-json and so on "
    "unset a flag."
    "\n\n"
    "Exit codes: 0; 1 runtime error; 2 usage; 3 drafted output is not the plain output, or (check) the draft "
    "does not fit; "
    "130 Ctrl-C; 141 stdout was closed."
)
if TYPE_CHECKING:
    from paceline.core.sampling import Sampling

FLASH_ATTENTION = {"on": True, "off": False, "auto": None}
MODELS = "Models"
PROMPT = "Prompt"
GENERATION = "Generation"
SAMPLING = "Sampling"
GRAMMAR = "Grammar"
DRAFTING = "Drafting"
OUTPUT = "Output"


def option(
    *flags: str,
    panel: str,
    help: str,  # noqa: A002  # typer's word
    metavar: str,
    from_environment: bool = True,
    callback: Callable[[Any], Any] | None = None,
) -> Any:
    """A typer option that its long name's environment variable can set too."""
    return typer.Option(
        *flags,
        envvar=variable(flags[-1]) if from_environment else None,
        show_envvar=False,
        show_default=True,
        help=help,
        metavar=metavar,
        rich_help_panel=panel,
        callback=callback,
    )


def flag(name: str, *, panel: str, help: str) -> Any:  # noqa: A002
    """A switch, with its --no- form so that the command line can overrule the environment."""
    return typer.Option(
        f"{name}/{name.replace('--', '--no-')}",
        envvar=variable(name),
        show_envvar=False,
        show_default=False,
        help=help,
        rich_help_panel=panel,
    )


def variable(name: str) -> str:
    return "PACELINE_" + name.lstrip("-").replace("-", "_").upper()


def stop_texts(given: list[str] | None) -> list[str]:
    """--stop, or PACELINE_STOP as one text: typer would split it at its spaces."""
    if given is None:
        given = [os.environ[variable("--stop")]] if variable("--stop") in os.environ else []
    if "" in given:
        raise UsageError("--stop '': an empty stop string would stop at once; leave it out")
    return [typed.text("the stop string", text) for text in given]


Model = Annotated[
    str | None,
    option(
        "-m",
        "--model",
        panel=MODELS,
        metavar="MODEL",
        callback=model_option,
        help="The target: a GGUF file, a folder of a transformers model, or a name such as "
        "ollama:llama3.2:3b or hf:USER/REPO. Default: the embedded one; in a chat zoo:smollm2.",
    ),
]
DraftModel = Annotated[
    str | None,
    option(
        "-md",
        "--model-draft",
        panel=MODELS,
        metavar="MODEL",
        callback=model_option,
        help="A draft model: smaller, with the same vocabulary (or see --cross-vocab).",
    ),
]
Context = Annotated[
    int | None,
    option(
        "-c",
        "--ctx-size",
        panel=MODELS,
        metavar="N",
        help="Tokens of context. Default: the model's, up to 4,096.",
    ),
]
Threads = Annotated[
    int | None,
    option(
        "-t",
        "--threads",
        panel=MODELS,
        metavar="N",
        help="Default: one thread a physical core, within a container's quota.",
    ),
]
GpuLayers = Annotated[
    int, option("-ngl", "--gpu-layers", panel=MODELS, metavar="N", help="Layers to keep on a GPU.")
]
FlashAttention = Annotated[
    str,
    option(
        "-fa",
        "--flash-attn",
        panel=MODELS,
        metavar="MODE",
        help="Flash attention: on, off or auto (llama.cpp's choice; on a processor tried once).",
    ),
]
CacheType = Annotated[
    str,
    option("--cache-type", panel=MODELS, metavar="TYPE", help="KV cache: f32, f16, bf16 or q8_0."),
]
Kernels = Annotated[
    str,
    option(
        "--kernels",
        panel=MODELS,
        metavar="MODE",
        help="Kernels of our own for GGUF models: auto, compiled once where they can be, or off.",
    ),
]
Device = Annotated[
    str,
    option(
        "--device",
        panel=MODELS,
        metavar="NAME",
        help="Of a transformers model: cpu, cuda, cuda:1, mps or auto.",
    ),
]
Dtype = Annotated[
    str,
    option(
        "--dtype",
        panel=MODELS,
        metavar="TYPE",
        help="Of its weights: auto, as they are stored; float32, bfloat16 or float16.",
    ),
]
Attention = Annotated[
    str,
    option(
        "--attention",
        panel=MODELS,
        metavar="NAME",
        help="Its implementation in transformers: sdpa, eager, ...; auto: as it chooses.",
    ),
]
JsonSchema = Annotated[
    str | None,
    option("-j", "--json-schema", panel=GRAMMAR, metavar="SCHEMA", help="JSON that this schema allows."),
]
JsonSchemaFile = Annotated[
    Path | None,
    option("-jf", "--json-schema-file", panel=GRAMMAR, metavar="FILE", help="The same, from a file."),
]
Regex = Annotated[
    str | None,
    option("--regex", panel=GRAMMAR, metavar="PATTERN", help="Text that matches this as a whole."),
]
Drafters = Annotated[
    str | None,
    option(
        "--draft",
        panel=DRAFTING,
        metavar="NAMES",
        help=f"auto (the default): {DRAFTERS['auto'].about}. Or names, in the order they are called: "
        + ", ".join(f"{row.name} ({row.about})" for row in DRAFTERS.values() if row.name != "auto")
        + ".",
    ),
]
Seed = Annotated[
    int | None,
    option(
        "--seed",
        panel=SAMPLING,
        metavar="N",
        help="The same seed draws the same text. Default: one by chance, which is printed.",
    ),
]
Corpora = Annotated[
    list[str] | None,
    option(
        "--corpus",
        panel=DRAFTING,
        metavar="NAME",
        from_environment=False,
        help="Draft from a corpus too (`paceline corpus`); may be repeated.",
    ),
]


def flash_attention(mode: str) -> bool | None:
    if mode not in FLASH_ATTENTION:
        raise UsageError(f"--flash-attn {mode}: choose from {', '.join(FLASH_ATTENTION)}")
    return FLASH_ATTENTION[mode]


def kernels(mode: str) -> str:
    from paceline.engines.openers import KERNELS

    if mode not in KERNELS:
        raise UsageError(f"--kernels {mode}: choose from {', '.join(KERNELS)}")
    return mode


def seed_for(given: int | None, sampling: Sampling) -> tuple[int, bool]:
    """The request's seed, and whether chance chose it: only where tokens are drawn."""
    require_seed(given)
    if given is not None or sampling.greedy:
        return given or 0, False
    return secrets.randbelow(1 << 32), True


def require_seed(given: int | None) -> None:
    if given is not None and given < 0:
        raise UsageError(f"--seed {given}: must be at least 0")


def by_chance(seed: int) -> str:
    return f"seed {seed} (by chance; --seed {seed} draws the same again)"


def require_command(context: typer.Context) -> None:
    """Without a command: what there is, and exit code 2."""
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)


def read_prompt(argument: str | None, option_: str | None, file: Path | None) -> str:
    """The prompt from exactly one place: the argument, -p, -f, the environment, or stdin ("-", or none)."""
    if argument is None and option_ is None and file is None:
        option_ = os.environ.get(variable("--prompt"))
        file = Path(os.environ[variable("--file")]) if variable("--file") in os.environ else None
    if sum(x is not None for x in (argument, option_, file)) > 1:
        raise UsageError("more than one prompt: give it as an argument, with -p, with -f or on stdin")
    text = argument if argument is not None else option_
    if file is not None and str(file) != "-":
        text, where = read_text(file), f"{file}: the file"
    elif text is None or text == "-":
        text, where = _read_stdin(asked=text == "-" or file is not None), "stdin: the prompt"
    else:
        text, where = typed.text("the prompt", text), "the prompt"
    if not text:
        raise UsageError(f"{where} is empty: give some text to complete")
    return text


def read_schema(schema: str | None, file: Path | None) -> str | None:
    if schema is not None and file is not None:
        raise UsageError("more than one JSON schema: give it as text (-j) or as a file (-jf)")
    if file is not None:
        return read_text(file)
    return schema if schema is None else typed.text("the JSON schema", schema)


def read_prompts(file: Path) -> list[str]:
    """A prompt a line, as text or (.jsonl) as an object with a "prompt"."""
    prompts = []
    # Not splitlines(), which also splits at form feeds and other characters that a prompt may hold.
    for number, line in enumerate(read_text(file).removesuffix("\n").split("\n"), 1):
        where, text = f"{file}, line {number}", line.removesuffix("\r")
        if file.suffix == ".jsonl" and text.strip():
            try:
                text = json.loads(text)["prompt"]
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise UsageError(f'{where}: is no JSON object with a "prompt"') from error
            if not isinstance(text, str):
                raise UsageError(f'{where}: its "prompt" is no text')
        if not text.strip():
            raise UsageError(f"{where}: is empty; give a prompt in every line")
        prompts.append(typed.text(where, text))
    return prompts


def _read_stdin(*, asked: bool) -> str:
    if sys.stdin is None or (not asked and sys.stdin.isatty()):
        raise UsageError("no prompt: give it as an argument, with -p, with -f FILE or on stdin")
    return read_stdin()
