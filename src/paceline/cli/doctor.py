"""`paceline doctor`: what this machine has, what passes cost on it, and why drafting loses."""

from __future__ import annotations

import math
from typing import Annotated, Any

from paceline.cli import options
from paceline.cli.groups import MODEL_OPTIONS, with_option_groups
from paceline.cli.options import flag, option
from paceline.cli.output import print_json, print_note
from paceline.cli.references import resolve_models
from paceline.speculative.errors import MissingExtraError, UsageError

MEASURING = "Measuring"


@with_option_groups(models=MODEL_OPTIONS)
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

    from paceline.cli import doctor_machine
    from paceline.speculative.policy.cost_measurement import BATCH_SIZES
    from paceline.speculative.policy.cost_model import context_bucket
    from paceline.storage.costs import MeasurementEffort

    # Of context lengths that costs do not tell apart the longest is measured.
    lengths = tuple({context_bucket(n): n for n in numbers(depths, "--depths")}.values())
    effort = MeasurementEffort(seconds, lengths, numbers(rows, "--rows") if rows else BATCH_SIZES)
    hardware = doctor_machine.probe_hardware(models["target"], models["threads"], models["kernels"])
    record = {"hardware": hardware.as_dict()}
    try:
        record |= doctor_machine.examined(models, hardware, effort, again, measure, as_json)
    except MissingExtraError:  # without an engine the machine can be told of, and nothing else
        if as_json:
            print_json(record)
        else:
            doctor_machine.show(hardware)
        raise
    if as_json:
        print_json(record)
    else:
        doctor_machine.write(record)
    if record["kept"]:
        roles = " and ".join(record["kept"])
        print_note(f"{roles}: as measured before and updated by use; --again measures anew")
    return 0


def numbers(text: str, flag: str) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        found = ()
    if not found or found[0] < 1:
        raise UsageError(f"{flag} {text}: write whole numbers of at least 1, such as 1,2,4,8")
    return found
