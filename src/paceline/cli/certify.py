"""`paceline certify`: is drafted output plain output, on this machine, with these models?"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from paceline.cli import options
from paceline.cli.groups import DRAFTING_OPTIONS, MODEL_OPTIONS, SAMPLING_OPTIONS, with_option_groups
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import option
from paceline.cli.output import print_json
from paceline.cli.references import resolve_models
from paceline.cli.texts import read_prompts
from paceline.speculative.errors import LosslessError, UsageError

CHECKS = "Checks"


@with_option_groups(models=MODEL_OPTIONS, drafting=DRAFTING_OPTIONS, sampling=SAMPLING_OPTIONS)
def certify(
    *,
    models: Any,
    prompts: Annotated[
        Path | None,
        option(CHECKS, "--prompts", "FILE", "A prompt a line; or .jsonl, each line's prompt.", env=False),
    ] = None,
    n_predict: Annotated[
        int, option(CHECKS, "-n --n-predict", "N", "Tokens decoded of each prompt.", minimum=2)
    ] = 64,
    contexts: Annotated[
        int, option(CHECKS, "--contexts", "N", "Places in the texts that are sampled at.", minimum=1)
    ] = 8,
    samples: Annotated[
        int,
        option(CHECKS, "--samples", "N", "Times that each is; fewer where a bias shows sooner.", minimum=100),
    ] = 2000,
    sequences: Annotated[
        int, option(CHECKS, "--sequences", "N", "Walks of the state check.", minimum=1)
    ] = 16,
    seed: Annotated[
        int, option(CHECKS, "--seed", "N", "The same seed makes the same certificate.", minimum=0)
    ] = 0,
    draft: options.Drafters = None,
    drafting: Any,
    corpora: options.Corpora = None,
    sampling: Any,
    as_json: options.AsJson = False,
) -> int:
    """Check that drafted output is plain output, and print a certificate that can be pasted into an issue.

    Four checks: greedy output token for token; sampled output against the target's own distribution, with
    every sampler on unless some are named; the cache's state after rejections; log-probabilities. Drafted is
    as `paceline run` drafts with the same options; the certificate says so.
    Exit code 0 is certified, 3 is not.
    """
    if draft is not None and draft.strip() == "none":
        raise UsageError("--draft none: nothing to certify about plain decoding; name a drafter")
    named: dict[str, Any] = {} if prompts is None else {"prompts": read_prompts(prompts)}

    from paceline.bench.certify.certificate import CertifyPlan, work
    from paceline.bench.certify.certificate import certify as run_checks
    from paceline.bench.provenance import provenance
    from paceline.cli.progress import progress
    from paceline.loading import load
    from paceline.report.certificate import lines
    from paceline.speculative.sampling import Sampling

    if sampling != Sampling():
        named["sampling"] = sampling
    # One is walked beside another. Passes of one shape are those of one.
    sessions = 1 if drafting["exact_greedy"] else 2
    plan = CertifyPlan(n=n_predict, contexts=contexts, runs=samples, sequences=sequences, seed=seed, **named)
    loading = resolve_models(models) | drafting | {"drafters": draft, "corpora": tuple(corpora or ())}
    with Interrupts() as interrupts, load(**loading, sessions=sessions) as llm:
        if llm.drafting.plain:
            raise UsageError(
                "a recurrent model's state cannot be rolled back yet, so there is nothing to certify"
            )
        with progress(work(llm, plan), interrupts) as tick:
            record = run_checks(llm, plan, tick)
        record["provenance"] = provenance(llm, asdict(plan))
    if as_json:
        print_json(record)
    else:
        sys.stdout.write("\n".join(lines(record)) + "\n")
    if record["defects"]:
        raise LosslessError(f"not certified: {', '.join(record['defects'])}; --json has every figure")
    return 0
