"""Input of a replay: traces, a tokenizer, a draft model, and the costs of passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.cli.interrupts import Interrupts
from paceline.cli.output import print_note
from paceline.cli.texts import read_text
from paceline.speculative.errors import UsageError

if TYPE_CHECKING:
    from paceline.backends.interface import Backend
    from paceline.bench.method import Method
    from paceline.bench.replay.traces import Trace
    from paceline.speculative.policy.cost_model import DecodingCosts
    from paceline.text.interface import Tokenizer


def costs_of(
    curve: Path | None, model: Path | None, draft: str | None, threads: int | None
) -> DecodingCosts | None:
    """Return the costs of a file, or the stored costs of the models with default settings, or None.

    Raises UsageError for an unusable file."""
    from paceline.speculative.policy.cost_model import DecodingCosts

    if curve is not None:
        try:
            return DecodingCosts.read(json.loads(read_text(curve)))
        except (UsageError, ValueError, RecursionError) as error:
            raise UsageError(f"--cost-curve {curve}: {error}; `paceline doctor --json` prints one") from error
    if model is None:
        return None
    from paceline.backends.registry import BackendSpec
    from paceline.doctor.stored_costs import known_costs
    from paceline.hardware.threads import choose_threads
    from paceline.profiling.pass_costs import as_costs

    settings: dict[str, Any] = {
        "threads": choose_threads(threads),
        "gpu_layers": 0,
        "flash_attention": None,
        "cache_type": "f16",
        "exact_rows": 0,
    }
    paths = {"target": model} | ({} if draft is None else {"draft": Path(draft)})
    stored = {role: known_costs(BackendSpec(path, settings), role) for role, path in paths.items()}
    known = {role: costs for role, costs in stored.items() if costs is not None}
    return as_costs(known) if len(known) == len(paths) else None


def draft_model(
    path: str, methods: list[Method], n_ctx: int, threads: int | None, sessions: int = 1
) -> Backend:
    """Return the loaded draft model. Raises UsageError if no method uses it."""
    if not any(method.uses_draft for method in methods):
        raise UsageError(
            "a draft model is given, but no method names 'model': give --methods model, or leave it out"
        )
    from paceline.backends.registry import open_engine
    from paceline.hardware.threads import choose_threads

    return open_engine(Path(path), n_ctx=n_ctx, threads=choose_threads(threads), sessions=sessions)


def read(
    files: list[Path], text: Tokenizer | None, limit: int, interrupts: Interrupts, *, template: bool
) -> list[Trace]:
    """Read up to `limit` requests of the files, and print warnings. Raises UsageError."""
    from paceline.bench.replay import traces
    from paceline.cli.progress import progress
    from paceline.models.fingerprint import vocab_fingerprint

    if twice := [file for at, file in enumerate(files) if file in files[:at]]:
        raise UsageError(f"{twice[0]}: is named twice")
    result: list[Trace] = []
    encoder = n_vocab = vocab = None
    if text is not None:
        encoder, n_vocab, vocab = text.text, text.vocab.size, vocab_fingerprint(text.vocab)
    left = limit or None
    with progress({traces.LINE: sum(map(traces.count_lines, files))}, interrupts) as tick:
        for file in files:
            trace = traces.read(
                file, encoder, n_vocab=n_vocab, vocab=vocab, template=template, limit=left, tick=tick
            )
            result.append(trace)
            n_vocab, vocab = trace.n_vocab, trace.vocab
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
    from paceline.models.fingerprint import vocab_fingerprint

    if size != draft.vocab.size or traces[-1].vocab not in (None, vocab_fingerprint(draft.vocab)):
        raise UsageError(
            f"{draft.path}: has a vocabulary of {draft.vocab.size:,} tokens, and the record another or one "
            "that it does not tell; name the model that was recorded with --tokenizer FILE.gguf"
        )
    return draft.vocab
