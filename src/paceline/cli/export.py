"""`paceline export` and `paceline import`: settings for other engines, and from them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from paceline.cli import groups, options
from paceline.cli.groups import OptionGroup, option_table, with_option_groups
from paceline.cli.options import MODELS, OUTPUT, argument, option
from paceline.cli.output import print_note
from paceline.cli.texts import read_text
from paceline.speculative.errors import UsageError

MODEL = groups.model_options("target")
EXPORTED = groups.model_options(
    "target", "draft", "n_ctx", "threads", "gpu_layers", "flash_attention", "cache_type"
)
EXPORT_OPTIONS = OptionGroup(option_table(
    OUTPUT,
    ("to", str, ..., "--to", "ENGINE", "The engine, such as llama-server, vllm, transformers or ollama."),
    ("version", str, "", "--engine-version", "V", "Its version (0.9.2, b8955). Default: the newest."),
    ("form", str, "", "--format", "FORM", "command, json, python, yaml or modelfile. Default: the engine's."),
    ("profile", str, "", "--profile", "NAME", "Settings of `paceline tune`. Default: none."),
    env=False,
))  # fmt: skip
Out = Annotated[Path | None, option(OUTPUT, "-o --out", "FILE", "Write a file. Default: stdout.", env=False)]


@with_option_groups(models=EXPORTED, drafting=groups.DRAFTING_OPTIONS, asked=EXPORT_OPTIONS)
def export(
    *,
    models: Any,
    drafters: options.Drafters = None,
    drafting: Any,
    corpora: options.Corpora = None,
    asked: Any,
    out: Out = None,
    force: options.Force = False,
) -> int:
    """Write the settings as another engine's own: a command, a file or a program.

    What the engine cannot do is refused, and so is what changes the text."""
    if models.target is None:
        raise UsageError("no model: name it (-m)")
    loading = groups.with_drafting(models, drafters, drafting, corpora=corpora, profile=asked["profile"])
    from paceline.integrations.export import exported, not_passed_on, request_of
    from paceline.system.whole import write_output

    request = request_of(loading, version=asked["version"])
    text = exported(asked["to"], request, asked["form"]) + "\n"
    if rest := not_passed_on(asked["to"], request):
        print_note(f"left to {asked['to']}: {', '.join(rest)}")
    if out is None:
        sys.stdout.write(text)
    else:
        with write_output(out, force=force) as part:
            part.write_text(text, "utf-8")
    return 0


@with_option_groups(models=MODEL)
def import_(
    *,
    source: Annotated[list[str], argument("SOURCE...", "A text, a file, - (stdin), or after -- a command.")],
    engine: Annotated[str, option(MODELS, "--from", "ENGINE", "vllm or llama-server.", env=False)],
    models: Any,
    save: Annotated[
        str | None, option(OUTPUT, "--save", "NAME", "Store a profile for -m.", env=False)
    ] = None,
) -> int:
    """Print the options of `paceline run` that mean the same as vLLM's configuration or llama-server's flags.

    What has no counterpart is named."""
    from paceline import plan
    from paceline.integrations.export.reading import imported
    from paceline.settings import LoadOptions
    from paceline.storage.profiles import ANY_TASK, Profile, as_options

    if source == ["-"]:
        source = [sys.stdin.read()]
    elif len(source) == 1 and len(source[0]) < 256 and Path(source[0]).is_file():
        source = [read_text(Path(source[0]))]
    settings, rest = imported(engine, source)
    if models.target is not None:
        settings["target"] = str(models.target)
    checked = LoadOptions.of(**settings)
    for one in rest:
        print_note(f"no counterpart: {one}")
    print(f"paceline run {as_options(settings)}")
    if save is not None:
        if (name := settings.pop("target", None)) is None:
            raise UsageError("--save stores a profile for a model: name it (-m)")
        target = {"name": name, "fingerprint": plan.target_fingerprint(checked)}
        Profile(save, ANY_TASK, target, plan.machine(), settings).save()
        print_note(f"saved: --profile {save} with -m {name}")
    return 0
