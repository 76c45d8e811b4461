"""Files of recorded requests: JSON lines, each an answered request or a conversation of several.

    {"prompt_tokens": [...], "tokens": [...]}        token ids; what `recording` writes has more beside them
    {"prompt": "...", "completion": "..."}           text
    {"messages": [{"role": ..., "content": ...}]}    a conversation; what the assistant said last may also
                                                     stand beside it, as "completion"
    {"request": {"messages": ...}, "response": {"choices": ...}}
                                                     what a proxy logs; a "body" inside either, or "body" for
                                                     "request" as in OpenAI's batches, is the same

Each of the assistant's messages is a request, and its prompt all that was said before it, so that a drafter
sees what a server would; of a request with its response it is the response alone. Other fields are let be:
logs hold many. A line that cannot be used is left out and told; only lines of several vocabularies cannot be
read together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.backends.recorded import Recording
from paceline.bench.jsonl import Line, LineError, object_of, raw_lines
from paceline.bench.replay.chats import ChatTokenizer, Turn, text
from paceline.bench.replay.forms import FORMS, requests_of, sampled_of, times_of
from paceline.speculative.errors import ModelError, UsageError

LINE = "reading"
TOLD = 100  # lines that are told one by one; a log of garbage has millions
FINGERPRINT = 64  # letters


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request of a file. id: the line's own or its number, and in a conversation the turn's number after
    it. line: requests of one line belong together, and so do those of one session that is not "".

    category: what it was asked for; "" where nobody said. times: of the decoding that was recorded, "prompt"
    and "seconds", "steps", "drafted" and "accepted", those that are known; drafting: the settings it was
    decoded with, those that are not the usual ones. sampled: whether it was drawn at a temperature."""

    id: str
    line: int
    recording: Recording
    category: str = ""
    times: Mapping[str, float] | None = None
    sampled: bool = False
    session: str = ""
    drafting: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """skipped: answers without a token, which there is nothing to replay of. n_vocab, vocab: the size and the
    fingerprint of its vocabulary where they are known; needed: the size of the smallest that all of its
    tokens fit in.

    unusable: lines that were left out, and why, the first TOLD of them; n_unusable: how many there were."""

    path: Path
    requests: tuple[TraceRequest, ...]
    skipped: int
    n_vocab: int | None
    needed: int
    vocab: str | None = None
    unusable: tuple[tuple[int, str], ...] = ()
    n_unusable: int = 0


class Lines:
    """The lines of a file that are not empty: counted at once, and read again each time they are gone
    through, so that none is held."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UsageError(f"{path}: is read twice, which a pipe cannot be; give a .jsonl file")
        self._n = sum(1 for _ in raw_lines(path))

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[Line]:
        return raw_lines(self.path)


def lines(path: Path) -> Lines:
    """Raises UsageError where there are none."""
    found = Lines(path)
    if not found:
        raise UsageError(f"{path}: is empty; write one JSON object a line: {FORMS}")
    return found


def read(
    path: Path,
    said: Lines,
    tokenizer: ChatTokenizer | None,
    *,
    n_vocab: int | None = None,
    vocab: str | None = None,
    template: bool = False,
    limit: int | None = None,
    tick: Callable[[str], None] = lambda _: None,
) -> Trace:
    """said: its `lines`. n_vocab, vocab: the size and the fingerprint of the vocabulary that it has to be of,
    where one is known. template: messages go through the tokenizer's own chat template. limit: most requests.
    tick: called with LINE after each. Raises UsageError for a file without a request, for one of another
    vocabulary or of several, for text without a tokenizer, and for a template that there is not."""
    if template and tokenizer is not None:
        _require_template(tokenizer)
    reading = _TraceReader(path, tokenizer, template, n_vocab, vocab)
    for line in said:
        if limit is not None and len(reading.requests) >= limit:
            break
        reading.take(line)
        tick(LINE)
    return reading.trace(limit)


class _TraceReader:
    """One file, as far as it was read."""

    def __init__(
        self,
        path: Path,
        tokenizer: ChatTokenizer | None,
        template: bool,
        n_vocab: int | None,
        vocab: str | None,
    ) -> None:
        self.requests: list[TraceRequest] = []
        self._path, self._tokenizer, self._template = path, tokenizer, template
        self._n_vocab, self._vocab = n_vocab, vocab
        self._needed = self._skipped = self._n_unusable = 0
        self._unusable: list[tuple[int, str]] = []
        # One object an id, for all requests: an int by itself is four times as large as the place of one.
        self._ids: dict[int, int] = {}

    def take(self, line: Line) -> None:
        """Raises UsageError for what makes the rest of the file unusable too."""
        try:
            one = object_of(line)
            name = _name(one, line.number)
            size = _size(one)
            turns = requests_of(one, self._tokenizer, template=self._template)
            self._agree(size, _fingerprint(one), turns)
        except LineError as error:
            self._n_unusable += 1
            if len(self._unusable) < TOLD:
                self._unusable.append((line.number, str(error)))
            return
        except UsageError as error:
            raise UsageError(f"{self._path}, line {line.number}: {error}") from error
        self._skipped += sum(recording is None for _, recording in turns)
        known = self._known(one, turns)
        self.requests += [
            TraceRequest(f"{name}.{turn}" if turn else name, line.number, self._shared(recording), **known)
            for turn, recording in turns
            if recording is not None
        ]

    def _agree(self, size: int | None, vocab: str | None, turns: list[Turn]) -> None:
        """Its vocabulary is the one of the lines before. Raises UsageError: ids of several mean nothing
        together."""
        advice = "replay it by itself, with the model that was recorded"
        if size is not None and self._n_vocab is not None and size != self._n_vocab:
            raise UsageError(
                f"is of another vocabulary, of {size:,} tokens and not {self._n_vocab:,}; {advice}"
            )
        if vocab is not None and self._vocab is not None and vocab != self._vocab:
            raise UsageError(
                f"is of another vocabulary, with the fingerprint {vocab[:12]} and not {self._vocab[:12]}; "
                f"{advice}"
            )
        self._n_vocab, self._vocab = size or self._n_vocab, vocab or self._vocab
        highest = max((_highest(recording) for _, recording in turns if recording is not None), default=-1)
        self._needed = max(self._needed, highest + 1)
        if self._n_vocab is not None and self._needed > self._n_vocab:
            holder = "it holds" if highest + 1 == self._needed else "a line before it holds"
            raise UsageError(
                f"is of another vocabulary: {holder} token {self._needed - 1:,}, and there are "
                f"{self._n_vocab:,}; give the model that was recorded"
            )

    def _known(self, one: Mapping[str, Any], turns: list[Turn]) -> dict[str, Any]:
        """What a line tells besides its requests. The times are of one request, in lines of token ids."""
        known = {name: one[name] for name in ("category", "session") if isinstance(one.get(name), str)}
        known["sampled"] = sampled_of(one)
        if "prompt_tokens" not in one or (recording := turns[0][1]) is None:
            return known
        if isinstance(one.get("drafting"), dict):
            known["drafting"] = one["drafting"]
        return known | {"times": times_of(one.get("times"), len(recording.tokens))}

    def _shared(self, recording: Recording) -> Recording:
        def shared(tokens: tuple[int, ...]) -> tuple[int, ...]:
            return tuple(map(self._ids.setdefault, tokens, tokens))

        return Recording(
            shared(recording.prompt),
            shared(recording.tokens),
            tuple(map(shared, recording.top_k)),
            recording.noise,
        )

    def trace(self, limit: int | None) -> Trace:
        if not self.requests:
            why = "".join(f"; line {number}: {reason}" for number, reason in self._unusable[:1])
            raise UsageError(f"{self._path}: holds no answer to replay{why or f'; {FORMS}'}")
        return Trace(
            self._path,
            tuple(self.requests[:limit]),
            self._skipped,
            self._n_vocab,
            self._needed,
            self._vocab,
            tuple(self._unusable),
            self._n_unusable,
        )


def warnings(trace: Trace, most: int = 5) -> list[str]:
    """What was wrong with the file, a line each for people; the first `most` of each kind."""
    told = [f"{trace.path}, line {number}, left out: {why}" for number, why in trace.unusable[:most]]
    if trace.n_unusable > most:
        told.append(f"{trace.path}: {trace.n_unusable - most:,} more lines are left out")
    return told


def _name(one: Mapping[str, Any], number: int) -> str:
    name = one.get("id", one.get("custom_id", number))
    return text(str(name), "id") if isinstance(name, str | int) else str(number)


def _size(one: Mapping[str, Any]) -> int | None:
    size = one.get("n_vocab")
    if size is not None and (type(size) is not int or size < 1):
        raise LineError(f"its n_vocab is {size!r}; write the number of tokens of the vocabulary")
    return size


def _fingerprint(one: Mapping[str, Any]) -> str | None:
    """What is no fingerprint may be a name of other programs'."""
    said = one.get("vocab")
    return said if isinstance(said, str) and len(said) == FINGERPRINT else None


def _highest(recording: Recording) -> int:
    return max(max(recording.prompt), max(recording.tokens), *map(max, recording.top_k), -1)


def _require_template(tokenizer: ChatTokenizer) -> None:
    try:
        tokenizer.render([{"role": "user", "content": "?"}])
    except ModelError as error:
        why, _, _ = str(error).partition(";")  # what follows is advice for those who generate
        raise UsageError(f"--chat-template: {why}; leave it out") from error
