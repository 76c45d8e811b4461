"""The target's hidden states and likeliest tokens in its own answers, which draft heads are trained on.

They are computed when they are read, or once for all, in a folder."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline.backends.interface import ShowsHiddenStates
from paceline.heads.arrays import to_numpy
from paceline.prepare.training.answers import Answer, Ids
from paceline.speculative.errors import LogitsError, PacelineError, UsageError
from paceline.speculative.interfaces import ForwardOutput, RequiredOutputs, Target
from paceline.speculative.sampling import filter_top_k
from paceline.speculative.tree import DraftTree, chain
from paceline.system.atomic import write_json, writing
from paceline.system.strict_json import parse_json

FORMAT, HEADER = 2, "features.json"  # of a cache; the format is raised when a file changes its meaning
# Of a TrainingSequence, with their types in a file.
ARRAYS = {"tokens": "<i4", "hidden": "<f2", "ids": "<i4", "logprobs": "<f2"}
TOP_K = 32
MIN_LOGPROB = -10_000.0  # of an impossible token; finite in float16

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class TrainingSequence:
    """A prompt with the target's answer.
    tokens: [T]. hidden: [T, layers, width], at the inputs of the layers, ascending.
    ids, logprobs: [T - first_answer, k], the likeliest tokens at the place of each answer token, best first,
    and their log-probabilities. Row `i` is predicted at position `first_answer + i - 1`.
    first_answer: index of the answer's first token."""

    tokens: Ids
    hidden: Floats
    ids: Ids
    logprobs: NDArray[np.float16]
    first_answer: int


Recorded = Iterable[TrainingSequence]


@runtime_checkable
class RanksTokens(Protocol):
    """A ForwardOutput whose logits are on a device, and need not leave it."""

    def top_logprobs(self, rows: range, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the k likeliest tokens [rows, k] and their log-probabilities."""


class TrainingFeatures:
    """Training sequences by number, computed when they are read; after `fill`, read from a folder that has a
    file for each: its arrays, end to end, and their CRC-32. Without layers they are tokens alone.
    layers: see RequiredOutputs. top_k: of `ids`.
    Raises UsageError for an answer that does not fit the context."""

    def __init__(
        self, target: Target, answers: Sequence[Answer], layers: Sequence[int], top_k: int = TOP_K
    ) -> None:
        self.folder: Path | None = None
        self._checked = set[int]()  # files
        self.target, self.answers = target, answers
        self.layers, self.top_k = tuple(layers), min(top_k, target.vocab.size)
        assert list(layers) == sorted(set(layers))
        longest = max((len(answer.prompt) + len(answer.tokens) for answer in answers), default=0)
        if longest > target.caps.n_ctx:
            raise UsageError(
                f"an answer and its prompt have {longest:,} tokens, the context {target.caps.n_ctx:,}: ask "
                "for a larger one (-c)"
            )

    def __len__(self) -> int:
        return len(self.answers)

    def __iter__(self) -> Iterator[TrainingSequence]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> TrainingSequence:
        """Return a sequence. One whose file is missing, incomplete or damaged is computed, and written."""
        number = range(len(self))[number]
        if self.folder is None:
            return self.compute(number)
        record = self._read(number)
        if record is None:
            record = self._write(number)
        arrays = {name: record[name] for name in ARRAYS}
        return TrainingSequence(first_answer=len(self.answers[number].prompt), **arrays)

    def compute(self, number: int) -> TrainingSequence:
        """Run teacher forcing over an answer. Raises LogitsError if the target's logits are invalid."""
        tokens, first_answer = self.answers[number].all_tokens, len(self.answers[number].prompt)
        if not self.layers:
            none = np.zeros((0, 0), np.float16)
            return TrainingSequence(tokens, none, none.astype(np.int32), none, first_answer)
        target, given, n = self.target, tokens.tolist(), len(tokens)
        want = RequiredOutputs(layers=self.layers)
        limit = min(target.caps.max_batch_tokens, target.caps.max_tree_nodes + 1)
        hidden, best = list[Floats](), list[tuple[NDArray[Any], NDArray[Any]]]()
        target.forget()  # what is in the cache has no hidden states
        with closing(target.open()) as session:

            def forward(part: DraftTree | int) -> ForwardOutput:
                out = target.forward([(session, part)], want)[0]
                assert out.features.start == sum(map(len, hidden)), "hidden states of other positions"
                hidden.append(to_numpy(out.features.hidden))
                return out

            session.extend(given[:first_answer])
            while session.pending_tokens:
                forward(min(target.caps.max_prefill_tokens, session.pending_tokens))
            at = first_answer
            while at <= n:  # the root is the token before `at`
                tree = chain(given[at : at + limit - 1], "right")
                out = forward(tree)
                if predicted := range(min(len(tree) + 1, n - at)):
                    best.append(top_logprobs(out, predicted, self.top_k))
                at += len(tree) + 1
                if at <= n:
                    session.commit(range(len(tree)), given[at - 1])
        ids, logprobs = (np.concatenate(parts) for parts in zip(*best, strict=True))
        logprobs = np.maximum(logprobs, MIN_LOGPROB).astype(np.float16)
        if not np.isfinite(logprobs).all():
            raise LogitsError(f"{target.origin}: its logits are not numbers")
        rows = sum(map(len, hidden))
        assert rows == n, f"passes over {n} tokens have {rows} rows of hidden states"
        return TrainingSequence(tokens, np.concatenate(hidden), ids.astype(np.int32), logprobs, first_answer)

    def layout(self, number: int) -> np.dtype[np.void]:
        """Return the type of a file."""
        answer, target = self.answers[number], cast("ShowsHiddenStates", self.target)
        answered = len(answer.tokens)
        n, likeliest = len(answer.prompt) + answered, (answered, self.top_k)
        shapes = (n,), (n, len(self.layers), target.hidden_size), likeliest, likeliest
        return np.dtype([*zip(ARRAYS, ARRAYS.values(), shapes, strict=True), ("crc32", "<u4")])

    def path(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{self.answers[number].id}.features"

    def is_missing(self, number: int) -> bool:
        path = self.path(number)
        return not path.exists() or path.stat().st_size != self.layout(number).itemsize

    def _write(self, number: int) -> Any:
        """Compute a sequence, and write its file. Return the record. Raises OSError."""
        sequence, record = self.compute(number), np.zeros(1, self.layout(number))
        with np.errstate(over="ignore"):
            for name in ARRAYS:
                record[name] = getattr(sequence, name)
        if not np.isfinite(record["hidden"]).all():
            raise PacelineError("a hidden state is beyond the range of float16: train without the cache")
        record["crc32"] = zlib.crc32(record.view(np.uint8)[:-4].data)
        self.path(number).write_bytes(record.data)
        return record[0]

    def _read(self, number: int) -> Any:
        """Map the file of a sequence, which is checked the first time. Return None for an unusable one."""
        if number not in self._checked and self.is_missing(number):
            return None
        data = np.memmap(self.path(number), np.uint8, "r")
        record = data.view(self.layout(number))[0]
        if number not in self._checked:
            same = np.array_equal(record["tokens"], self.answers[number].all_tokens)
            if not same or record["crc32"] != zlib.crc32(data[:-4].data):
                return None
            self._checked.add(number)
        return record

    def fill(
        self,
        folder: Path,
        model: str,
        *,
        note: Callable[[str], object] = lambda _: None,
        report: Callable[[tuple[int, int]], object] = lambda _: None,
    ) -> None:
        """Compute the sequences that the folder does not have yet.

        model: the target's fingerprint; a cache of another one, or without one of the layers, is replaced. A
        cache of more layers goes on with all of its own.
        report: called with the number of sequences so far, and of all; if it raises, the folder keeps them.
        Raises UsageError if they do not fit on the disk, and PacelineError if they cannot be written."""
        width = cast("ShowsHiddenStates", self.target).hidden_size
        key = {"format": FORMAT, "model": model, "width": width, "top_k": self.top_k}
        cached, self.folder = set[int](), folder
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # no cache, or none of ours
            header = parse_json((folder / HEADER).read_bytes())
            layers = {*header.pop("layers")}
            cached = layers if header == key else cached
        with writing(folder, "the hidden states so far are kept"):
            if cached >= {*self.layers}:
                self.layers = tuple(sorted(cached))
            else:
                if (folder / HEADER).exists():
                    shutil.rmtree(folder)
                folder.mkdir(parents=True, exist_ok=True)
                write_json(folder / HEADER, key | {"layers": self.layers})
            total = len(self)
            missing = [number for number in range(total) if self.is_missing(number)]
            needed, all_bytes = (
                sum(self.layout(number).itemsize for number in some) for some in (missing, range(total))
            )
            free = shutil.disk_usage(folder).free
            size = f"the hidden states of {total:,} answers take {all_bytes / 1e9:,.2f} GB"
            new = f"{needed / 1e9:,.2f} GB of them new"
            note(f"{size} in {folder}, {new} ({free / 1e9:,.2f} GB are free)")
            if needed > free:
                raise UsageError(
                    f"{folder}: {size}, {new}, and {free / 1e9:,.2f} GB are free: "
                    "make room, choose another folder, or train without the cache"
                )
            report((total - len(missing), total))
            for done, number in enumerate(missing, total - len(missing) + 1):
                self._write(number)
                report((done, total))


class Sequences:
    """Some of a source's training sequences, in the order of their ids: answers end in any order.
    lengths: in tokens, known without reading them.
    layers: those whose hidden states a sequence has, of the source's; all by default."""

    def __init__(self, source: TrainingFeatures, held_out: bool, layers: Sequence[int] = ()) -> None:
        self._source, self.layers = source, layers or source.layers
        columns = [source.layers.index(layer) for layer in layers]
        self._columns = None if columns in ([], [*range(len(source.layers))]) else columns
        sides = [i for i, answer in enumerate(source.answers) if answer.held_out == held_out]
        self._numbers = sorted(sides, key=lambda i: source.answers[i].id)
        self.answers = [source.answers[i] for i in self._numbers]
        self.lengths = [len(answer.prompt) + len(answer.tokens) for answer in self.answers]

    def __len__(self) -> int:
        return len(self.answers)

    def __iter__(self) -> Iterator[TrainingSequence]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: int) -> TrainingSequence:
        sequence = self._source[self._numbers[number]]
        if self._columns is None:
            return sequence
        return replace(sequence, hidden=sequence.hidden[:, self._columns])


def top_logprobs(out: ForwardOutput, rows: range, k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the k likeliest tokens of the rows, best first, and their log-probabilities."""
    if isinstance(out, RanksTokens):
        return out.top_logprobs(rows, k)
    found = []
    for row in rows:
        logits = out.logits(row)
        ids = filter_top_k(logits, k)
        below = logits - logits[ids[0]]
        found.append((ids, below[ids] - np.log(np.exp(below).sum(dtype=np.float64))))
    ids, logprobs = (np.stack(parts) for parts in zip(*found, strict=True))
    return ids, logprobs
