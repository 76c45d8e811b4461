"""`paceline replay`: the acceptance and speed of methods on recorded requests, without the model."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

from paceline.cli import options, replay_input
from paceline.cli.groups import DRAFTING_OPTIONS, OptionGroup, model_options, option_table, with_option_groups
from paceline.cli.interrupts import INTERRUPTED, Interrupts
from paceline.cli.options import MODELS, argument, option
from paceline.cli.output import print_json
from paceline.cli.references import file_option, resolve_models
from paceline.speculative.errors import UsageError

WHAT = "What is replayed"
DRAFT_OPTIONS = model_options("model_draft", "threads")
REPLAY_OPTIONS = OptionGroup([
    *option_table(
        WHAT,
        ("chat_template", bool, False, "--chat-template", "", "Apply the model's chat template to messages."),
        ("methods", str, "lookup", "--methods", "NAMES",
         "lookup,lookup+suffix; settings follow a colon: lookup:n_draft=12."),
        ("limit", int, 0, "--limit", "N", "Replay the first N requests only; 0: all.", 0),
        ("no_carryover", bool, False, "--no-carryover", "", "Forget earlier requests before each request."),
    ),
    *option_table(
        "Speed",
        ("cost_curve", Path | None, None, "--cost-curve", "FILE",
         "Predict speeds by costs from `paceline doctor --json`. Default: the stored costs."),
    ),
    *option_table(MODELS, ("ctx_size", int, 0, "-c --ctx-size", "N", "Tokens of the draft's context.", 0)),
])  # fmt: skip


@with_option_groups(replayed=REPLAY_OPTIONS, models=DRAFT_OPTIONS, drafting=DRAFTING_OPTIONS)
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
            "The GGUF file of the recorded model, for its vocabulary.",
            callback=file_option,
        ),
    ] = None,
    replayed: Any,
    models: Any,
    drafting: Any,
    corpora: options.Corpora = None,
    as_json: options.AsJson = False,
) -> int:
    """Decode recorded requests again with any method, without the model: measure acceptance, predict speed.

    Each recorded token stands for the target's choice. Requests are played in order: drafters learn from
    earlier requests of the same file, as on a server. Without known costs of the target's passes there is
    no speed.
    """
    if corpora and tokenizer is None:
        raise UsageError("--corpus: holds tokens of a model; name it with --tokenizer FILE.gguf")
    models = resolve_models(models)
    model_draft, threads = models["draft"], models["threads"]
    cost_curve, limit = replayed["cost_curve"], replayed["limit"]
    drafting.pop("exact_greedy")  # there is no target

    import paceline
    from paceline.backends.registry import open_tokenizer
    from paceline.bench.replay import tables
    from paceline.bench.replay.replay import FORMAT, Replay, ReplayContext, methods_of
    from paceline.cli.progress import progress
    from paceline.drafter_factory import Corpora
    from paceline.system.identity import cpu_name

    costs = replay_input.costs_of(cost_curve, tokenizer, model_draft, threads)
    methods = methods_of(
        replayed["methods"], drafting, draft=model_draft is not None, costs=costs is not None
    )
    with Interrupts() as interrupts, ExitStack() as stack:
        text = None if tokenizer is None else stack.enter_context(closing(open_tokenizer(tokenizer)))
        traces = replay_input.read(files, text, limit, interrupts, template=replayed["chat_template"])
        draft = None
        if model_draft is not None:
            draft = replay_input.draft_model(model_draft, methods, replayed["ctx_size"], threads)
            stack.callback(draft.close)
        vocab = replay_input.vocabulary(text, traces, draft)
        context = ReplayContext(
            vocab, None if text is None else text.text, Corpora.find(corpora or (), vocab), draft, costs
        )
        replaying = Replay(traces, methods, context, fresh=replayed["no_carryover"])
        stack.callback(replaying.close)
        try:
            with progress(replaying.work(), interrupts) as tick:
                replaying.run(tick)
        except KeyboardInterrupt:
            if replaying.done == 0:
                raise
        cost_source = tables.CACHED_COSTS if cost_curve is None else cost_curve.name
        record = {
            "format": FORMAT,
            "paceline": paceline.__version__,
            "processor": cpu_name(),
            "tokenizer": None if text is None else text.path.name,
            "cost_curve": None if costs is None else cost_source,
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
