"""Files of recorded requests: JSON lines, each an answered request or a conversation of several.

    {"prompt_tokens": [...], "tokens": [...]}        token ids; `recording` writes further fields
    {"prompt": "...", "completion": "..."}           text
    {"messages": [{"role": ..., "content": ...}]}    a conversation; "completion" may hold the last answer
    {"request": {"messages": ...}, "response": {"choices": ...}}
                                                     a proxy's log; "body" inside either, or "body" for
                                                     "request" as in OpenAI's batches, works too

Each assistant message is a request whose prompt is all earlier messages; in a request with a response, only
the response is. A line that cannot be used is skipped and reported, but all lines must share one
vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from paceline.backends.recorded import Recording
from paceline.bench.jsonl import object_of, raw_lines
from paceline.bench.replay.forms import FORMS, MissingTokenizerError, NumberedRecording, requests_of
from paceline.speculative.errors import UsageError
from paceline.text.interface import Text

LINE = "reading"
REPORTED = 100  # skipped lines reported one by one; a file of another kind has millions
FINGERPRINT = 64  # letters


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request of a file.

    id: of the line, or its number, and the turn's number in a conversation.
    line, session: requests of one line, or of one session that is not "", are one conversation.
    category: "" if unknown."""

    id: str
    line: int
    recording: Recording
    category: str = ""
    session: str = ""

    @property
    def conversation(self) -> int | str:
        """Identifier of the conversation within the file."""
        return self.session or self.line


@dataclass
class Trace:
    """The requests of a file.

    skipped: answers without a token.
    n_vocab, vocab: size and fingerprint of the vocabulary, if known.
    needed: size of the smallest vocabulary that contains all tokens.
    unusable: number and reason of the first REPORTED skipped lines. n_unusable: of all."""

    path: Path
    requests: list[TraceRequest] = field(default_factory=list)
    skipped: int = 0
    n_vocab: int | None = None
    needed: int = 0
    vocab: str | None = None
    unusable: list[tuple[int, str]] = field(default_factory=list)
    n_unusable: int = 0

    def add(self, number: int, line: Mapping[str, Any], turns: list[NumberedRecording]) -> None:
        """Add the requests of a line. Raises UsageError if its vocabulary differs from that of earlier
        lines."""
        self._agree(line, [one for _, one in turns if one is not None])
        name = line.get("id", line.get("custom_id"))
        name = str(number) if not isinstance(name, str | int) else str(name)
        known = {key: line[key] for key in ("category", "session") if isinstance(line.get(key), str)}
        for turn, recording in turns:
            if recording is None:
                self.skipped += 1
            else:
                full = f"{name}.{turn}" if turn else name
                self.requests.append(TraceRequest(full, number, recording, **known))

    def _agree(self, line: Mapping[str, Any], recordings: list[Recording]) -> None:
        for name, kind in (("n_vocab", int), ("vocab", str)):
            value, current = line.get(name), getattr(self, name)
            if type(value) is not kind or (isinstance(value, str) and len(value) != FINGERPRINT):
                continue  # another program's field of that name
            if current not in (None, value):
                raise UsageError(
                    f"is of another vocabulary ({name} {value!s:.12} and not {current!s:.12}); replay it by "
                    "itself, with the model that was recorded"
                )
            setattr(self, name, value)
        ids = (max(chain(one.prompt, one.tokens, *one.top_k)) for one in recordings)
        self.needed = max(self.needed, 1 + max(ids, default=-1))
        if self.n_vocab is not None and self.needed > self.n_vocab:
            raise UsageError(
                f"is of another vocabulary: token {self.needed - 1:,} was recorded, and there are "
                f"{self.n_vocab:,}; give the model that was recorded"
            )


def count_lines(path: Path) -> int:
    """Return the number of lines that are not empty. Raises UsageError for a pipe."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UsageError(f"{path}: is read twice, which a pipe cannot be; give a .jsonl file")
    return sum(1 for _ in raw_lines(path))


def read(
    path: Path,
    tokenizer: Text | None,
    *,
    n_vocab: int | None = None,
    vocab: str | None = None,
    template: bool = False,
    limit: int | None = None,
    tick: Callable[[str], None] = lambda _: None,
) -> Trace:
    """Read a file of recorded requests.

    n_vocab, vocab: size and fingerprint of the vocabulary, if known.
    template: messages go through the tokenizer's chat template.
    limit: maximum number of requests.
    tick: called with LINE after each line.
    Raises UsageError for a file without a request, for a vocabulary that differs, for text without a
    tokenizer, and for a model without a chat template."""
    if template and tokenizer is not None and not tokenizer.has_chat_template:
        raise UsageError("--chat-template: this model has no chat template; leave it out")
    trace = Trace(path, n_vocab=n_vocab, vocab=vocab)
    for raw in raw_lines(path):
        if limit is not None and len(trace.requests) >= limit:
            break
        where = f"{path}, line {raw.number}"
        try:
            line = object_of(raw)
            turns = requests_of(line, tokenizer, template=template)
        except MissingTokenizerError as error:
            raise UsageError(f"{where}: {error}") from error
        except UsageError as error:
            trace.n_unusable += 1
            if len(trace.unusable) < REPORTED:
                trace.unusable.append((raw.number, str(error)))
        else:
            try:
                trace.add(raw.number, line, turns)
            except UsageError as error:
                raise UsageError(f"{where}: {error}") from error
        tick(LINE)
    if not trace.requests:
        why = "".join(f"; line {number}: {reason}" for number, reason in trace.unusable[:1])
        raise UsageError(f"{path}: holds no answer to replay{why or f'; {FORMS}'}")
    if limit is not None:
        del trace.requests[limit:]
    return trace


def warnings(trace: Trace, most: int = 5) -> list[str]:
    """Describe the first `most` skipped lines, and count the others."""
    shown = [f"{trace.path}, line {number}, left out: {why}" for number, why in trace.unusable[:most]]
    if trace.n_unusable > most:
        shown.append(f"{trace.path}: {trace.n_unusable - most:,} more lines are left out")
    return shown
