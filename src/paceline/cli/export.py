"""`paceline export` and `paceline import`: settings for other engines, and from them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from paceline.cli import groups, options
from paceline.cli.groups import OptionGroup, option_table, with_option_groups
from paceline.cli.options import OUTPUT, argument
from paceline.cli.output import print_note
from paceline.cli.texts import read_text
from paceline.speculative.errors import UsageError

MODEL = groups.model_options("target")
RUN = ("threads", "gpu_layers", "flash_attention", "cache_type")
EXPORTED = groups.model_options("target", "draft", "n_ctx", *RUN)
EXPORT_OPTIONS = OptionGroup(option_table(
    OUTPUT,
    ("to", str, ..., "--to", "ENGINE", "The engine, such as llama-server, vllm, transformers or ollama."),
    ("version", str, "", "--engine-version", "V", "Its version (0.9.2, b8955). Default: the newest."),
    ("form", str, "", "--format", "FORM", "command, json, python, yaml or modelfile. Default: the engine's."),
    ("profile", str, "", "--profile", "NAME", "Settings of `paceline tune`. Default: none."),
    ("out", Path | None, None, "-o --out", "FILE", "Write a file. Default: stdout."),
    env=False,
))  # fmt: skip
IMPORT_OPTIONS = OptionGroup(option_table(
    OUTPUT,
    ("engine", str, ..., "--from", "ENGINE", "The engine: vllm or llama-server."),
    ("save", str | None, None, "--save", "NAME", "Store a profile for -m."),
    env=False,
))  # fmt: skip


@with_option_groups(models=EXPORTED, drafting=groups.DRAFTING_OPTIONS, output=EXPORT_OPTIONS)
def export(
    *, models: Any, drafters: options.Drafters = None, drafting: Any, corpora: options.Corpora = None,
    output: Any, force: options.Force = False,
) -> int:  # fmt: skip
    """Write the settings as another engine's own: a command, a file or a program.

    What the engine cannot do is refused, and so is what changes the text."""
    if models.target is None:
        raise UsageError("no model: name it (-m)")
    loading = groups.with_drafting(models, drafters, drafting, corpora=corpora, profile=output["profile"])
    from paceline.integrations.export import exported, llama, request_of
    from paceline.system.atomic import check_output

    request = request_of(loading, version=output["version"])
    text = exported(output["to"], request, output["form"]) + "\n"
    known = llama.RUN_FLAGS if output["to"].startswith("llama") else ()
    if rest := sorted(request.engine_options.keys() - known):
        print_note(f"left to {output['to']}, as it is how Paceline runs a model: {', '.join(rest)}")
    if output["out"] is None:
        sys.stdout.write(text)
    else:
        check_output(output["out"], force=force)
        output["out"].write_text(text, "utf-8")
    return 0


@with_option_groups(output=IMPORT_OPTIONS, models=MODEL)
def import_(
    *, source: Annotated[list[str], argument("SOURCE", "A text, a file, - (stdin), or after -- a command.")],
    output: Any, models: Any,
) -> int:  # fmt: skip
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
    settings, rest = imported(output["engine"], source)
    settings |= {} if models.target is None else {"target": str(models.target)}
    checked = LoadOptions.of(**settings)
    for item in rest:
        print_note(f"no counterpart: {item}")
    print(f"paceline run {as_options(settings)}")
    if output["save"] is not None:
        if (name := settings.pop("target", None)) is None:
            raise UsageError("--save stores a profile for a model: name it (-m)")
        target = {"name": name, "fingerprint": plan.target_fingerprint(checked)}
        Profile(output["save"], ANY_TASK, target, plan.machine(), settings).save()
        print_note(f"saved: --profile {output['save']} with -m {name}")
    return 0
