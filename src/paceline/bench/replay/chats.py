"""Conversations to requests: the messages of a log, spelled as the tokens that a server would have read.

A message is joined to those before it as plain text, "Role:", a newline, the content and an empty line; or
all of them go through the model's own chat template. Calls of tools follow their message's content, a JSON
object a line: how a model spelled them itself is not in the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from paceline.backends.recorded import Recording
from paceline.bench.jsonl import LineError
from paceline.speculative.errors import ModelError

Part = tuple[str, str]  # role and content
Turn = tuple[int, Recording | None]  # its number, and None where nothing was answered
ANSWERING = "assistant"


class ChatTokenizer(Protocol):
    def encode(self, text: str, *, special: bool = ..., add_bos: bool = ...) -> list[int]: ...

    def encode_within(self, text: str) -> list[int]: ...

    def render(self, messages: list[dict[str, str]]) -> str: ...


def turns(parts: Sequence[Part], tokenizer: ChatTokenizer, *, template: bool) -> list[Turn]:
    """A request for each of the assistant's messages, numbered from 1; its prompt is all that was said before
    it. Raises LineError where the template refuses what was said."""
    return list(_rendered(parts, tokenizer) if template else _joined(parts, tokenizer))


def _joined(parts: Sequence[Part], tokenizer: ChatTokenizer) -> Iterator[Turn]:
    """All requests are slices of one list, so that a prompt begins with the tokens of those before it."""
    waiting, turn, tokens = "", 0, list[int]()
    for role, content in parts:
        waiting += f"{role.capitalize()}:\n"
        if role != ANSWERING:
            waiting += f"{content}\n\n"
            continue
        turn += 1
        tokens += tokenizer.encode_within(waiting) if tokens else tokenizer.encode(waiting)
        answer = tokenizer.encode_within(content) if content else []
        yield turn, Recording(tuple(tokens), tuple(answer)) if answer else None
        tokens += answer
        waiting = "\n\n"


def _rendered(parts: Sequence[Part], tokenizer: ChatTokenizer) -> Iterator[Turn]:
    """Each prompt is rendered by itself, as a server does: a template may spell earlier answers otherwise
    than they were given, and leave out what was thought aloud."""
    begin = tokenizer.encode("")[:1]
    answering = [at for at, (role, _) in enumerate(parts) if role == ANSWERING]
    for turn, at in enumerate(answering, 1):
        messages = [{"role": role, "content": content} for role, content in parts[:at]]
        try:
            text = tokenizer.render(messages)
        except ModelError as error:
            raise LineError(f"answer {turn} cannot be replayed, {error}") from error
        # A template spells BOS itself, as a rule.
        prompt = tokenizer.encode(text, special=True, add_bos=False)
        prompt = prompt if prompt[:1] == begin else [*begin, *prompt]
        if not prompt:
            raise LineError(f"answer {turn} has an empty prompt; leave the line out")
        content = parts[at][1]
        answer = tokenizer.encode_within(content) if content else []
        yield turn, Recording(tuple(prompt), tuple(answer)) if answer else None


def parts_of(messages: Any) -> list[Part]:
    """Role and content of each message. Raises LineError."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise LineError("its messages are no list of objects with role and content")
    return [(text(message.get("role"), "role"), content_of(message)) for message in messages]


def content_of(message: Mapping[str, Any]) -> str:
    """With the calls of tools. Raises LineError."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        if None in texts:
            raise LineError("a message has a part that is no text; images cannot be replayed")
        content = "".join(text(one, "text") for one in texts)
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise LineError("a message's tool_calls are no list")
    if content is None and (calls or message.get("role") == ANSWERING):
        content = ""
    said = [text(content, "content")]
    return "\n".join([one for one in said if one or not calls] + [_call(call) for call in calls])


def _call(call: Any) -> str:
    """As most models write it: the arguments stand in the log as JSON already."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise LineError("a tool call is no object with a function")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(text(function.get("name"), "function's name"), ensure_ascii=False)
    return f'{{"name": {name}, "arguments": {text(arguments, "arguments")}}}'


def text(said: Any, name: str) -> str:
    """Raises LineError for what is no text."""
    if not isinstance(said, str):
        raise LineError(f"its {name} is no text")
    try:
        said.encode()
    except UnicodeEncodeError as error:
        raise LineError(f"its {name} is no UTF-8 text (character {error.start})") from error
    return said
