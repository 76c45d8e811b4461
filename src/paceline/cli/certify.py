"""`paceline certify`: check that drafting is lossless on this machine, with these models."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from paceline.cli import groups, options
from paceline.cli.groups import OptionGroup, option_table, with_option_groups
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import option
from paceline.cli.output import print_record
from paceline.cli.references import resolve_models
from paceline.cli.texts import read_prompts
from paceline.settings import AUTO
from paceline.speculative.errors import NotLosslessError, UsageError

CHECKS = "Checks"
CHECK_OPTIONS = OptionGroup(option_table(
    CHECKS,
    ("n", int, 64, "-n --n-predict", "N", "Tokens decoded of each prompt.", 2),
    ("contexts", int, 8, "--contexts", "N", "Contexts of the sampled check.", 1),
    ("runs", int, 1600, "--samples", "N", "Samples of each.", 100),
    ("sequences", int, 16, "--sequences", "N", "Walks of the state check.", 1),
    ("seed", int, 0, "--seed", "N", "The same seed makes the same certificate.", 0),
))  # fmt: skip


@with_option_groups(
    models=groups.MODEL_OPTIONS,
    checks=CHECK_OPTIONS,
    drafting=groups.DRAFTING_OPTIONS,
    sampling=groups.SAMPLING_OPTIONS,
)
def certify(
    *,
    models: Any,
    prompts: Annotated[
        Path | None,
        option(CHECKS, "--prompts", "FILE", "A prompt a line; or .jsonl, each line's prompt.", env=False),
    ] = None,
    checks: Any,
    drafters: options.Drafters = None,
    drafting: Any,
    corpora: options.Corpora = None,
    profile: options.Profile = AUTO,
    sampling: Any,
    as_json: options.AsJson = False,
) -> int:
    """Check that drafted output is plain output, and print a certificate that can be pasted into an issue.

    Four checks: greedy output token for token; sampled output against the target's distribution, with every
    sampler unless some are named; the KV cache after rejections; log-probabilities. Drafts are those of
    `paceline run` with the same options.
    Exit code 0: certified; 3: not certified."""
    loading = groups.with_drafting(models, drafters, drafting, corpora=corpora, profile=profile)
    # The state check has a second session in the batch; passes of one shape have one session.
    engine = replace(loading.engine, sessions=1 if loading.engine.exact_greedy else 2)
    loading, quality = replace(loading, engine=engine), loading.quality
    if loading.drafting.plain or quality.lossy or quality.role == "speed":
        lossy = f"--lossy {quality.lossy}" if quality.lossy else "--role speed"
        given = "--draft none" if loading.drafting.plain else lossy
        raise UsageError(f"{given}: nothing to certify, which is that drafts change no output; leave it out")
    if prompts is not None:
        checks["prompts"] = read_prompts(prompts)

    from paceline.bench.certify.certificate import CertifyPlan, work
    from paceline.bench.certify.certificate import certify as run_checks
    from paceline.bench.provenance import provenance
    from paceline.cli.progress import progress
    from paceline.loading import load_options
    from paceline.report.certificate import write
    from paceline.speculative.sampling import Sampling

    if sampling != Sampling():
        checks["sampling"] = sampling
    plan = CertifyPlan(**checks)
    loading = resolve_models(loading)
    with Interrupts() as interrupts, load_options(loading) as llm:
        if llm.drafting.plain:
            raise UsageError("the model's state cannot be rolled back: no drafts, and nothing to certify")
        with progress(work(llm, plan), interrupts) as tick:
            record = run_checks(llm, plan, tick)
        record["provenance"] = provenance(llm, asdict(plan))
    print_record(record, as_json, write)
    if record["defects"]:
        raise NotLosslessError(f"not certified: {', '.join(record['defects'])}; --json has every figure")
    return 0
