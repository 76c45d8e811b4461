"""Files of recorded requests: JSON lines, each an answered request or a conversation of several.

    {"prompt_tokens": [...], "tokens": [...]}        token ids; "top_k": [[...], ...] and "n_vocab" if known
    {"prompt": "...", "completion": "..."}           text
    {"messages": [{"role": ..., "content": ...}]}    a conversation; what the assistant said last may also
                                                     stand beside it, as "completion"

Each of the assistant's messages is a request, and its prompt all that was said before it, so that a drafter
sees what a server would. Messages are joined as plain text, "Role:", a newline, the content and an empty
line; calls of tools follow their message's content, a JSON object a line. Other fields are let be: logs hold
many.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from paceline.core.errors import UsageError
from paceline.engines.recorded import Recording
from paceline.lab.jsonl import numbered_lines

FORMS = "write prompt_tokens and tokens, prompt and completion, or messages"
LINE = "reading"


class Tokenizer(Protocol):
    def encode(self, text: str, *, special: bool = ..., add_bos: bool = ...) -> list[int]: ...

    def encode_within(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request of a file. id: the line's own or its number, and in a conversation the turn's number after
    it. line: requests of one line belong together."""

    id: str
    line: int
    recording: Recording


@dataclass(frozen=True)
class Trace:
    """skipped: answers without a token, which there is nothing to replay of. n_vocab: the size of its
    vocabulary where that is known; needed: of the smallest that all of its tokens fit in."""

    path: Path
    requests: tuple[Recorded, ...]
    skipped: int
    n_vocab: int | None
    needed: int


def lines(path: Path) -> list[tuple[int, str]]:
    """The lines that are not empty, with their numbers."""
    found = list(numbered_lines(path))
    if not found:
        raise UsageError(f"{path}: is empty; write one JSON object a line: {FORMS}")
    return found


def read(
    path: Path,
    said: Sequence[tuple[int, str]],
    tokenizer: Tokenizer | None,
    *,
    n_vocab: int | None = None,
    limit: int | None = None,
    tick: Callable[[str], None] = lambda _: None,
) -> Trace:
    """said: its `lines`. n_vocab: the size of the vocabulary that it has to be of, where one is known.
    limit: most requests. tick: called with LINE after each. Raises UsageError, with file and line."""
    requests: list[Recorded] = []
    needed = skipped = 0
    for number, line in said:
        if limit is not None and len(requests) >= limit:
            break
        where = f"{path}, line {number}"
        one = _object(line, where)
        name = _name(one, number, where)
        n_vocab = _n_vocab(one, n_vocab, where)
        for turn, recording in _requests(one, where, tokenizer):
            if recording is None:
                skipped += 1
                continue
            highest = max(max(recording.prompt), max(recording.tokens), *map(max, recording.top_k), -1)
            if n_vocab is not None and highest >= n_vocab:
                raise UsageError(
                    f"{where}: is of another vocabulary: it holds token {highest:,}, and there are "
                    f"{n_vocab:,}; give the model that was recorded"
                )
            needed = max(needed, highest + 1)
            requests.append(Recorded(f"{name}.{turn}" if turn else name, number, recording))
        tick(LINE)
    if not requests:
        raise UsageError(f"{path}: holds no answer to replay; {FORMS}")
    return Trace(path, tuple(requests[:limit]), skipped, n_vocab, needed)


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        one = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: is no JSON ({error}); write one object a line") from error
    if not isinstance(one, dict):
        raise UsageError(f"{where}: is no JSON object; write one a line")
    return one


def _name(one: dict[str, Any], number: int, where: str) -> str:
    name = one.get("id", number)
    return _text(str(name), "id", where) if isinstance(name, str | int) else str(number)


def _n_vocab(one: dict[str, Any], known: int | None, where: str) -> int | None:
    """The size of the vocabulary, as the line has it or as it was known before."""
    size = one.get("n_vocab", known)
    if size is not None and (type(size) is not int or size < 1):
        raise UsageError(f"{where}: its n_vocab is {size!r}; write the number of tokens of the vocabulary")
    if known is not None and size != known:
        raise UsageError(
            f"{where}: is of another vocabulary, of {size:,} tokens and not {known:,}; replay it by itself, "
            "with the model that was recorded"
        )
    return size


def _requests(
    one: dict[str, Any], where: str, tokenizer: Tokenizer | None
) -> Iterator[tuple[int, Recording | None]]:
    """The number of each turn (0 where there is only one to a line) and its recording, None where nothing was
    answered."""
    if {"prompt_tokens", "tokens"} <= one.keys():
        yield 0, _from_tokens(one, where)
        return
    if "messages" not in one and not {"prompt", "completion"} <= one.keys():
        raise UsageError(f"{where}: has no request and answer; {FORMS}")
    if tokenizer is None:
        raise UsageError(
            f"{where}: holds text, and a replay is of tokens: name the model with --tokenizer FILE.gguf "
            "(`paceline zoo path target` prints one to try with)"
        )
    if "messages" in one:
        yield from _conversation(_parts(one, where), where, tokenizer)
        return
    prompt = tokenizer.encode(_text(one["prompt"], "prompt", where))
    answer = tokenizer.encode_within(_text(one["completion"], "completion", where))
    if not prompt:
        raise UsageError(f"{where}: its prompt is empty; leave the line out")
    yield 0, Recording(tuple(prompt), tuple(answer)) if answer else None


def _from_tokens(one: dict[str, Any], where: str) -> Recording | None:
    prompt, tokens = (_ids(one[name], name, where) for name in ("prompt_tokens", "tokens"))
    if not prompt:
        raise UsageError(f"{where}: its prompt_tokens are empty; leave the line out")
    said = one.get("top_k") or []
    if not isinstance(said, list) or len(said) not in (0, len(tokens)):
        raise UsageError(f"{where}: its top_k is no list with one entry a token; leave it out")
    top_k = tuple(_ids(row, "top_k", where) for row in said)
    if not all(top_k):
        raise UsageError(f"{where}: a row of its top_k is empty; leave top_k out")
    return Recording(prompt, tokens, top_k) if tokens else None


def _ids(said: Any, name: str, where: str) -> tuple[int, ...]:
    # Not isinstance: True is an int.
    if not isinstance(said, list) or not all(type(token) is int and token >= 0 for token in said):
        raise UsageError(f"{where}: its {name} is no list of token ids")
    return tuple(said)


def _text(said: Any, name: str, where: str) -> str:
    if not isinstance(said, str):
        raise UsageError(f"{where}: its {name} is no text")
    try:
        said.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{where}: its {name} is no UTF-8 text (character {error.start})") from error
    return said


def _conversation(
    parts: Sequence[tuple[str, str]], where: str, tokenizer: Tokenizer
) -> Iterator[tuple[int, Recording | None]]:
    """A request for each of the assistant's messages. All of them are slices of one list, so that a prompt
    begins with the tokens of those before it."""
    waiting, turn, tokens = "", 0, list[int]()

    def take() -> None:
        nonlocal waiting
        tokens.extend(tokenizer.encode_within(waiting) if tokens else tokenizer.encode(waiting))
        waiting = ""

    for role, content in parts:
        waiting += f"{role.capitalize()}:\n"
        if role == "assistant":
            turn += 1
            take()
            answer = tokenizer.encode_within(content) if content else []
            yield turn, Recording(tuple(tokens), tuple(answer)) if answer else None
            tokens += answer
            waiting = "\n\n"
        else:
            waiting += f"{content}\n\n"
    if turn == 0:
        raise UsageError(
            f"{where}: the assistant says nothing in its messages, so there is nothing to replay"
        )


def _parts(one: dict[str, Any], where: str) -> list[tuple[str, str]]:
    """Role and content of each message."""
    messages = one["messages"]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UsageError(f"{where}: its messages are no list of objects with role and content")
    out = [(_text(m.get("role"), "role", where), _content(m, where)) for m in messages]
    if "completion" in one:
        out.append(("assistant", _text(one["completion"], "completion", where)))
    return out


def _content(message: dict[str, Any], where: str) -> str:
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        if None in texts:
            raise UsageError(f"{where}: a message has a part that is no text; images cannot be replayed")
        content = "".join(_text(text, "text", where) for text in texts)
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise UsageError(f"{where}: a message's tool_calls are no list")
    if content is None and (calls or message.get("role") == "assistant"):
        content = ""
    said = [_text(content, "content", where)]
    return "\n".join([text for text in said if text or not calls] + [_call(call, where) for call in calls])


def _call(call: Any, where: str) -> str:
    """As most models write it: the arguments stand in the log as JSON already."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise UsageError(f"{where}: a tool call is no object with a function")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(_text(function.get("name"), "function's name", where), ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {_text(arguments, "arguments", where)}}}'
