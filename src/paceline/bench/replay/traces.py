"""Files of recorded requests: JSON lines, each an answered request or a conversation of several.

    {"prompt_tokens": [...], "tokens": [...]}        token ids; `recording` writes further fields
    {"prompt": "...", "completion": "..."}           text
    {"messages": [{"role": ..., "content": ...}]}    a conversation; "completion" may hold the last answer
    {"request": {"messages": ...}, "response": {"choices": ...}}
                                                     a proxy's log; "body" inside either, or "body" for
                                                     "request" as in OpenAI's batches, works too

Each assistant message is a request whose prompt is all earlier messages; in a request with a response, only
the response is. A line that cannot be used is skipped and reported, but all lines must share one
vocabulary.

Messages are joined as plain text ("Role:", a newline, the content and an empty line) or rendered by the
model's chat template. Tool calls follow their message's content, a JSON object per line, since a log does not
contain the model's syntax for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.backends.recorded import Recording
from paceline.bench.jsonl import LineError, located, object_of, raw_lines
from paceline.bench.replay.recording import FORMAT
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.rng import RNG_NAME, GumbelNoise, SeededRng
from paceline.speculative.sampling import Sampling
from paceline.speculative.validation import settings_of
from paceline.text.interface import Text
from paceline.text.records import ASSISTANT, RAW, REASONING, record_parts

LINE = "reading"
WARNINGS = 5
REPORTED = 100  # skipped lines reported one by one; a file of another kind has millions
FINGERPRINT = 64  # letters
FORMS = "write prompt_tokens and tokens, prompt and completion, messages, or request and response"


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request of a file. id: of the line, or its number, and the turn's number in a conversation."""

    id: str
    line: int
    recording: Recording
    category: str = ""
    session: str = ""

    @property
    def conversation(self) -> int | str:
        """Identifier of the conversation within the file: the session, or the line if that is ""."""
        return self.session or self.line


@dataclass
class Trace:
    """The requests of a file.
    n_vocab, vocab: size and fingerprint of the vocabulary, if known. needed: its least size for these tokens.
    unusable: number and reason of the first REPORTED skipped lines. n_unusable: of all."""

    path: Path
    requests: list[TraceRequest] = field(default_factory=list)
    n_vocab: int | None = None
    needed: int = 0
    vocab: str | None = None
    unusable: list[tuple[int, str]] = field(default_factory=list)
    n_unusable: int = 0

    def add(self, number: int, line: Mapping[str, Any], turns: list[tuple[str, Recording]]) -> None:
        """Add the requests of a line. Raises UsageError if its vocabulary is another."""
        different = ""
        for name, kind in (("n_vocab", int), ("vocab", str)):
            value, current = line.get(name), getattr(self, name)
            if type(value) is not kind or (isinstance(value, str) and len(value) != FINGERPRINT):
                continue  # another program's field of that name
            if current not in (None, value):
                different = f"{name} {value!s:.12} and not {current!s:.12}"
                break
            setattr(self, name, value)
        self.needed = max([self.needed, *(1 + max(one.prompt + one.tokens) for _, one in turns)])
        if self.n_vocab is not None and self.needed > self.n_vocab:
            different = f"token {self.needed - 1:,} was recorded, and there are {self.n_vocab:,}"
        if different:
            advice = "replay it by itself, with the model that was recorded"
            raise UsageError(f"is of another vocabulary ({different}); {advice}")
        id_ = line.get("id", line.get("custom_id"))
        id_ = str(id_ if isinstance(id_, str | int) else number)
        known = {key: line[key] for key in ("category", "session") if isinstance(line.get(key), str)}
        self.requests += [TraceRequest(id_ + suffix, number, one, **known) for suffix, one in turns]


def count_lines(path: Path) -> int:
    """Return the number of lines that are not empty. Raises UsageError for a pipe."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UsageError(f"{path}: is read twice, which a pipe cannot be; give a .jsonl file")
    return sum(1 for _ in raw_lines(path))


def read(
    path: Path, tokenizer: Text | None, *, n_vocab: int | None = None, vocab: str | None = None,
    template: bool = False, limit: int | None = None, tick: Callable[[str], None] = lambda _: None,
) -> Trace:  # fmt: skip
    """Read a file of recorded requests.
    n_vocab, vocab: of the model, if known. template: messages go through the tokenizer's chat template.
    limit: maximum number of requests. tick: called with LINE after each line. Raises UsageError for a file
    without a request, for a vocabulary that differs, and for text without the tokenizer or template."""
    if template and tokenizer is not None and not tokenizer.has_chat_template:
        raise UsageError("--chat-template: this model has no chat template; leave it out")
    trace = Trace(path, n_vocab=n_vocab, vocab=vocab)
    for raw in raw_lines(path):
        if limit is not None and len(trace.requests) >= limit:
            break
        with located(f"{path}, line {raw.number}"):
            try:
                line = object_of(raw)
                turns = requests_of(line, tokenizer, template=template)
            except MissingTokenizerError:
                raise
            except UsageError as error:
                trace.n_unusable += 1
                if len(trace.unusable) < REPORTED:
                    trace.unusable.append((raw.number, str(error)))
            else:
                trace.add(raw.number, line, turns)
        tick(LINE)
    if not trace.requests:
        why = "".join(f"; line {number}: {reason}" for number, reason in trace.unusable[:1])
        raise UsageError(f"{path}: holds no answer to replay{why or f'; {FORMS}'}")
    if limit is not None:
        del trace.requests[limit:]
    return trace


def warnings(trace: Trace) -> list[str]:
    """Describe the first skipped lines, and count the others."""
    shown = [f"{trace.path}, line {number}, left out: {why}" for number, why in trace.unusable[:WARNINGS]]
    more = trace.n_unusable - WARNINGS
    return [*shown, f"{trace.path}: {more:,} more lines are left out"] if more > 0 else shown


class MissingTokenizerError(UsageError):
    """A line holds text and no tokenizer is given."""


def requests_of(line: dict[str, Any], encoder: Text | None, *, template: bool) -> list[tuple[str, Recording]]:
    """Return the requests of a line with a suffix of their id, "" if the line has only one.
    Raises UsageError for a line that cannot be used, and MissingTokenizerError."""
    if {"prompt_tokens", "tokens"} <= line.keys():
        return [("", _from_tokens(line))]
    response: Any = line.get("response")
    exchange = isinstance(response, dict)
    parts = _texts({name: value for name, value in line.items() if name != "response" or not exchange})
    answers = [part for part in (_texts(response) if exchange else parts) if part[0] == ASSISTANT]
    if not answers or all(role == ASSISTANT for role, _ in parts):
        raise LineError(f"has no request and answer; {FORMS}")
    if encoder is None:
        advice = "name the model with -m FILE.gguf (`paceline zoo path target` prints one to try with)"
        raise MissingTokenizerError(f"holds text, and a replay is of tokens: {advice}")
    turns = _rendered if template and parts[0][0] != RAW else _joined
    # Of a logged exchange only the response is replayed: earlier answers have lines of their own.
    exchanges = [[*parts, answer] for answer in answers] if exchange else []
    found = [list(turns(exchange, encoder))[-1] for exchange in exchanges] or list(turns(parts, encoder))
    return [(f".{number}" if len(found) > 1 else "", one) for number, one in enumerate(found, 1)]


def _texts(data: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the messages of a record, without reasoning, which templates leave out of later prompts."""
    parts = record_parts(data)
    return [(role, text) for role, text in parts if isinstance(text, str) and role != REASONING]


def _from_tokens(line: Mapping[str, Any]) -> Recording:
    # A "format" of another type is another program's field.
    if type(line.get("format")) is int and line["format"] > FORMAT:
        raise LineError(f"is of format {line['format']}, and this Paceline reads {FORMAT}; update Paceline")
    for name in ("prompt_tokens", "tokens"):
        ids = line[name]
        # By their type: True is an int.
        if not isinstance(ids, list) or set(map(type, ids)) - {int} or min(ids, default=0) < 0:
            raise LineError(f"its {name} is no list of token ids")
    return Recording(tuple(line["prompt_tokens"]), tuple(line["tokens"]), noise_of(line))


def noise_of(line: Mapping[str, Any]) -> GumbelNoise | None:
    """Return the noise that the tokens were sampled with, if the line records it."""
    settings, seed = line.get("sampling"), line.get("seed")
    if line.get("draws") == RNG_NAME and isinstance(settings, dict) and type(seed) is int and seed >= 0:
        with suppress(TypeError, UsageError):
            known = {name: settings[name] for name in settings_of(Sampling) if name in settings}
            return GumbelNoise.of(Sampling(**known), SeededRng(seed))
    return None


def _joined(parts: Sequence[tuple[str, str]], tokenizer: Text) -> Iterator[Recording]:
    """Yield a request for each assistant message. All are encoded into one list, so that each prompt begins
    with the tokens of earlier ones."""
    waiting, tokens, earlier = "", list[int](), ""
    for role, content in parts:
        if role != ASSISTANT:
            waiting += content if role == RAW else f"{role.capitalize()}:\n{content}\n\n"
        else:
            waiting += "" if earlier == RAW and waiting else f"{role.capitalize()}:\n"
            tokens += tokenizer.encode_continuation(waiting) if tokens else tokenizer.encode(waiting)
            answer = tokenizer.encode_continuation(content)
            yield Recording(tuple(tokens), tuple(answer))
            tokens += answer
            waiting = "\n\n"
        earlier = role


def _rendered(parts: Sequence[tuple[str, str]], tokenizer: Text) -> Iterator[Recording]:
    """Yield a request for each assistant message. Each prompt is rendered separately, as a server does: a
    template may change earlier answers."""
    begin = tokenizer.encode("")[:1]
    for at, (role, content) in enumerate(parts):
        if role != ASSISTANT:
            continue
        try:
            text = tokenizer.render([{"role": role, "content": content} for role, content in parts[:at]])
        except ModelError as error:
            raise LineError(f"cannot be replayed, {error}") from error
        # Most templates write BOS themselves.
        prompt = tokenizer.encode(text, special=True, add_bos=False)
        prompt = prompt if prompt[:1] == begin else [*begin, *prompt]
        yield Recording(tuple(prompt), tuple(tokenizer.encode_continuation(content)))
