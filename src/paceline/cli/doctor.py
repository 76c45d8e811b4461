"""`paceline doctor`: the machine's hardware, the cost of passes, and the reasons why drafting loses."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from paceline.cli import options
from paceline.cli.groups import DRAFTING_OPTIONS, MODEL_OPTIONS, OptionGroup, option_table, with_option_groups
from paceline.cli.interrupts import Interrupts
from paceline.cli.output import print_json, print_note, print_record
from paceline.cli.references import resolve_models
from paceline.settings import PLAIN, Drafting
from paceline.speculative.errors import MissingExtraError, UsageError
from paceline.speculative.validation import read_numbers

MEASURING = "Measuring"
MEASURING_OPTIONS = OptionGroup(option_table(
    MEASURING,
    ("context_lengths", str, "256,1024", "--context-lengths", "N,...", "Tokens in the cache before a pass."),
    ("rows", str, "", "--rows", "N,...", "Tokens of a pass. Default: 1 to 64."),
    ("seconds", float, 10.0, "--seconds", "X", "Time for the target, about."),
    ("system", bool, False, "--system", "", "Only the settings of the system that matter, and what to type."),
    ("checklist", bool, False, "--checklist", "", "Five checks of memory and drafts: measured, yes or no."),
    ("requests", Path | None, None, "--requests", "FILE",
     "Recorded requests (serve --record): are answers short, hot, prompts changed early?"),
    ("refresh", bool, False, "--refresh", "", "Measure again, in place of stored costs."),
))  # fmt: skip
CROSS_VOCAB = next(option for option in DRAFTING_OPTIONS.parameters if option.name == "cross_vocab")
CROSS_VOCAB_OPTION = OptionGroup([CROSS_VOCAB.replace(default="auto")])


@with_option_groups(models=MODEL_OPTIONS, drafting=CROSS_VOCAB_OPTION, measuring=MEASURING_OPTIONS)
def doctor(*, models: Any, drafting: Any, measuring: Any, as_json: options.AsJson = False) -> int:
    """Show the hardware, the cost of a pass by its number of tokens, and the reasons why drafts would lose.

    Drafts are verified in such passes: the table shows the acceptance rate from which they pay. The costs are
    stored, and drafting decides by them."""
    seconds, rows = measuring["seconds"], measuring["rows"]
    if not 0.0 < seconds < math.inf:
        raise UsageError(f"--seconds {seconds}: must be above 0")
    models = resolve_models(models)

    from paceline.cli.progress import STEPS, by_share, progress
    from paceline.doctor import checklist, diagnosis
    from paceline.hardware.probe import probe
    from paceline.loading import load_options
    from paceline.report import doctor as report
    from paceline.speculative.policy.costs import TOKEN_COUNTS, context_bucket
    from paceline.storage.costs import MeasurementEffort
    from paceline.system.home import to_stderr

    # Costs have one curve a bucket of context lengths: the longest in each is measured.
    given_lengths = numbers(measuring["context_lengths"], "--context-lengths")
    lengths = tuple({context_bucket(n): n for n in given_lengths}.values())
    effort = MeasurementEffort(seconds, lengths, numbers(rows, "--rows") if rows else TOKEN_COUNTS)
    if measuring["system"]:
        print_record(probe().as_dict(), as_json, report.write_settings)
        return 0
    if measuring["checklist"]:
        work = {diagnosis.RUN: diagnosis.TICKS}
        with Interrupts() as stop, load_options(models) as llm, progress(work, stop, at_end=False) as tick:
            checks = checklist.check(llm, probe(), tick)
        print_record({"checks": checks}, as_json, report.write_checks)
        return 0
    hardware = diagnosis.probe_hardware(models.target, models.engine.kernels)
    record = {"hardware": hardware.as_dict()}

    def show_hardware() -> None:
        if not as_json:
            report.write_hardware(record["hardware"], sys.stdout)
            print(flush=True)  # the rest takes a while

    for cause in diagnosis.before_loading(hardware, models):
        print_note(f"{cause.name}: {cause.evidence} -> {cause.remedy}")
    # Named drafters, unlike auto, measure nothing on loading.
    drafting = Drafting(drafters=("model",), cross_vocab=drafting["cross_vocab"])
    if models.target is not None and models.draft is None:
        drafting = PLAIN
    try:
        with Interrupts() as interrupts, load_options(replace(models, drafting=drafting)) as llm:
            show_hardware()
            drafted = {} if llm.draft is None else {"draft": STEPS, diagnosis.RUN: diagnosis.TICKS}
            with progress({"target": STEPS, **drafted}, interrupts) as tick:
                again = measuring["refresh"]
                record |= diagnosis.report_costs(llm, effort, to_stderr, by_share(tick), again=again)
                record["diagnosis"] = diagnosis.diagnose_models(
                    llm, hardware, record, tick, measuring["requests"]
                )
    except MissingExtraError:  # without an engine only the hardware is known
        show_hardware()
        if as_json:
            print_json(record)
        raise
    print_record(record, as_json, report.write)
    if record["stored"]:
        roles = " and ".join(record["stored"])
        print_note(f"{roles}: as measured before and updated by use; --refresh measures anew")
    return 0


def numbers(text: str, flag: str) -> tuple[int, ...]:
    """Return the sorted numbers of a comma-separated list. Raises UsageError."""
    values = read_numbers(int, flag, text)
    if min(values, default=0) < 1:
        raise UsageError(f"{flag} {text}: write whole numbers of at least 1, such as 1,2,4,8")
    return tuple(sorted(set(values)))
