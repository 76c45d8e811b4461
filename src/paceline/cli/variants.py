"""`paceline views`, `transplant`, `experts` and `prefill`: variants of a model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from paceline.cli import groups, options
from paceline.cli.groups import OptionGroup, option_table, with_option_groups
from paceline.cli.help import GroupedCommand
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import OUTPUT, argument, flag, model_file, option
from paceline.cli.output import print_json, print_note, print_record, strict_json
from paceline.cli.references import file_option, resolve_models
from paceline.cli.texts import read_text
from paceline.settings import LoadOptions
from paceline.speculative.errors import UsageError
from paceline.speculative.validation import read_numbers

TYPES = "Type of the new rows: F32, F16, BF16, Q8_0 or Q4_0. Default: the draft's; K-quants become Q8_0."
TIED = "One matrix for embeddings and output (--no-tied: two). Default: two, where llama.cpp can."
MEASURING = "Measuring"
SUITE = ("--suite", "SUITE", "A suite of prompts, as for `paceline bench`.")
app = options.command_group(
    "Parts of a model that draft for it: early exits, and selections of blocks.",
    short_help="Find parts of a model that draft for it.",
)
PLAN_OPTIONS = OptionGroup(option_table(
    "Search",
    ("blocks", int, 0, "--blocks", "N", "Blocks to leave out, two a layer; 0 tries several."),
    ("tries", int, 60, "--tries", "N", "Most views to judge.", 1),
    ("items", int, 5, "--items", "N", "Answers to search by, and as many to report.", 1),
    ("n", int, 48, "-n --n-predict", "N", "Tokens of each.", 1),
    ("suite", str, "real", "--suite", "SUITE", "A suite, as for `paceline bench`."),
    env=False,
))  # fmt: skip


@app.command(cls=GroupedCommand, short_help="Find the part of a model that drafts best for it.")
@with_option_groups(models=groups.DEVICE_OPTIONS, search_plan=PLAN_OPTIONS)
def search(*, models: Any, search_plan: Any, as_json: options.AsJson = False) -> None:
    """Search for the blocks that a draft can leave out, and store the best view for `-md view:`.

    The model answers prompts of a suite. The first half of the answers judges views, the second half reports
    the best view. For transformers models (hf:FILE reads a GGUF file with transformers). Ctrl-C ends the
    search with the best view so far."""
    from paceline.prepare.views import search_views
    from paceline.report.variants import write_view

    run(search_views, models, search_plan, write_view, as_json)


@app.command(cls=GroupedCommand, short_help="Write a part of a GGUF model to a file.")
def materialise(
    out: Annotated[Path, argument("OUT", "The GGUF file to write.")],
    model: Annotated[Path, model_file("-m --model", "The GGUF file.")],
    view: Annotated[str, option(OUTPUT, "--view", "VIEW", "exit=N or skip=N: whole layers.", env=False)],
    force: options.Force = False,
) -> None:
    """Write a GGUF file with some layers of a model, for llama.cpp to load as a draft model (-md).

    Unlike a view it has a separate cache and a copy of the weights. The path of the complete file goes to
    stdout."""
    from paceline.backends.views import parse_view
    from paceline.cli.progress import UNKNOWN, progress
    from paceline.models.headers.gguf_file import GGUFFile
    from paceline.models.headers.gguf_writer import layer_count, shorten
    from paceline.models.names import VIEW_PREFIX

    n = layer_count(GGUFFile(model))
    chosen = parse_view(f"{VIEW_PREFIX}{view.removeprefix(VIEW_PREFIX)}", n)
    blocks = None if chosen is None else chosen.active_blocks(n)
    if blocks is None or blocks[0] != blocks[1]:
        whole = "an even number of blocks, or the same layers for attention and feed_forward"
        raise UsageError(f"--view {view}: write exit=N or skip=N; llama.cpp runs whole layers: {whole}")
    with Interrupts() as interrupts, progress({"tensors": UNKNOWN}, interrupts) as tick:
        size = shorten(model, out, blocks[0], force=force, tick=lambda: tick("tensors"))
    print_note(f"{len(blocks[0])} of {n} layers, {size / 1e6:,.1f} MB")
    typer.echo(str(out))


EXPERTS_OPTIONS = OptionGroup(option_table(
    MEASURING,
    ("experts", str, "", "--experts", "N,M", "Numbers of experts a token. Default: all below the model's."),
    ("file", Path | None, None, "-f --file", "FILE", "A text for perplexity. Default: the answers."),
    ("tokens", int, 512, "--tokens", "N", "Most tokens of the text.", 2),
    ("suite", str, "real", *SUITE),
    ("items", int, 4, "--items", "N", "Answers with each number and drafter.", 1),
    ("n", int, 64, "-n --n-predict", "N", "Tokens of each.", 1),
    ("bound", float, 0.02, "--max-rise", "X", "Most rise of perplexity that is recommended.", 0),
    env=False,
))  # fmt: skip
PREFILL_OPTIONS = OptionGroup(option_table(
    MEASURING,
    ("shares", str, "0.5,0.3,0.2,0.1", "--shares", "X,Y", "Shares of each prompt to compute."),
    ("suite", str, "real-grounded", *SUITE),
    ("items", int, 8, "--items", "N", "Prompts.", 1),
    ("n", int, 64, "-n --n-predict", "N", "Tokens of each answer.", 1),
    ("bound", float, 0.9, "--min-agreement", "X", "Least share of likeliest tokens that stay so.", 0, 1),
    env=False,
))  # fmt: skip


def transplant(
    draft: Annotated[Path, argument("DRAFT", "The draft model.", callback=file_option)],
    vocab_of: Annotated[Path, model_file("--vocab-of", "The model it is to draft for.")],
    out: Annotated[Path, option(OUTPUT, "-o --out", "FILE", "The GGUF file to write.", env=False)],
    ftype: Annotated[str | None, option(OUTPUT, "--type", "TYPE", TYPES, env=False)] = None,
    tied: Annotated[bool | None, flag(OUTPUT, "--tied", TIED)] = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Give a draft model another model's vocabulary, so that it can draft for it without --cross-vocab.

    The row of each token combines the rows of the draft's tokens that spell it; a shared token keeps its row.
    All other weights stay. Only the target's vocabulary is read. The path of the complete file goes to
    stdout. A little training improves the draft (docs/transplant.md)."""
    from paceline.cli.progress import progress
    from paceline.prepare.transplant import Transplant
    from paceline.system.atomic import check_output

    check_output(out, draft, vocab_of, force=force)  # before anything large is read
    with (
        Interrupts() as interrupts,
        Transplant(draft, vocab_of, new_type=ftype, tied=tied) as made,
        progress(made.steps, interrupts) as tick,
    ):
        report = made.write(out, force=force, tick=tick)
    if as_json:
        print_json(report)
        return
    matrices = "one matrix" if report["tied"] else "two matrices"
    print_note(
        "{vocab:,} tokens: {same:,} of the draft's own, {spelled:,} made of {pieces:.1f} pieces, {special:,} "
        "control tokens it knows, {silent:,} it does not; {type}, ".format(**report)
        + f"{matrices}, {report['size'] / 1e6:,.1f} MB"
    )
    typer.echo(report["out"])


@with_option_groups(models=groups.LOSSLESS_OPTIONS, plan=EXPERTS_OPTIONS)
def experts(*, models: Any, plan: Any, as_json: options.AsJson = False) -> None:
    """Measure a mixture of experts with fewer experts a token: speed, perplexity, agreement.

    Plain decoding, prompt lookup and, with -md, a draft model are measured with each number, and the fastest
    within --max-rise is recommended. Fewer experts change what the model says (--lossy experts=N)."""
    from paceline.prepare.lossy import measure_experts
    from paceline.report.variants import write_experts

    counts, file = read_numbers(int, "--experts", plan.pop("experts")), plan.pop("file")
    plan |= {"counts": counts, "text": read_text(file) if file else "", "text_tokens": plan.pop("tokens")}
    run(measure_experts, models, plan, write_experts, as_json, "experts")


@with_option_groups(models=groups.LOSSLESS_OPTIONS, plan=PREFILL_OPTIONS)
def prefill(*, models: Any, plan: Any, as_json: options.AsJson = False) -> None:
    """Measure speculative prefill: the target computes only what the draft model attends to in a prompt.

    Time to the first token and what is left of the whole prompt's answers are measured for each share, and
    the soonest within --min-agreement is recommended. This changes what the model says (--lossy prefill=X).
    """
    from paceline.prepare.lossy import measure_prefill
    from paceline.report.variants import write_prefill

    plan["shares"] = read_numbers(float, "--shares", plan["shares"])
    run(measure_prefill, models, plan, write_prefill, as_json, "prefill")


def run(
    measure: Callable[..., dict[str, Any]],
    models: LoadOptions,
    plan: Mapping[str, Any],
    write: Callable[[Mapping[str, Any], IO[str]], None],
    as_json: bool,
    kind: str = "",
) -> None:
    """Measure under progress bars, and print the record. kind: the folder of the record's file, which
    a page shows; without, Ctrl-C ends the measurement with what there is."""
    from paceline.cli.progress import progress
    from paceline.system.home import home, write_atomic

    with ExitStack() as drawn:
        interrupts = drawn.enter_context(Interrupts())

        def begin(work: Mapping[str, int]) -> Callable[[str], None]:
            return drawn.enter_context(progress(work, interrupts, at_end=bool(kind)))

        record = measure(resolve_models(models), begin, **plan)
    print_record(record, as_json, write)
    if kind:
        path = home() / kind / f"{datetime.now():%Y-%m-%dT%H-%M-%S-%f}.json"
        try:
            write_atomic(path, json.dumps(strict_json(record)))
        except OSError as error:
            print_note(f"{path}: cannot be written ({error.strerror}); --json prints the record")
        else:
            print_note(f"as a page: paceline report {shlex.quote(str(path))} -o report.html")
