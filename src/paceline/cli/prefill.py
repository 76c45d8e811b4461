"""`paceline prefill`: answers from a part of the prompt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from paceline.cli import options
from paceline.cli.groups import LOSSLESS_OPTIONS, OptionGroup, option_table, with_option_groups
from paceline.cli.interrupts import Interrupts
from paceline.cli.output import print_json
from paceline.cli.references import resolve_models
from paceline.speculative.errors import UsageError

PLAN_OPTIONS = OptionGroup(option_table(
    "Measuring",
    ("shares", str, "0.5,0.3,0.2,0.1", "--shares", "X,Y", "Shares of each prompt to compute."),
    ("suite", str, "real-grounded", "--suite", "SUITE", "Prompts, as for `paceline bench`."),
    ("items", int, 8, "--items", "N", "Prompts.", 1),
    ("n", int, 64, "-n --n-predict", "N", "Tokens of each answer.", 1),
    ("bound", float, 0.9, "--min-agreement", "X",
     "Least share of the answers' tokens that stay the likeliest with a recommended part.", 0),
    env=False,
))  # fmt: skip


@with_option_groups(models=LOSSLESS_OPTIONS, plan=PLAN_OPTIONS)
def prefill(*, models: Any, plan: Any, as_json: options.AsJson = False) -> None:
    """Measure speculative prefill: the target computes only what the draft model attends to in a prompt.

    Time to the first token and what is left of the whole prompt's answers are measured for each share, and
    the soonest within --min-agreement is recommended. This changes what the model says (--lossy prefill=X).
    """
    from paceline.cli.progress import progress
    from paceline.prepare.prefill import PrefillPlan, measure_prefill

    try:
        shares = tuple(float(part) for part in plan.pop("shares").split(","))
    except ValueError:
        raise UsageError("--shares: write numbers with commas between them") from None
    with ExitStack() as drawn:
        interrupts = drawn.enter_context(Interrupts())

        def begin(work: Mapping[str, int]) -> Callable[[str], None]:
            return drawn.enter_context(progress(dict(work), interrupts))

        record = measure_prefill(resolve_models(models), PrefillPlan(shares, **plan), begin)
    if as_json:
        print_json(record)
        return
    from paceline.report.prefill import write

    write(record, sys.stdout)
