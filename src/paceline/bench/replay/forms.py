"""What one line of a trace may look like, and the requests in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline.backends.recorded import Recording
from paceline.bench.jsonl import LineError
from paceline.bench.replay.chats import (
    ANSWERING,
    ChatTokenizer,
    Part,
    Turn,
    content_of,
    parts_of,
    text,
    turns,
)
from paceline.bench.replay.recording import FORMAT
from paceline.speculative.errors import UsageError
from paceline.speculative.rng import DRAWS, GumbelNoise, SeededRng
from paceline.speculative.sampling import Sampling

FORMS = "write prompt_tokens and tokens, prompt and completion, messages, or request and response"
SECONDS = ("prompt", "seconds")
COUNTS = ("steps", "drafted", "accepted")
NOISE = ("temperature", "top_k", "typical_p", "top_p", "min_p", "xtc_probability", "xtc_threshold")


def requests_of(one: Mapping[str, Any], tokenizer: ChatTokenizer | None, *, template: bool) -> list[Turn]:
    """The requests of a line, with the number of each (0 where a line has but one). template: messages go
    through the model's own. Raises LineError, and UsageError for text without a tokenizer."""
    if {"prompt_tokens", "tokens"} <= one.keys():
        return [(0, _from_tokens(one))]
    logged = _logged(one)
    if not logged and "messages" not in one and not {"prompt", "completion"} <= one.keys():
        raise LineError(f"has no request and answer; {FORMS}")
    if tokenizer is None:
        raise UsageError(
            "holds text, and a replay is of tokens: name the model with --tokenizer FILE.gguf "
            "(`paceline zoo path target` prints one to try with)"
        )
    if "messages" in one:
        parts = parts_of(one["messages"])
        if "completion" in one:
            parts.append((ANSWERING, text(one["completion"], "completion")))
        if not (found := turns(parts, tokenizer, template=template)):
            raise LineError("the assistant says nothing in its messages, so there is nothing to replay")
        return found
    if {"prompt", "completion"} <= one.keys():
        return [(0, _completed(one["prompt"], one["completion"], tokenizer))]
    return _answered(one, tokenizer, template=template)


def _from_tokens(one: Mapping[str, Any]) -> Recording | None:
    # Other programs' lines may have a format too, which says nothing of ours.
    if type(one.get("format")) is int and one["format"] > FORMAT:
        raise LineError(f"is of format {one['format']}, and this Paceline reads {FORMAT}; update Paceline")
    prompt, tokens = (_ids(one[name], name) for name in ("prompt_tokens", "tokens"))
    if not prompt:
        raise LineError("its prompt_tokens are empty; leave the line out")
    said = one.get("top_k") or []
    if not isinstance(said, list) or len(said) not in (0, len(tokens)):
        raise LineError("its top_k is no list with one entry a token; leave it out")
    top_k = tuple(_ids(row, "top_k") for row in said)
    if not all(top_k):
        raise LineError("a row of its top_k is empty; leave top_k out")
    return Recording(prompt, tokens, top_k, noise_of(one)) if tokens else None


def noise_of(one: Mapping[str, Any]) -> GumbelNoise | None:
    """What the tokens were drawn with, where they were and the line tells."""
    said, seed = one.get("sampling"), one.get("seed")
    if one.get("draws") != DRAWS or not isinstance(said, dict) or type(seed) is not int or seed < 0:
        return None
    try:
        sampling = Sampling(**{name: said[name] for name in NOISE if name in said})
    except (TypeError, UsageError):
        return None
    return GumbelNoise.of(sampling, SeededRng(seed))


def _ids(said: Any, name: str) -> tuple[int, ...]:
    # By their type: True is an int.
    if not isinstance(said, list) or set(map(type, said)) - {int} or min(said, default=0) < 0:
        raise LineError(f"its {name} is no list of token ids")
    return tuple(said)


def _completed(prompt: Any, answer: Any, tokenizer: ChatTokenizer) -> Recording | None:
    asked = tokenizer.encode(text(prompt, "prompt"))
    said = tokenizer.encode_within(text(answer, "completion"))
    if not asked:
        raise LineError("its prompt is empty; leave the line out")
    return Recording(tuple(asked), tuple(said)) if said else None


def _logged(one: Mapping[str, Any]) -> bool:
    return isinstance(one.get("response"), dict) and any(name in one for name in ("request", "body"))


def _inner(said: Any) -> Any:
    """A request or response may be logged with its headers, itself being the body."""
    return said["body"] if isinstance(said, dict) and "body" in said else said


def _answered(one: Mapping[str, Any], tokenizer: ChatTokenizer, *, template: bool) -> list[Turn]:
    """What a proxy logs, and an OpenAI batch with the request beside its response. Only the response is an
    answer: those before it in the messages stand in lines of their own. Each of several choices is a
    request."""
    request, response = _inner(one.get("request", one.get("body"))), _inner(one["response"])
    choices = response.get("choices") if isinstance(response, dict) else None
    if not isinstance(request, dict) or not isinstance(choices, list) or not choices:
        raise LineError("its response holds no choices (an error, or not of the OpenAI API); leave it out")
    if not all(isinstance(choice, dict) for choice in choices):
        raise LineError("a choice of its response is no object")
    found: list[Recording | None]
    if "messages" in request:
        before = parts_of(request["messages"])
        found = [_last([*before, _choice(choice)], tokenizer, template=template) for choice in choices]
    else:
        found = [_completed(request.get("prompt"), choice.get("text"), tokenizer) for choice in choices]
    return [(number if len(found) > 1 else 0, recording) for number, recording in enumerate(found, 1)]


def _choice(choice: Mapping[str, Any]) -> Part:
    message = choice.get("message")
    if not isinstance(message, dict):
        raise LineError("a choice of its response has no message; log the whole answer, not its pieces")
    return ANSWERING, content_of(message | {"role": ANSWERING})


def _last(parts: list[Part], tokenizer: ChatTokenizer, *, template: bool) -> Recording | None:
    return turns(parts, tokenizer, template=template)[-1][1]


def sampled_of(one: Mapping[str, Any]) -> bool:
    """Whether the answer was drawn at a temperature, as far as the line tells."""
    said = one.get("sampling")
    if not isinstance(said, dict):
        said = _inner(one.get("request", one.get("body")))
    temperature = said.get("temperature") if isinstance(said, dict) else None
    return isinstance(temperature, int | float) and temperature > 0


def times_of(said: Any, n_tokens: int) -> dict[str, float] | None:
    """Seconds and counts of the decoding that was recorded, those that are there. None for what cannot have
    been measured: a clock that went backwards, more accepted than drafted."""
    if not isinstance(said, dict):
        return None
    times = {name: said[name] for name in (*SECONDS, *COUNTS) if name in said}
    for name, value in times.items():
        kinds = (int,) if name in COUNTS else (int, float)
        # Python's JSON has NaN, and whole numbers that no float can hold.
        if type(value) not in kinds or not 0 <= value < math.inf or value > 1 << 62:
            return None
    if times.get("accepted", 0) > times.get("drafted", math.inf) or times.get("steps", 0) > n_tokens:
        return None
    return times
