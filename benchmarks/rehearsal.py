"""Real passes over a text that is given.

Greedy output at a near-tie depends on the shape of the pass, and of two answers that part there one may go
round in circles. Methods that are to be compared by few answers decode the same text here: every pass is the
model's own and takes its time, and what it says is the record's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from paceline.backends.recorded import RecordedForward, RecordedSession, Recording, ReplayTarget
from paceline.bench.baselines.llama_server import LlamaServer
from paceline.bench.gate import IDENTICAL, DifferenceClassifier
from paceline.bench.paceline_system import LoadedModels
from paceline.bench.replay.traces import Trace
from paceline.bench.system import BenchRequest
from paceline.bench.text_comparison import first_difference
from paceline.profiling.pass_costs import MAX_TIMING_JITTER, costs_of
from paceline.speculative.errors import UsageError
from paceline.speculative.forward_output import LogitsOutput
from paceline.speculative.interfaces import Budget, RequiredOutputs, Session
from paceline.speculative.tree import DraftTree


class Rehearsal:
    """A target, and what it says to the prompts of `recordings`."""

    def __init__(self, target: Any, recordings: Sequence[Recording]) -> None:
        self._target = target
        self._record = ReplayTarget(target.vocab, recordings, target.text)
        self._passes = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    @contextmanager
    def by_heart(self) -> Iterator[None]:
        """Answer without passes, where only the answers are wanted. Sessions are closed before it ends."""
        self._passes = False
        try:
            yield
        finally:
            self._passes = True

    def open(self, beside: Session | None = None) -> Any:
        record = self._record.open()
        return RehearsedSession(self._target.open(), record) if self._passes else record

    def forward(self, batch: Sequence[tuple[Any, DraftTree | int]], want: RequiredOutputs) -> Sequence[Any]:
        if not self._passes:
            return self._record.forward(batch, want)
        real = self._target.forward([(session.real, tree) for session, tree in batch], want)
        trees = [(session.record, tree) for session, tree in batch if not isinstance(tree, int)]
        said = iter(self._record.forward(trees, want))
        pairs = zip(real, batch, strict=True)
        return [out if isinstance(tree, int) else Said(out, next(said)) for out, (_, tree) in pairs]


class RehearsedSession:
    def __init__(self, real: Any, record: RecordedSession) -> None:
        self.real, self.record = real, record

    @property
    def tokens(self) -> Sequence[int]:
        return self.record.tokens

    @property
    def pending_tokens(self) -> int:
        return int(self.real.pending_tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        self.real.extend(tokens)
        self.record.extend(tokens)

    def commit(self, path: Sequence[int], root: int) -> None:
        self.real.commit(path, root)
        self.record.commit(path, root)

    def close(self) -> None:
        self.real.close()
        self.record.close()


class Said(LogitsOutput):
    """The record's words, each after a look at the row that would have said it, which takes its time too."""

    def __init__(self, real: Any, record: RecordedForward) -> None:
        super().__init__(real.computed, record.features)
        self._real, self._record = real, record

    def argmax(self, row: int) -> int:
        self._real.argmax(row)
        return self._record.argmax(row)

    def logits(self, row: int) -> Any:
        self._real.logits(row)
        return self._record.logits(row)


def rehearse(models: LoadedModels, recorded: Sequence[Trace]) -> list[Recording]:
    """Let the models' target say what was recorded, which is returned. Raises UsageError on a machine too
    busy to measure."""
    # Kept, for `auto`: what rehearses reads no text to measure with.
    if costs_of(models.plain.target, None).target.timing_jitter >= MAX_TIMING_JITTER:
        raise UsageError("this machine is too busy to measure what passes cost: run it on an idle one")
    recordings = [request.recording for trace in recorded for request in trace.requests]
    rehearsal: Any = Rehearsal(models.plain.target, recordings)
    models.plain.target = rehearsal
    return recordings


class RehearsedServer(LlamaServer):
    """llama-server, held to the record's text by a grammar of one sentence: it looks at the one token that
    was drawn, and draws again only where that is another."""

    texts: Mapping[tuple[int, ...], str]  # by the prompt

    def body(self, request: BenchRequest) -> dict[str, Any]:
        known = super().body(request)
        text = self.texts.get(request.tokens)
        return known if text is None else known | {"grammar": sentence(text)}


class SameText(DifferenceClassifier):
    """A grammar holds a server to a text, not to how it is cut into tokens: outputs are held against each
    other as texts, as far as both go."""

    def outcome(
        self, item: str, request: BenchRequest, plain: Sequence[int], tokens: Sequence[int], budget: Budget
    ) -> str:
        index = first_difference(plain, tokens)
        return IDENTICAL if index is None or self._same(plain, tokens) else f"from token {index} on"

    def _same(self, plain: Sequence[int], said: Sequence[int]) -> bool:
        a, b = (spelled(self.llm.target, tokens) for tokens in (plain, said))
        return a.startswith(b) or b.startswith(a)


def spelled(target: Any, tokens: Sequence[int]) -> str:
    """Without a character that is cut in two."""
    return b"".join(map(target.text.piece, tokens)).decode(errors="ignore")


def sentence(text: str) -> str:
    """A grammar (llama.cpp's GBNF) of the texts that begin with `text`."""
    spelled = "".join(char if char.isalnum() and char.isascii() else f"\\U{ord(char):08X}" for char in text)
    return f'root ::= "{spelled}" [^\\x00]*'
