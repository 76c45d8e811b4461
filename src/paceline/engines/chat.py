"""Chat templates: jinja2 in a sandbox, with the functions Hugging Face's templates call."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

from paceline.core.errors import ModelError


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
