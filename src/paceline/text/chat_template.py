"""Chats as tokens, and their default sampling. Control tokens in messages are encoded as text."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.interfaces import Target
from paceline.speculative.sampling_settings import DEFAULT_CHAT_SAMPLING, Sampling
from paceline.speculative.vocabulary import Vocab
from paceline.text.messages import Message, Tool, texts_in

if TYPE_CHECKING:
    from paceline.text.interface import Text

log = logging.getLogger("paceline.text")
PRIVATE_USE = frozenset(map(chr, range(0xE000, 0xF900)))  # characters that serve as marks
ChatInput = tuple[list[Message], list[Tool] | None, dict[str, Any]]  # messages, tools, template variables


def encode_chat(
    text: Text,
    vocab: Vocab,
    messages: list[Message],
    tools: list[Tool] | None = None,
    variables: Mapping[str, Any] | None = None,
    *,
    answer: str = "",
    continue_final: bool = False,
) -> list[int]:
    """Return the tokens of a chat in the model's template. answer: beginning of the model's answer.
    continue_final: the last message, the assistant's, is left open, so that the answer goes on with it.
    Control tokens in messages, tools and variables are encoded as text. Raises ModelError without a usable
    template, and UsageError if such text cannot be separated from the template's."""
    variables, cut = variables or {}, ""
    if continue_final:
        messages, cut = _mark_end(messages)
        variables = {**variables, "add_generation_prompt": False}
    messages, rendered = _render(text, messages, tools, variables)
    rendered = _open_end(rendered, cut)
    value: ChatInput = (messages, tools, dict(variables))
    controls = _controls(text, vocab, value)
    if not controls:
        return text.encode(rendered + answer, special=True, add_bos=False)
    # Characters of private use mark their places in the rendered text.
    marks = sorted(PRIVATE_USE.difference(rendered, *texts_in(list(value))))[:2]
    there = f"a message or a tool contains {controls[0]}, a control token of this model, and"
    if len(marks) < 2:
        raise UsageError(f"{there} all characters of private use, which would mark it as text: leave out one")
    begin, end = marks
    pattern = "|".join(map(re.escape, sorted(controls, key=len, reverse=True)))
    messages, tools, variables = _map_texts(value, lambda t: re.sub(pattern, f"{begin}\\g<0>{end}", t))
    marked = _open_end(text.render(messages, tools, variables), cut)
    if marked.replace(begin, "").replace(end, "") != rendered:
        apart = "so that the two cannot be told apart: leave it out"
        raise UsageError(f"{there} its chat template changes such text, {apart}")
    # A template that splits a text at a control token leaves single marks.
    pieces = re.split(f"{begin}({pattern}){end}|{begin}|{end}", marked + answer)
    tokens = text.encode(pieces[0], special=True, add_bos=False)
    for control, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        tokens += text.encode_continuation(control) if control else []
        tokens += text.encode_continuation(piece, special=True) if piece else []
    return tokens


def _mark_end(messages: list[Message]) -> tuple[list[Message], str]:
    """Return the messages with a mark after the text of the last one, and the mark."""
    last = messages[-1] if messages else {}
    mark = min(PRIVATE_USE.difference(*texts_in(messages)), default="")
    if last.get("role") != "assistant" or not mark:
        raise UsageError("continue_final_message: the last message must be the assistant's")
    return [*messages[:-1], {**last, "content": f"{last.get('content') or ''}{mark}"}], mark


def _open_end(rendered: str, mark: str) -> str:
    """Cut what the template has after the mark, if there is one: the end of the message."""
    before, found, _ = rendered.rpartition(mark) if mark else (rendered, "-", "")
    if not found:
        raise UsageError("continue_final_message: this model's chat template drops the last message")
    return before.replace(mark, "") if mark else before


def _render(
    text: Text, messages: list[Message], tools: list[Tool] | None, variables: Mapping[str, Any]
) -> tuple[list[Message], str]:
    """Render a chat. A system message that the template does not take goes into the first user message."""
    first, others = messages[0] if messages else {}, messages[1:]
    content = (first.get("content") or "").strip()
    if first.get("role") != "system" or not content:
        return messages, text.render(messages, tools, variables)
    with suppress(ModelError):
        rendered = text.render(messages, tools, variables)
        if rendered.count(content) > sum(part.count(content) for part in texts_in(others)):
            return messages, rendered
        without = ""
        with suppress(ModelError):  # a template that needs the message reads it
            without = text.render(others, tools, variables)
        if without != rendered:
            return messages, rendered
    at = next((at for at, message in enumerate(others) if message["role"] == "user"), None)
    if at is None:
        others = [{**first, "role": "user"}, *others]
    else:
        others[at] = {**others[at], "content": f"{content}\n\n{others[at].get('content') or ''}"}
    rendered = text.render(others, tools, variables)
    warn_of_lost_system_message(text.template(tools=bool(tools)))
    return others, rendered


@lru_cache(maxsize=8)
def warn_of_lost_system_message(_template: str) -> None:
    """Warn once of a template."""
    log.warning("the chat template takes no system message: it goes into the first user message")


def _controls(text: Text, vocab: Vocab, chat: ChatInput) -> list[str]:
    """Return the control tokens that the input contains as text.
    Raises UsageError if messages form one together, since a template may put them side by side."""
    texts = list(texts_in(list(chat)))
    contents = "".join((message.get("content") or "").strip() for message in chat[0])
    together = "\n".join([*texts, contents])
    if text.encode(together, special=True, add_bos=False) == text.encode(together, add_bos=False):
        return []
    controls = list(dict.fromkeys(name for part in texts for name in control_texts(text, vocab, part)))
    for name in controls:
        if not any(name in part for part in texts):
            raise UsageError(f"a message or tool is read as {name}, a control token of this model: change it")
    if not controls and (together_names := control_texts(text, vocab, contents)):
        name = together_names[0]
        raise UsageError(f"two messages side by side make {name}, a control token of this model: change one")
    return controls


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with each text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_texts(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(item, change) for item in value]
    return value


def control_texts(text: Text, vocab: Vocab, message: str) -> list[str]:
    """Return the control tokens that a message contains as text."""
    special = text.encode(message, special=True, add_bos=False)
    if special == text.encode(message, add_bos=False):
        return []
    silent = (token for token in special if not vocab.piece(token))
    return [vocab.text(token).decode(errors="replace") for token in silent]


@runtime_checkable
class SuggestsSampling(Protocol):
    """A target whose file may have sampling settings."""

    @property
    def suggested_sampling(self) -> Mapping[str, float]:
        """Fields of `Sampling`, not validated."""


def chat_sampling(target: Target, given: Mapping[str, float]) -> dict[str, float]:
    """Return sampling settings: `given`, else the model file's, else DEFAULT_CHAT_SAMPLING."""
    suggested: dict[str, Any] = dict(DEFAULT_CHAT_SAMPLING)
    if isinstance(target, SuggestsSampling):
        suggested |= target.suggested_sampling
    try:
        Sampling(**suggested)
    except UsageError:  # the file's values are invalid
        suggested = dict(DEFAULT_CHAT_SAMPLING)
    return {**suggested, **given}
