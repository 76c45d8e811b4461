"""Chat templates: jinja2 in a sandbox, with the functions Hugging Face's templates call.

A template is a program in somebody's file: it may do as much as a template of a real model could need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NoReturn

from paceline.core import typed
from paceline.core.errors import ModelError
from paceline.core.printable import printable

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
