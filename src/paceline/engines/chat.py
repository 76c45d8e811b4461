"""Chat templates: jinja2 in a sandbox, with the functions Hugging Face's templates call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from paceline.core import typed
from paceline.core.errors import ModelError


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
    """Raises ModelError where the template refuses the messages or is broken."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
        # jinja2's own filter escapes for HTML; prompts are plain text.
        return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(template).render(
            messages=messages, bos_token=bos, eos_token=eos, add_generation_prompt=True
        )
    except Exception as error:  # the template is a program in somebody's file: what it raises is its own
        raise ModelError(f"the model's chat template cannot be rendered: {error}") from error
