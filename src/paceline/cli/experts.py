"""`paceline experts`: a mixture of experts with fewer experts a token."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from paceline.cli import options
from paceline.cli.groups import LOSSLESS_OPTIONS, OptionGroup, option_table, with_option_groups
from paceline.cli.interrupts import Interrupts
from paceline.cli.output import print_json
from paceline.cli.references import resolve_models
from paceline.cli.texts import read_text
from paceline.speculative.errors import UsageError

PLAN_OPTIONS = OptionGroup(option_table(
    "Measuring",
    ("experts", str, "", "--experts", "N,M", "Numbers of experts a token. Default: all below the model's."),
    ("file", Path | None, None, "-f --file", "FILE",
     "A text to measure perplexity on. Default: prompts of the suite with the model's answers."),
    ("tokens", int, 512, "--tokens", "N", "Most tokens of the text.", 2),
    ("suite", str, "real", "--suite", "SUITE", "A suite of prompts, as for `paceline bench`."),
    ("items", int, 4, "--items", "N", "Answers with each number and drafter.", 1),
    ("n", int, 64, "-n --n-predict", "N", "Tokens of each.", 1),
    ("bound", float, 0.02, "--max-rise", "X", "Most rise of perplexity that is recommended.", 0),
    env=False,
))  # fmt: skip


@with_option_groups(models=LOSSLESS_OPTIONS, plan=PLAN_OPTIONS)
def experts(*, models: Any, plan: Any, as_json: options.AsJson = False) -> None:
    """Measure a mixture of experts with fewer experts a token: speed, perplexity, agreement.

    Plain decoding, prompt lookup and, with -md, a draft model are measured with each number, and the fastest
    within --max-rise is recommended. Fewer experts change what the model says (--lossy experts=N).
    """
    from paceline.cli.progress import progress
    from paceline.prepare.experts import ExpertsPlan, measure_experts

    file, counts = plan.pop("file"), plan.pop("experts")
    try:
        numbers = tuple(int(part) for part in counts.split(",")) if counts else ()
    except ValueError:
        raise UsageError(f"--experts {counts}: write numbers with commas between them") from None
    text_tokens = plan.pop("tokens")
    chosen = ExpertsPlan(numbers, read_text(file) if file else "", text_tokens, **plan)
    with ExitStack() as drawn:
        interrupts = drawn.enter_context(Interrupts())

        def begin(work: Mapping[str, int]) -> Callable[[str], None]:
            return drawn.enter_context(progress(dict(work), interrupts))

        record = measure_experts(resolve_models(models), chosen, begin)
    if as_json:
        print_json(record)
        return
    from paceline.report.experts import write

    write(record, sys.stdout)
