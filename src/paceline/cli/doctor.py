"""`paceline doctor`: what this machine has, what passes cost on it, and why drafting loses."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

from paceline.cli import doctor_machine, options
from paceline.cli.groups import MODEL_OPTIONS, takes
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import flag, option
from paceline.cli.output import note, print_json
from paceline.cli.references import resolve_models
from paceline.speculative.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from paceline.hardware.probe import Hardware

MEASURING = "Measuring"
STEPS = 100  # of a progress bar


@takes(models=MODEL_OPTIONS)
def doctor(
    *,
    models: Any,
    depths: Annotated[
        str, option(MEASURING, "--depths", "N,...", "Tokens of context that passes come after.")
    ] = "256,1024",
    rows: Annotated[str, option(MEASURING, "--rows", "N,...", "Tokens of a pass. Default: 1 to 64.")] = "",
    seconds: Annotated[float, option(MEASURING, "--seconds", "X", "Time for the target, about.")] = 10.0,
    again: Annotated[bool, flag(MEASURING, "--again", "Measure what was measured before.")] = False,
    measure: Annotated[
        bool, flag(MEASURING, "--measure", "Try numbers of threads, and flash attention.")
    ] = False,
    as_json: options.AsJson = False,
) -> int:
    """Tell what this machine has for decoding, what a pass of a model costs on it by the number of tokens in
    it, and why drafts would lose.

    Passes are what drafts are verified in: the table tells how often they have to be right to pay. What is
    found is kept, and drafting decides by it.
    """
    if not 0.0 < seconds < math.inf:
        raise UsageError(f"--seconds {seconds}: must be above 0")
    models = resolve_models(models)

    from paceline.speculative.policy.cost_measurement import ROWS
    from paceline.storage.costs import MeasurementEffort

    effort = MeasurementEffort(seconds, depths_of(depths), numbers(rows, "--rows") if rows else ROWS)
    hardware = doctor_machine.look(models["target"], models["threads"], models["kernels"], again)
    record = {"hardware": hardware.as_dict()}
    try:
        record |= _examined(models, hardware, effort, again, measure, as_json)
    except MissingExtraError:  # without an engine the machine can be told of, and nothing else
        if as_json:
            print_json(record)
        else:
            doctor_machine.show(hardware)
        raise
    if as_json:
        print_json(record)
    else:
        from paceline.report.costs import write

        write(record, sys.stdout)
        doctor_machine.write(record)
    if record["kept"]:
        said = " and ".join(record["kept"])
        note(f"{said}: as measured before and updated by use; --again measures anew")
    return 0


def _examined(
    models: dict[str, Any], hardware: Hardware, effort: Any, again: bool, measure: bool, as_json: bool
) -> dict[str, Any]:
    """What `--json` prints of the models. as_json: nothing is shown before all is known."""
    from paceline.backends.interface import ThreadSwitch
    from paceline.cli.progress import progress
    from paceline.doctor import gathering, thread_trials
    from paceline.doctor.stored_costs import WITHOUT, compares, examine
    from paceline.loading import load
    from paceline.profiling import flash_attention as attention
    from paceline.profiling.pass_costs import to_stderr

    # By name, so that nothing is measured on loading. A target that nothing can be drafted for has costs,
    # too, and so has a draft of another vocabulary.
    if doctor_machine.is_stateful(models["target"]):
        models |= {"draft": None}
    alone = models["target"] is not None and models["draft"] is None
    drafting: dict[str, Any] = {"drafters": "none"} if alone else {"drafters": "model", "cross_vocab": "auto"}
    with Interrupts() as interrupts, load(**models, **drafting) as llm:
        if not as_json:
            doctor_machine.show(hardware)
        tries = measure and isinstance(llm.target, ThreadSwitch)
        counts = thread_trials.counts_for(hardware.cores, hardware.limits) if tries else []
        attends = measure and doctor_machine.may_choose(llm.target)
        stages = {"target": True, thread_trials.STAGE: bool(counts), attention.STAGE: attends}
        stages[WITHOUT] = compares(llm.target)
        work = {stage: STEPS for stage, wanted in stages.items() if wanted}
        if llm.draft is not None:
            work |= {"draft": STEPS, gathering.RUN: gathering.TICKS}
        with progress(work, interrupts) as tick:
            tell = in_steps(tick)
            record = examine(llm, effort, to_stderr, tell, again=again).as_dict()
            record |= {
                "trials": doctor_machine.try_threads(llm, counts, tell) if counts else None,
                "attention": doctor_machine.try_attention(llm.target, tell) if attends else None,
            }
            return record | {"diagnosis": doctor_machine.diagnose(llm, hardware, record, tick)}


def in_steps(tick: Callable[[str], None]) -> Callable[[str, float], None]:
    """A progress bar's tick for each percent that is over."""
    done: Counter[str] = Counter()

    def tell(role: str, share: float) -> None:
        while done[role] < int(share * STEPS):
            done[role] += 1
            tick(role)

    return tell


def depths_of(text: str) -> tuple[int, ...]:
    from paceline.speculative.policy.cost_model import bucket

    depths = numbers(text, "--depths")
    for a, b in pairwise(sorted(depths)):
        if bucket(a) == bucket(b):
            raise UsageError(f"--depths {text}: {a} and {b} are too much alike; keep a factor of two")
    return depths


def numbers(text: str, flag: str) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        found = ()
    if not found or found[0] < 1:
        raise UsageError(f"{flag} {text}: write whole numbers of at least 1, such as 1,2,4,8")
    return found
