"""`paceline experts` and `paceline prefill`: what lossy choices gain and cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from paceline.cli import options
from paceline.cli.groups import LOSSLESS_OPTIONS, OptionGroup, option_table, with_option_groups
from paceline.cli.interrupts import Interrupts
from paceline.cli.output import print_record
from paceline.cli.references import resolve_models
from paceline.cli.texts import read_text
from paceline.settings import LoadOptions
from paceline.speculative.validation import read_numbers

SUITE = ("--suite", "SUITE", "A suite of prompts, as for `paceline bench`.")
EXPERTS_OPTIONS = OptionGroup(option_table(
    "Measuring",
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
    "Measuring",
    ("shares", str, "0.5,0.3,0.2,0.1", "--shares", "X,Y", "Shares of each prompt to compute."),
    ("suite", str, "real-grounded", *SUITE),
    ("items", int, 8, "--items", "N", "Prompts.", 1),
    ("n", int, 64, "-n --n-predict", "N", "Tokens of each answer.", 1),
    ("bound", float, 0.9, "--min-agreement", "X", "Least share of likeliest tokens that stay so.", 0, 1),
    env=False,
))  # fmt: skip


@with_option_groups(models=LOSSLESS_OPTIONS, plan=EXPERTS_OPTIONS)
def experts(*, models: Any, plan: Any, as_json: options.AsJson = False) -> None:
    """Measure a mixture of experts with fewer experts a token: speed, perplexity, agreement.

    Plain decoding, prompt lookup and, with -md, a draft model are measured with each number, and the fastest
    within --max-rise is recommended. Fewer experts change what the model says (--lossy experts=N)."""
    from paceline.prepare.experts import measure_experts
    from paceline.report.variants import write_experts

    counts, file = read_numbers(int, "--experts", plan.pop("experts")), plan.pop("file")
    plan |= {"counts": counts, "text": read_text(file) if file else "", "text_tokens": plan.pop("tokens")}
    run(measure_experts, models, plan, write_experts, as_json)


@with_option_groups(models=LOSSLESS_OPTIONS, plan=PREFILL_OPTIONS)
def prefill(*, models: Any, plan: Any, as_json: options.AsJson = False) -> None:
    """Measure speculative prefill: the target computes only what the draft model attends to in a prompt.

    Time to the first token and what is left of the whole prompt's answers are measured for each share, and
    the soonest within --min-agreement is recommended. This changes what the model says (--lossy prefill=X).
    """
    from paceline.prepare.prefill import measure_prefill
    from paceline.report.variants import write_prefill

    plan["shares"] = read_numbers(float, "--shares", plan["shares"])
    run(measure_prefill, models, plan, write_prefill, as_json)


def run(
    measure: Callable[..., dict[str, Any]],
    models: LoadOptions,
    plan: Mapping[str, Any],
    write: Callable[[Mapping[str, Any], IO[str]], None],
    as_json: bool,
    *,
    at_end: bool = True,
) -> None:
    """Measure under progress bars, and print the record. at_end: see progress."""
    from paceline.cli.progress import progress

    with ExitStack() as drawn:
        interrupts = drawn.enter_context(Interrupts())

        def begin(work: Mapping[str, int]) -> Callable[[str], None]:
            return drawn.enter_context(progress(work, interrupts, at_end=at_end))

        record = measure(resolve_models(models), begin, **plan)
    print_record(record, as_json, write)
