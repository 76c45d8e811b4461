"""`paceline certify`: is drafted output plain output, on this machine, with these models?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from paceline.cli import options
from paceline.cli.groups import drafting, models, sampling, takes
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import OUTPUT, flag, option
from paceline.core.errors import LosslessError, UsageError

CHECKS = "Checks"


@takes(models, drafting, sampling)
def certify(
    *,
    models: Any,
    prompts: Annotated[
        Path | None,
        option(
            "--prompts",
            panel=CHECKS,
            metavar="FILE",
            from_environment=False,
            help="A prompt a line; or .jsonl, with a text in each line's prompt.",
        ),
    ] = None,
    n_predict: Annotated[
        int, option("-n", "--n-predict", panel=CHECKS, metavar="N", help="Tokens decoded of each prompt.")
    ] = 64,
    contexts: Annotated[
        int, option("--contexts", panel=CHECKS, metavar="N", help="Places in the texts that are sampled at.")
    ] = 8,
    samples: Annotated[
        int,
        option(
            "--samples",
            panel=CHECKS,
            metavar="N",
            help="Times that each of them is; fewer where a bias is seen sooner.",
        ),
    ] = 2000,
    sequences: Annotated[
        int, option("--sequences", panel=CHECKS, metavar="N", help="Walks of the state check.")
    ] = 16,
    seed: Annotated[
        int, option("--seed", panel=CHECKS, metavar="N", help="The same seed makes the same certificate.")
    ] = 0,
    draft: options.Drafters = None,
    drafting: Any,
    corpus: options.Corpora = None,
    sampling: Any,
    as_json: Annotated[bool, flag("--json", panel=OUTPUT, help="Every figure as one JSON object.")] = False,
) -> int:
    """Check that drafted output is plain output, and print a certificate that can be pasted into an issue.

    Four checks: greedy output token for token; sampled output against the target's own distribution, with
    every sampler on unless some are named; the cache's state after rejections; log-probabilities. Drafted is
    as `paceline run` drafts with the same options; the certificate says so.
    Exit code 0 is certified, 3 is not.
    """
    for name, value, low in (
        ("-n", n_predict, 2),
        ("--contexts", contexts, 1),
        ("--samples", samples, 100),
        ("--sequences", sequences, 1),
        ("--seed", seed, 0),
    ):
        if value < low:
            raise UsageError(f"{name} {value}: must be at least {low}")
    if draft is not None and draft.strip() == "none":
        raise UsageError("--draft none: nothing to certify about plain decoding; name a drafter")
    named: dict[str, Any] = {} if prompts is None else {"prompts": options.read_prompts(prompts)}

    from paceline.assemble import load
    from paceline.cli.completion import strict
    from paceline.cli.progress import progress
    from paceline.core.sampling import Sampling
    from paceline.lab.certify.certificate import Plan, work
    from paceline.lab.certify.certificate import certify as run_checks
    from paceline.lab.provenance import provenance
    from paceline.report.certificate import lines

    if sampling != Sampling():
        named["sampling"] = sampling
    # One is walked beside another. Passes of one shape are those of one.
    sessions = 1 if drafting["exact_greedy"] else 2
    plan = Plan(n=n_predict, contexts=contexts, runs=samples, sequences=sequences, seed=seed, **named)
    with (
        Interrupts() as interrupts,
        load(**models, drafters=draft, corpora=tuple(corpus or ()), sessions=sessions, **drafting) as llm,
    ):
        if llm.drafting.plain:
            raise UsageError(
                "a recurrent model's state cannot be rolled back yet, so there is nothing to certify"
            )
        with progress(work(llm, plan), interrupts) as tick:
            certificate = run_checks(llm, plan, tick)
        record = certificate.as_dict() | {"provenance": provenance(llm, plan.as_dict())}
    text = json.dumps(strict(record), allow_nan=False) if as_json else "\n".join(lines(record))
    sys.stdout.write(text + "\n")
    if certificate.defects:
        raise LosslessError(f"not certified: {', '.join(certificate.defects)}; --json has every figure")
    return 0
