"""`paceline replay`: the acceptance and speed of methods on recorded requests, without the model."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from paceline.cli import options
from paceline.cli.groups import DRAFTING_OPTIONS, OptionGroup, model_options, option_table, with_option_groups
from paceline.cli.interrupts import INTERRUPTED, Interrupts
from paceline.cli.options import argument
from paceline.cli.output import print_note, print_record
from paceline.cli.references import resolve_models
from paceline.cli.texts import read_text
from paceline.speculative.errors import UsageError

if TYPE_CHECKING:
    from paceline.backends.interface import Backend
    from paceline.bench.replay.traces import Trace
    from paceline.speculative.policy.costs import DecodingCosts
    from paceline.text.interface import Tokenizer

WHAT = "What is replayed"
REPLAYED_MODELS = model_options("target", "draft", "n_ctx", "threads")
REPLAY_OPTIONS = OptionGroup([
    *option_table(
        WHAT,
        ("chat_template", bool, False, "--chat-template", "", "Apply the model's chat template to messages."),
        ("methods", str, "lookup", "--methods", "NAMES", "Methods: lookup,lookup+suffix:n_draft=12, ..."),
        ("limit", int, 0, "--limit", "N", "Replay the first N requests only; 0: all.", 0),
        ("no_carryover", bool, False, "--no-carryover", "", "Forget earlier requests before each request."),
    ),
    *option_table(
        "Speed",
        ("cost_curve", Path | None, None, "--cost-curve", "FILE",
         "Predict speeds by costs from `paceline doctor --json`. Default: the stored costs."),
    ),
])  # fmt: skip


@with_option_groups(replayed=REPLAY_OPTIONS, models=REPLAYED_MODELS, drafting=DRAFTING_OPTIONS)
def replay(
    *,
    files: Annotated[list[Path], argument("FILE", "Recorded requests: JSON lines (docs/replay.md).", WHAT)],
    replayed: Any,
    models: Any,
    drafting: Any,
    corpora: options.Corpora = None,
    as_json: options.AsJson = False,
) -> int:
    """Decode recorded requests again with any method, without the model: measure acceptance, predict speed.

    Each recorded token stands for the target's choice. -m names the model that was recorded: its vocabulary
    and stored costs are read, not its weights. Requests are played in order: drafters learn from
    earlier requests of the same file, as on a server. Without known costs of the target's passes there is
    no speed."""
    models = resolve_models(models)
    tokenizer = models.target and Path(models.target)
    if corpora and tokenizer is None:
        raise UsageError("--corpus: holds tokens of a model; name it with -m FILE.gguf")
    model_draft, threads = models.draft and str(models.draft), models.engine.threads
    cost_curve, limit = replayed["cost_curve"], replayed["limit"]
    drafting.pop("exact_greedy")  # there is no target

    import paceline
    from paceline.backends.registry import open_engine, open_tokenizer
    from paceline.bench.replay import tables
    from paceline.bench.replay.replay import FORMAT, Replay, ReplayContext, methods_of
    from paceline.cli.progress import progress
    from paceline.hardware.threads import choose_threads
    from paceline.storage.corpora import Corpora
    from paceline.system.home import cpu_name

    costs = costs_of(cost_curve, tokenizer, model_draft, threads)
    methods = methods_of(replayed["methods"], drafting, draft=bool(model_draft), costs=costs is not None)
    with Interrupts() as interrupts, ExitStack() as stack:
        text = None if tokenizer is None else stack.enter_context(closing(open_tokenizer(tokenizer)))
        traces = read_traces(files, text, limit, interrupts, template=replayed["chat_template"])
        draft = None
        if model_draft is not None:
            n_ctx, n_threads = models.engine.n_ctx, choose_threads(threads)
            engine = open_engine(Path(model_draft), n_ctx=n_ctx, threads=n_threads, sessions=1)
            draft = stack.enter_context(closing(engine))
        vocab = vocabulary(text, traces, draft)
        encoder, found = None if text is None else text.text, Corpora.find(corpora or (), vocab)
        context = ReplayContext(vocab, encoder, found, draft, costs)
        replaying = Replay(traces, methods, context, fresh=replayed["no_carryover"])
        stack.callback(replaying.close)
        try:
            with progress(replaying.work(), interrupts) as tick:
                replaying.run(tick)
        except KeyboardInterrupt:
            if not replaying.played:
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
            "expected_of_mtp": None if tokenizer is None else expected_of_mtp(tokenizer, costs),
            **replaying.as_dict(),
        }
    print_record(record, as_json, tables.write)
    return INTERRUPTED if interrupts.pressed else 0


def costs_of(
    curve: Path | None, model: Path | None, draft: str | None, threads: int | None
) -> DecodingCosts | None:
    """Return the costs of a file, or the stored costs of the models with default settings, or None.
    Raises UsageError for an unusable file."""
    from paceline.speculative.policy.costs import DecodingCosts

    if curve is not None:
        try:
            return DecodingCosts.read(json.loads(read_text(curve)))
        except (UsageError, ValueError, RecursionError) as error:
            raise UsageError(f"--cost-curve {curve}: {error}; `paceline doctor --json` prints one") from error
    if model is None:
        return None
    from paceline.backends.registry import BackendSpec
    from paceline.hardware.threads import choose_threads
    from paceline.profiling.pass_costs import stored_costs

    settings: dict[str, Any] = {"threads": choose_threads(threads), "gpu_layers": 0}
    settings |= {"flash_attention": None, "cache_type": "f16", "exact_rows": 0}
    small = None if draft is None else BackendSpec(Path(draft), settings)
    return stored_costs(BackendSpec(model, settings), small)


def expected_of_mtp(model: Path, costs: DecodingCosts | None) -> list[float] | None:
    """Return the least and the most that the model's own layers for multi-token prediction may gain."""
    from paceline.backends.registry import backend_name
    from paceline.doctor.drafts import COMPARED_CONTEXT, expected_speedups
    from paceline.fits import LLAMA_CPP, USABLE
    from paceline.models.headers.header import read_model_facts

    if backend_name(model) != LLAMA_CPP:
        return None
    facts = read_model_facts(model, tokens=False)
    return expected_speedups(costs, facts.mtp_cost, COMPARED_CONTEXT) if facts.mtp == USABLE else None


def read_traces(
    files: list[Path], text: Tokenizer | None, limit: int, interrupts: Interrupts, *, template: bool
) -> list[Trace]:
    """Read up to `limit` requests of the files, and print warnings. Raises UsageError."""
    from paceline.bench.replay import traces
    from paceline.cli.progress import progress

    if twice := [file for at, file in enumerate(files) if file in files[:at]]:
        raise UsageError(f"{twice[0]}: is named twice")
    result: list[Trace] = []
    encoder, known = None, dict[str, Any]()
    if text is not None:
        encoder, known = text.text, {"n_vocab": text.vocab.size, "vocab": text.vocab.fingerprint}
    left = limit or None
    with progress({traces.LINE: sum(map(traces.count_lines, files))}, interrupts) as tick:
        for file in files:
            trace = traces.read(file, encoder, template=template, limit=left, tick=tick, **known)
            result.append(trace)
            known = {"n_vocab": trace.n_vocab, "vocab": trace.vocab}
            if left is not None and (left := left - len(trace.requests)) == 0:
                break
    for trace in result:
        for warning in traces.warnings(trace):
            print_note(f"paceline: {warning}")
    return result


def vocabulary(text: Tokenizer | None, traces: list[Trace], draft: Backend | None) -> Any:
    """Return the vocabulary of the tokenizer or the draft model, else the smallest that fits.
    Raises UsageError if the record does not confirm the draft model's vocabulary."""
    from paceline.backends.recorded import numeric_vocab

    if text is not None:
        return text.vocab
    size = traces[-1].n_vocab
    if draft is None:
        return numeric_vocab(max(trace.n_vocab or trace.needed for trace in traces))

    if size != draft.vocab.size or traces[-1].vocab not in (None, draft.vocab.fingerprint):
        why = f"{draft.vocab.size:,} tokens, and the record another or one that it does not tell"
        advice = "name the model that was recorded with -m FILE.gguf"
        raise UsageError(f"{draft.path}: has a vocabulary of {why}; {advice}")
    return draft.vocab
