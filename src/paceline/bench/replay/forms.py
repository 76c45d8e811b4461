"""Parsers of the forms that a line of a trace may have.

Messages are joined as plain text ("Role:", a newline, the content and an empty line) or rendered by the
model's chat template. Tool calls follow their message's content, a JSON object per line, since a log does not
contain the model's syntax for them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.backends.recorded import Recording
from paceline.bench.jsonl import LineError
from paceline.bench.replay.recording import FORMAT
from paceline.speculative import validation as typed
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.rng import RNG_NAME, GumbelNoise, SeededRng
from paceline.speculative.sampling import Sampling
from paceline.text.interface import Text
from paceline.text.messages import parse_messages

FORMS = "write prompt_tokens and tokens, prompt and completion, messages, or request and response"
NOISE = ("temperature", "top_k", "typical_p", "top_p", "min_p", "xtc_probability", "xtc_threshold")
ASSISTANT = "assistant"
RoleAndContent = tuple[str, str]  # role and content
NumberedRecording = tuple[int, Recording | None]  # number within the line, and None for an empty answer


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
    rows = line.get("top_k") or []
    if not isinstance(rows, list):
        raise LineError("its top_k is no list; leave it out")
    top_k = tuple(_ids({"top_k": row}, "top_k") for row in rows)
    if not all(top_k):
        raise LineError("a row of its top_k is empty; leave top_k out")
    return Recording(prompt, tokens, top_k, noise_of(line)) if tokens else None


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
