"""`paceline train`: train a draft head on the target's own answers."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from paceline.cli import groups, options
from paceline.cli.groups import OptionGroup, option_table, setting_options, with_option_groups
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import OUTPUT, argument, option
from paceline.cli.output import print_json, print_note
from paceline.cli.references import resolve_models
from paceline.prepare.training.options import TrainingOptions
from paceline.speculative.validation import read_numbers

DATA, TRAINING = "Data", "Training"
Kind = Literal[
    "medusa", "eagle", "eagle3", "block", "exits", "kangaroo", "mtp", "draft", "pard", "confidence"
]  # fmt: skip
KINDS = (
    "medusa, eagle, eagle3, block (DFlash, DSpark), exits, kangaroo, mtp (a layer in the model's GGUF file), "
    "draft (a small Llama), pard (a Llama that drafts several tokens in a pass) or confidence (for -md)."
)
RENAMED = {"max_tokens": "-n --n-predict", "learning_rate": "--lr", "variation": "--tv"}
RENAMED |= {"use_cache": "--cache"}
DATA_OPTIONS = OptionGroup([*option_table(
    DATA,
    ("data", list[Path] | None, None, "--data", "FILE",
     "Prompts: JSON lines, texts or folders of them; may be repeated. The target answers them itself."),
    ("suite", str, "", "--suite", "NAME", "Prompts of a suite, as for `paceline bench`."),
    ("held_out", float, 0.05, "--held-out", "X", "Share of the prompts that are only evaluated on.",
     0.001, 0.999),
    ("sessions", int, 8, "--sessions", "N", "Answers decoded at the same time.", 1),
    ("cache", Path | None, None, "--cache-dir", "FOLDER",
     "Folder of the answers and hidden states, which several heads can share. (default: that of the head)"),
    env=False,
), *setting_options(
    DATA, TrainingOptions, "max_tokens", "temperature", "answer_minutes", renamed=RENAMED, env=False
)])  # fmt: skip
TRAINING_OPTIONS = OptionGroup([*option_table(
    TRAINING,
    ("exit_layers", str, "", "--exit-layers", "I,J",
     "First layers of the model that draft (exits, kangaroo): their numbers, each with an adapter."),
    env=False,
), *setting_options(
    TRAINING, TrainingOptions, "epochs", "minutes", "learning_rate", "batch_tokens", "seed", "depth",
    "layers", "width", "variation", "rank", "draft_vocab", "use_cache", renamed=RENAMED, env=False,
)])  # fmt: skip


@with_option_groups(models=groups.LOSSLESS_OPTIONS, data=DATA_OPTIONS, training=TRAINING_OPTIONS)
def train(
    *,
    kind: Annotated[Kind, argument("KIND", KINDS)],
    models: Any,
    data: Any,
    training: Any,
    out: Annotated[Path, option(OUTPUT, "-o --out", "FOLDER", "The head's folder (mtp: a file).", env=False)],
    as_json: options.AsJson = False,
) -> None:
    """Train a draft head for a model, which `-md FOLDER` then drafts with.

    The model answers the prompts, its hidden states are computed, and the head learns from both. The best
    head by acceptance length on held-out prompts stays in the folder. The same command goes on after Ctrl-C
    or a kill. It needs PyTorch: pip install 'paceline[hf]'."""
    from paceline.loading import load_options
    from paceline.prepare.training.options import make_options, require_torch
    from paceline.prepare.training.prompts import read_prompts

    train_kind: Callable[..., dict[str, Any]]
    if kind == "confidence":  # alone needs no PyTorch
        from paceline.prepare.training.confidence import train_confidence as train_kind
    else:
        require_torch()
        from paceline.prepare.training.train import train_head as train_kind
    files, suite, held_out = data.pop("data") or [], data.pop("suite"), data.pop("held_out")
    sessions = data.pop("sessions")
    training["exit_layers"] = read_numbers(int, "--exit-layers", training["exit_layers"])
    target, engine = models.target, replace(models.engine, sessions=sessions)
    models = resolve_models(replace(models, engine=engine))
    base = Path(models.draft) if kind in ("draft", "pard") and models.draft else None
    plan = make_options(kind, out, base=base, **data, **training)
    load: Callable[..., Any] = load_options
    if kind == "mtp":
        from paceline.prepare.training.mtp import load_trainable

        load = partial(load_trainable, options=plan)
    with plan.lock(), Interrupts() as interrupts, load(models) as llm:
        prompts = read_prompts(files, suite, chat=llm.has_chat_template, held_out=held_out)
        with stages(interrupts) as report:
            card = train_kind(llm, prompts, plan, report, print_note)
    if as_json:
        print_json(card)
        return
    found = card["acceptance"]
    if kind == "confidence":
        for name in ("score", "confidence"):
            print_note(f"{name:10}  log loss {found[name]['log_loss']:.3f}, AUC {found[name]['auc']:.3f}")
    else:
        rates = " ".join(f"{rate:.2f}" for rate in found["by_position"])
        length = f"acceptance length {found['length']:.2f} on held-out prompts"
        print_note(f"{length}; accepted by position: {rates}")
    given = [*(["-m", target] if target else []), "-md", card["path"]]
    if kind == "mtp":
        given = ["-m", card["path"]]
    print_note(f"as a page: paceline report {shlex.quote(card['path'])} -o report.html")
    print_note(f"to draft with it: {shlex.join(['paceline', 'run', *given])}")
    typer.echo(card["path"])


@contextmanager
def stages(interrupts: Interrupts) -> Iterator[Callable[[str, Any], None]]:
    """Yield a function that draws the progress of a stage; it raises KeyboardInterrupt after Ctrl-C."""
    from rich.progress import BarColumn

    from paceline.cli.progress import bars

    with bars("{task.description}", BarColumn(), "{task.fields[detail]}") as drawing:
        tasks: dict[str, Any] = {}
        interrupts.defer_first()

        def report(stage: str, progress: Any) -> None:
            interrupts.check()
            if stage not in tasks:
                tasks[stage] = drawing.add_task(stage, total=1.0, detail="")
            share, detail = describe(stage, progress)
            drawing.update(tasks[stage], completed=share, detail=detail)

        yield report


def describe(stage: str, progress: Any) -> tuple[float, str]:
    """Return the completed share of a stage, and what else is known."""
    if stage == "features":
        done, total = progress
        return done / max(1, total), f"{done}/{total}"
    if stage == "answers":
        left = progress.seconds_left
        time = "" if left is None else f", {timedelta(seconds=int(left))} left"
        share = progress.done / max(1, progress.total)
        return share, f"{progress.done}/{progress.total}, {progress.tokens_per_second:.0f} tokens/s{time}"
    best = f", acceptance length {progress.best:.2f}" if progress.best else ""
    return (
        progress.share,
        f"loss {progress.loss:.3f}{best}, {timedelta(seconds=int(progress.seconds_left))} left",
    )
