"""Chat templates: jinja2 in a sandbox, with the functions Hugging Face's templates call.

A template is a program in somebody's file: it may do as much as a template of a real model could need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, NoReturn

from paceline.core import typed
from paceline.core.errors import ModelError, UsageError
from paceline.core.printable import printable
from paceline.core.vocab import Vocab

if TYPE_CHECKING:
    from paceline.engines.engine import Text

LONGEST = 1 << 16  # characters of a template, compiled in seconds; real ones have up to 20,000
LONGEST_DATE = 200  # characters of a date's format
LONGEST_REASON = 200  # characters of what a template says when it refuses


def conversation(prompt: str | Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """A user's message, or a conversation, as messages whose role and content are text; else UsageError."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": typed.text("the prompt", prompt)}]
    if isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Iterable):
        raise typed.refusal("the chat", prompt, "text, or a list of messages with role and content")
    messages = []
    for number, message in enumerate(prompt, 1):
        if not isinstance(message, Mapping):
            raise typed.refusal(f"message {number}", message, "a mapping with role and content")
        for name in ("role", "content"):
            typed.text(f"message {number}: its {name}", message.get(name))
        messages.append(dict(message))
    return messages


def encoded(text: Text, vocab: Vocab, messages: list[dict[str, str]]) -> list[int]:
    """The messages in the model's template, as tokens. What a message says is text, even where it contains
    a control token. Raises ModelError without a usable template, and UsageError where such a message cannot
    be told from what the template puts around it."""
    rendered = text.render(messages)
    controls = {
        at: name for at, one in enumerate(messages) if (name := control_text(text, vocab, one["content"]))
    }
    if not controls:
        return text.encode(rendered, special=True, add_bos=False)
    marks = {at: f"\ue000{at}\ue001" for at in controls}  # characters of private use stand for the messages
    frame = text.render([one | {"content": marks.get(at, one["content"])} for at, one in enumerate(messages)])
    tokens, whole = list[int](), ""
    for at, mark in marks.items():
        before, found, frame = frame.partition(mark)
        said = messages[at]["content"]
        if not rendered.startswith(whole + before + said):
            said = said.strip()  # as many templates do
        whole += before + said
        if not found or not rendered.startswith(whole):
            raise UsageError(
                f"message {at + 1} contains {controls[at]}, a control token of this model, and its chat "
                "template changes the message, so that the two cannot be told apart: leave it out"
            )
        tokens += text.encode(before, special=True, add_bos=False) + text.encode_within(said)
    if whole + frame != rendered:
        raise UsageError(
            f"a message contains {next(iter(controls.values()))}, a control token of this model, and its "
            "chat template repeats or changes messages: leave it out"
        )
    return tokens + text.encode(frame, special=True, add_bos=False)


def control_text(text: Text, vocab: Vocab, said: str) -> str:
    """The first control token that `said` contains as text; "" where there is none."""
    special = text.encode(said, special=True, add_bos=False)
    if special == text.encode(said, add_bos=False):
        return ""
    silent = (token for token in special if not vocab.piece(token))
    return next((vocab.text(token).decode(errors="replace") for token in silent), "")


def render(template: str, messages: list[dict[str, str]], *, bos: str = "", eos: str = "") -> str:
    """Raises ModelError where the template refuses the messages, is broken, or does too much."""
    from jinja2 import TemplateError, TemplateSyntaxError

    from paceline.engines.sandbox.budget import Budget, RefusedError
    from paceline.engines.sandbox.environment import Bounded

    if len(template) > LONGEST:
        raise ModelError(f"the model's chat template is too long (over {LONGEST:,} characters)")
    budget = Budget(len(messages), sum(len(text) for message in messages for text in message.values()))
    environment = Bounded(
        budget, trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )

    def refuse(message: object) -> NoReturn:
        raise TemplateError(str(message))

    def now(form: str) -> str:
        if len(form) > LONGEST_DATE:
            raise RefusedError(f"asks for a date of a format of over {LONGEST_DATE} characters")
        return datetime.now().strftime(form)

    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = now
    try:
        return str(
            environment.compiled(template).render(
                messages=messages, bos_token=bos, eos_token=eos, add_generation_prompt=True
            )
        )
    except RefusedError as error:
        raise ModelError(f"the model's chat template {error}") from error
    except RecursionError as error:
        raise ModelError("the model's chat template is nested too deeply, or calls itself forever") from error
    except Exception as error:  # what it raises is its own
        reason = error.message if isinstance(error, TemplateSyntaxError) else str(error)
        raise ModelError(f"the model's chat template cannot be rendered: {_short(reason or '')}") from error


def _short(reason: str) -> str:
    line = printable(reason)
    return line if len(line) <= LONGEST_REASON else line[:LONGEST_REASON] + " ..."
