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

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from paceline.backends.recorded import Recording
from paceline.bench.jsonl import LineError, object_of, raw_lines
from paceline.bench.replay.recording import FORMAT
from paceline.speculative import validation as typed
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.rng import RNG_NAME, GumbelNoise, SeededRng
from paceline.speculative.sampling import Sampling
from paceline.text.interface import Text
from paceline.text.messages import parse_messages

LINE = "reading"
REPORTED = 100  # skipped lines reported one by one; a file of another kind has millions
FINGERPRINT = 64  # letters
FORMS = "write prompt_tokens and tokens, prompt and completion, messages, or request and response"
NOISE = ("temperature", "top_k", "typical_p", "top_p", "min_p", "xtc_probability", "xtc_threshold")
ASSISTANT = "assistant"
RoleAndContent = tuple[str, str]  # role and content
NumberedRecording = tuple[int, Recording | None]  # number within the line, and None for an empty answer


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
        ids = (max(chain(one.prompt, one.tokens)) for one in recordings)
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


class MissingTokenizerError(UsageError):
    """A line holds text and no tokenizer is given."""


def requests_of(
    line: Mapping[str, Any], tokenizer: Text | None, *, template: bool
) -> list[NumberedRecording]:
    """Return the requests of a line with their numbers, 0 if the line has only one.

    template: messages go through the model's chat template. Raises UsageError for a line that cannot be used,
    and MissingTokenizerError."""
    if {"prompt_tokens", "tokens"} <= line.keys():
        return [(0, _from_tokens(line))]
    exchange = isinstance(line.get("response"), dict) and ("request" in line or "body" in line)
    if not exchange and "messages" not in line and not {"prompt", "completion"} <= line.keys():
        raise LineError(f"has no request and answer; {FORMS}")
    if tokenizer is None:
        raise MissingTokenizerError(
            "holds text, and a replay is of tokens: name the model with --tokenizer FILE.gguf "
            "(`paceline zoo path target` prints one to try with)"
        )
    if "messages" in line:
        parts = _parts(line["messages"])
        if "completion" in line:
            parts.append((ASSISTANT, typed.text("completion", line["completion"])))
        if not (turns := list(_turns(parts, tokenizer, template))):
            raise LineError("the assistant says nothing in its messages, so there is nothing to replay")
        return turns
    if exchange:
        return _exchanged(line, tokenizer, template)
    return [(0, _completion(line["prompt"], line["completion"], tokenizer))]


def _from_tokens(line: Mapping[str, Any]) -> Recording | None:
    # A "format" of another type is another program's field.
    if type(line.get("format")) is int and line["format"] > FORMAT:
        raise LineError(f"is of format {line['format']}, and this Paceline reads {FORMAT}; update Paceline")
    prompt, tokens = _ids(line, "prompt_tokens"), _ids(line, "tokens")
    return Recording(prompt, tokens, noise_of(line)) if tokens else None


def noise_of(line: Mapping[str, Any]) -> GumbelNoise | None:
    """Return the noise that the tokens were sampled with, if the line records it."""
    settings, seed = line.get("sampling"), line.get("seed")
    if line.get("draws") != RNG_NAME or not isinstance(settings, dict) or type(seed) is not int or seed < 0:
        return None
    try:
        sampling = Sampling(**{name: settings[name] for name in NOISE if name in settings})
    except (TypeError, UsageError):
        return None
    return GumbelNoise.of(sampling, SeededRng(seed))


def _ids(line: Mapping[str, Any], name: str) -> tuple[int, ...]:
    ids = line[name]
    # By their type: True is an int.
    if not isinstance(ids, list) or set(map(type, ids)) - {int} or min(ids, default=0) < 0:
        raise LineError(f"its {name} is no list of token ids")
    return tuple(ids)


def _completion(prompt: Any, answer: Any, tokenizer: Text) -> Recording | None:
    return _recording(
        tokenizer.encode(typed.text("prompt", prompt)), typed.text("completion", answer), tokenizer
    )


def _recording(prompt: Sequence[int], answer: str, tokenizer: Text) -> Recording | None:
    tokens = tokenizer.encode_continuation(answer) if answer else ()
    return Recording(tuple(prompt), tuple(tokens)) if tokens else None


def _exchanged(line: Mapping[str, Any], tokenizer: Text, template: bool) -> list[NumberedRecording]:
    """Read a request logged with its response, as proxies and OpenAI batches write them. Only the response is
    replayed: earlier answers have lines of their own."""
    request, response = _body(line.get("request", line.get("body"))), _body(line["response"])
    choices = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(request, dict) or not isinstance(choices, list) or not choices:
        raise LineError("its response holds no choices (an error, or not of the OpenAI API); leave it out")
    recordings: list[Recording | None] = []
    for choice in choices:
        message, answer = (
            choice.get(name) if isinstance(choice, dict) else None for name in ("message", "text")
        )
        if "messages" not in request:
            recordings.append(_completion(request.get("prompt"), answer, tokenizer))
            continue
        if not isinstance(message, dict):
            raise LineError("a choice of its response has no message; log the whole answer, not its pieces")
        reply = message | {"role": ASSISTANT, "content": message.get("content") or ""}
        *_, (_, last) = _turns(_parts(request["messages"]) + _parts([reply]), tokenizer, template)
        recordings.append(last)
    return [(number if len(choices) > 1 else 0, one) for number, one in enumerate(recordings, 1)]


def _body(logged: Any) -> Any:
    """Return the body of a request or response that may be logged with its headers."""
    return logged["body"] if isinstance(logged, dict) and "body" in logged else logged


def _parts(messages: Any) -> list[RoleAndContent]:
    """Return the role and content of each message, tool calls included. Raises UsageError."""
    parsed = parse_messages(messages if isinstance(messages, list) else None)  # type: ignore[arg-type]
    return [
        (one["role"], _with_tool_calls(one, logged)) for one, logged in zip(parsed, messages, strict=True)
    ]


def _with_tool_calls(message: Mapping[str, Any], logged: Mapping[str, Any]) -> str:
    calls = []
    for call in logged.get("tool_calls") or ():
        name, arguments = call["function"]["name"], call["function"].get("arguments", "{}")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        calls.append(f'{{"name": "{name}", "arguments": {arguments}}}')
    content = message["content"] or ""
    return "\n".join([content, *calls] if content else calls)


def _turns(parts: Sequence[RoleAndContent], tokenizer: Text, template: bool) -> Iterator[NumberedRecording]:
    """Yield a request for each assistant message, numbered from 1. Its prompt is all earlier messages. Raises
    LineError if the template rejects the messages."""
    return _rendered(parts, tokenizer) if template else _joined(parts, tokenizer)


def _joined(parts: Sequence[RoleAndContent], tokenizer: Text) -> Iterator[NumberedRecording]:
    """Encode all turns into one list, so that each prompt begins with the tokens of earlier ones."""
    waiting, turn, tokens = "", 0, list[int]()
    for role, content in parts:
        waiting += f"{role.capitalize()}:\n"
        if role != ASSISTANT:
            waiting += f"{content}\n\n"
            continue
        turn += 1
        tokens += tokenizer.encode_continuation(waiting) if tokens else tokenizer.encode(waiting)
        recording = _recording(tokens, content, tokenizer)
        yield turn, recording
        tokens += recording.tokens if recording else ()
        waiting = "\n\n"


def _rendered(parts: Sequence[RoleAndContent], tokenizer: Text) -> Iterator[NumberedRecording]:
    """Render each prompt separately, as a server does: a template may change earlier answers or drop
    reasoning."""
    begin = tokenizer.encode("")[:1]
    answers = [at for at, (role, _) in enumerate(parts) if role == ASSISTANT]
    for turn, at in enumerate(answers, 1):
        try:
            text = tokenizer.render([{"role": role, "content": content} for role, content in parts[:at]])
        except ModelError as error:
            raise LineError(f"answer {turn} cannot be replayed, {error}") from error
        # Most templates write BOS themselves.
        prompt = tokenizer.encode(text, special=True, add_bos=False)
        prompt = prompt if prompt[:1] == begin else [*begin, *prompt]
        yield turn, _recording(prompt, parts[at][1], tokenizer)
