"""`paceline replay`: what methods would have had accepted of recorded requests, and how fast they would have
been, without the model."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

from paceline.cli import options, replay_input
from paceline.cli.groups import DRAFTING_OPTIONS, with_option_groups
from paceline.cli.interrupts import INTERRUPTED, Interrupts
from paceline.cli.options import MODELS, argument, flag, option
from paceline.cli.output import print_json
from paceline.cli.references import file_option, resolve_models
from paceline.speculative.errors import UsageError

WHAT = "What is replayed"
SPEED = "Speed"


@with_option_groups(drafting=DRAFTING_OPTIONS)
def replay(
    *,
    files: Annotated[
        list[Path],
        argument("FILE", "JSON lines of tokens, of prompts and completions, or of messages.", WHAT),
    ],
    tokenizer: Annotated[
        Path | None,
        option(
            WHAT,
            "-m --tokenizer",
            "FILE",
            "The GGUF file of the model that was recorded; its vocabulary is enough.",
            callback=file_option,
        ),
    ] = None,
    chat_template: Annotated[
        bool, flag(WHAT, "--chat-template", "Messages go through the model's own chat template.")
    ] = False,
    methods: Annotated[
        str,
        option(
            WHAT, "--methods", "NAMES", "lookup,lookup+suffix; settings follow a colon: lookup:n_draft=12."
        ),
    ] = "lookup",
    limit: Annotated[
        int, option(WHAT, "--limit", "N", "Replay the first N requests only; 0: all.", minimum=0)
    ] = 0,
    fresh: Annotated[
        bool, flag(WHAT, "--fresh", "Nothing is remembered from one request to the next.")
    ] = False,
    cost_curve: Annotated[
        Path | None,
        option(
            SPEED,
            "--cost-curve",
            "FILE",
            "Predict speeds by what `paceline doctor --json` has measured. Default: what is known here.",
        ),
    ] = None,
    model_draft: options.DraftModel = None,
    ctx_size: Annotated[
        int, option(MODELS, "-c --ctx-size", "N", "Tokens of the draft's context.", minimum=0)
    ] = 0,
    threads: options.Threads = None,
    drafting: Any,
    corpora: options.Corpora = None,
    as_json: options.AsJson = False,
) -> int:
    """Decode recorded requests again, by any method and without the model: how much would be accepted, and
    how fast it would be.

    The record's own next token plays the target's part. Requests are played in order: drafters that remember
    learn from those before in the same file, as on a server. Where it is not known what the model's passes
    cost, this tells acceptance, not speed.
    """
    if corpora and tokenizer is None:
        raise UsageError("--corpus: holds tokens of a model; name it with --tokenizer FILE.gguf")
    model_draft = resolve_models({"draft": model_draft})["draft"]
    drafting.pop("exact_greedy")  # nothing is computed that could differ

    import paceline
    from paceline.backends.registry import open_tokenizer
    from paceline.bench.replay import tables
    from paceline.bench.replay.record import FORMAT
    from paceline.bench.replay.replay import Replay, ReplayContext, methods_of
    from paceline.cli.progress import progress
    from paceline.drafter_factory import Corpora
    from paceline.system.identity import cpu_name

    costs = replay_input.costs_of(cost_curve, tokenizer, model_draft, threads)
    chosen = methods_of(methods, drafting, draft=model_draft is not None, costs=costs is not None)
    with Interrupts() as interrupts, ExitStack() as stack:
        text = None if tokenizer is None else stack.enter_context(closing(open_tokenizer(tokenizer)))
        traces = replay_input.read(files, text, limit, interrupts, template=chat_template)
        draft = None
        if model_draft is not None:
            draft = replay_input.draft_model(model_draft, chosen, ctx_size, threads)
            stack.callback(draft.close)
        vocab = replay_input.vocabulary(text, traces, draft)
        means = ReplayContext(
            vocab, None if text is None else text.text, Corpora.find(corpora or (), vocab), draft, costs
        )
        replaying = Replay(traces, chosen, means, fresh=fresh)
        stack.callback(replaying.close)
        try:
            with progress(replaying.work(), interrupts) as tick:
                replaying.run(tick)
        except KeyboardInterrupt:
            if replaying.done == 0:
                raise
        record = {
            "format": FORMAT,
            "paceline": paceline.__version__,
            "processor": cpu_name(),
            "tokenizer": None if text is None else text.path.name,
            "cost_curve": None
            if costs is None
            else tables.CACHED_COSTS
            if cost_curve is None
            else cost_curve.name,
            "draft_model": None if model_draft is None else Path(model_draft).name,
            "n_vocab": vocab.size,
            "limit": limit,
            **replaying.as_dict(),
        }
    if as_json:
        print_json(record)
    else:
        tables.write(record, sys.stdout)
    return INTERRUPTED if interrupts.pressed else 0
