"""Chats as tokens: messages in the model's template, where control tokens in a message's text are text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.vocabulary import Vocab
from paceline.text.interface import encode_continuation
from paceline.text.messages import Message, Tool, texts_in

if TYPE_CHECKING:
    from paceline.text.interface import Text

ChatInput = tuple[list[Message], list[Tool] | None, dict[str, Any]]  # messages, tools, a template's variables

NO_TEMPLATE = (
    "this model has no chat template: it is a base model; give a plain prompt (to generate, or to run "
    "without --chat)"
)


def encode_chat(
    text: Text,
    vocab: Vocab,
    messages: list[Message],
    tools: list[Tool] | None = None,
    variables: Mapping[str, Any] | None = None,
    *,
    answer: str = "",
) -> list[int]:
    """Return the messages in the model's template, as tokens. answer: the beginning of its answer.

    What messages, tools and variables say is text, even a control token. Raises ModelError without a usable
    template, and UsageError where such text cannot be told from what the template puts around it."""
    variables = variables or {}
    rendered = text.render(messages, tools, variables)
    value: ChatInput = (messages, tools, dict(variables))
    controls = _controls(text, vocab, value)
    if not controls:
        return text.encode(rendered + answer, special=True, add_bos=False)
    # Characters of private use around each of them show where it comes out.
    begin, end = islice((c for c in map(chr, range(0xE000, 0xF8FF)) if c not in rendered), 2)
    spelled = "|".join(map(re.escape, sorted(controls, key=len, reverse=True)))
    found = re.compile(spelled)
    messages, tools, variables = _map_texts(value, lambda one: found.sub(f"{begin}\\g<0>{end}", one))
    marked = text.render(messages, tools, variables)
    if marked.replace(begin, "").replace(end, "") != rendered:
        raise UsageError(
            f"a message or a tool contains {controls[0]}, a control token of this model, and its chat "
            "template changes such text, so that the two cannot be told apart: leave it out"
        )
    # A template that cuts a text at a control token leaves a mark alone.
    pieces = re.split(f"{begin}({spelled}){end}|{begin}|{end}", marked + answer)
    tokens = text.encode(pieces[0], special=True, add_bos=False)
    for control, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        tokens += text.encode_continuation(control) if control else []
        tokens += encode_continuation(partial(text.encode, special=True), piece) if piece else []
    return tokens


def _controls(text: Text, vocab: Vocab, chat: ChatInput) -> list[str]:
    """Return the control tokens that the input contains as text. Raises UsageError where two messages make
    one together: a template may put them side by side."""
    texts = list(texts_in(list(chat)))
    contents = "".join((message.get("content") or "").strip() for message in chat[0])
    together = "\n".join([*texts, contents])
    if text.encode(together, special=True, add_bos=False) == text.encode(together, add_bos=False):
        return []
    controls = list(dict.fromkeys(name for one in texts for name in control_texts(text, vocab, one)))
    for name in controls:
        if not any(name in one for one in texts):
            raise UsageError(
                f"a message or a tool is read as {name}, a control token of this model: change it"
            )
    if not controls and (name := control_text(text, vocab, contents)):
        raise UsageError(f"two messages side by side make {name}, a control token of this model: change one")
    return controls


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with each text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_texts(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(one, change) for one in value]
    return value


def control_texts(text: Text, vocab: Vocab, message: str) -> list[str]:
    """Return the control tokens that `said` contains as text."""
    special = text.encode(message, special=True, add_bos=False)
    if special == text.encode(message, add_bos=False):
        return []
    silent = (token for token in special if not vocab.piece(token))
    return [vocab.text(token).decode(errors="replace") for token in silent]


def control_text(text: Text, vocab: Vocab, message: str) -> str:
    """Return the first control token that `said` contains as text, or ""."""
    return next(iter(control_texts(text, vocab, message)), "")


def render(
    template: str,
    messages: list[Message],
    tools: list[Tool] | None = None,
    variables: Mapping[str, Any] | None = None,
    *,
    bos: str = "",
    eos: str = "",
) -> str:
    """Render a chat template over messages and tools. variables: more of the template's variables. Raises
    ModelError where the template refuses the messages, is broken, or does too much."""
    from paceline.text import template_process

    if not template:
        raise ModelError(NO_TEMPLATE)
    given = {
        "messages": messages,
        "tools": tools,
        "documents": None,
        "bos_token": bos,
        "eos_token": eos,
        "add_generation_prompt": True,
        **(variables or {}),
    }
    return template_process.render(template, given)
