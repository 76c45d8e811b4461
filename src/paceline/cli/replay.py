"""`paceline replay`: what drafters would have had accepted of recorded requests, without a model."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options
from paceline.cli.exits import INTERRUPTED
from paceline.cli.groups import drafting, takes
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import OUTPUT, flag, option
from paceline.core.errors import UsageError

if TYPE_CHECKING:
    from paceline.lab.replay.traces import Trace
    from paceline.lab.tokenizer import Tokenizer

WHAT = "What is replayed"


@takes(drafting)
def replay(
    *,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="JSON lines of tokens, of prompts and completions, or of messages.",
            show_default=False,
            rich_help_panel=WHAT,
        ),
    ],
    tokenizer: Annotated[
        Path | None,
        option(
            "--tokenizer",
            panel=WHAT,
            metavar="FILE",
            help="The GGUF file of the model that was recorded; its vocabulary is enough.",
        ),
    ] = None,
    methods: Annotated[
        str,
        option(
            "--methods",
            panel=WHAT,
            metavar="NAMES",
            help="lookup,lookup+suffix; settings follow a colon: lookup:n_draft=12.",
        ),
    ] = "lookup",
    limit: Annotated[
        int, option("--limit", panel=WHAT, metavar="N", help="Replay the first N requests only; 0: all.")
    ] = 0,
    fresh: Annotated[
        bool,
        flag("--fresh", panel=WHAT, help="Nothing is remembered from one request to the next."),
    ] = False,
    drafting: Any,
    corpus: options.Corpora = None,
    as_json: Annotated[bool, flag("--json", panel=OUTPUT, help="Every figure as one JSON object.")] = False,
) -> int:
    """Decode recorded requests again, by any method and without a model, and tell how much would be accepted.

    The record's own next token plays the target's part. Requests are played in order: drafters that remember
    learn from those before in the same file, as on a server. This tells acceptance, not speed.
    """
    if limit < 0:
        raise UsageError(f"--limit {limit}: must be at least 0")
    if corpus and tokenizer is None:
        raise UsageError("--corpus: holds tokens of a model; name it with --tokenizer FILE.gguf")
    drafting.pop("exact_greedy")  # nothing is computed that could differ

    from paceline.cli.progress import progress
    from paceline.lab.replay.replay import Replay, methods_of
    from paceline.makers import Corpora

    chosen = methods_of(methods, drafting)
    with Interrupts() as interrupts, ExitStack() as stack:
        text = None if tokenizer is None else stack.enter_context(opened(tokenizer))
        traces = read(files, text, limit, interrupts)
        vocab = vocabulary(text, traces)
        replaying = Replay(
            traces,
            chosen,
            vocab,
            None if text is None else text.text,
            corpora=Corpora.find(corpus or (), vocab),
            fresh=fresh,
        )
        stack.callback(replaying.close)
        try:
            with progress(replaying.work(), interrupts) as tick:
                replaying.run(tick)
        except KeyboardInterrupt:
            if replaying.done == 0:
                raise
        known = {
            "tokenizer": None if text is None else text.path.name,
            "n_vocab": vocab.size,
            "limit": limit,
        }
        write(provenance() | known | replaying.as_dict(), as_json)
    return INTERRUPTED if interrupts.pressed else 0


def opened(path: Path) -> Tokenizer:
    from paceline.lab.tokenizer import Tokenizer

    return Tokenizer(path)


def read(files: list[Path], text: Tokenizer | None, limit: int, interrupts: Interrupts) -> list[Trace]:
    """All files, one after another until there are `limit` requests."""
    from paceline.cli.progress import progress
    from paceline.lab.replay import traces

    if twice := [file for at, file in enumerate(files) if file in files[:at]]:
        raise UsageError(f"{twice[0]}: is named twice")
    said = [(file, traces.lines(file)) for file in files]
    out: list[Trace] = []
    n_vocab = None if text is None else text.vocab.size
    left = limit or None
    with progress({traces.LINE: sum(len(lines) for _, lines in said)}, interrupts) as tick:
        for file, lines in said:
            if left == 0:
                break
            encoder = None if text is None else text.text
            trace = traces.read(file, lines, encoder, n_vocab=n_vocab, limit=left, tick=tick)
            out.append(trace)
            n_vocab = trace.n_vocab
            left = None if left is None else left - len(trace.requests)
    return out


def vocabulary(text: Tokenizer | None, traces: list[Trace]) -> Any:
    """The tokenizer's; without one the smallest that the tokens fit in."""
    from paceline.engines.recorded import numbered

    if text is not None:
        return text.vocab
    return numbered(max(trace.n_vocab or trace.needed for trace in traces))


def provenance() -> dict[str, Any]:
    import paceline
    from paceline.lab.provenance import cpu_name
    from paceline.lab.replay.record import FORMAT

    return {
        "format": FORMAT,
        "paceline": paceline.__version__,
        "processor": cpu_name(),
    }


def write(record: dict[str, Any], as_json: bool) -> None:
    from paceline.lab.replay import tables

    if as_json:
        from paceline.cli.completion import strict

        sys.stdout.write(json.dumps(strict(record), allow_nan=False) + "\n")
    else:
        tables.write(record, sys.stdout)
