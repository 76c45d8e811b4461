"""Chat templates in jinja2's sandbox and a subprocess, which bounds the time and memory of a template."""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NoReturn

from paceline.speculative.errors import ModelError
from paceline.speculative.printable import truncated
from paceline.text.messages import Message, Tool
from paceline.text.worker_process import WorkerEndedError, WorkerProcess

if TYPE_CHECKING:
    from jinja2 import Template

CPU_SECONDS = 5.0  # for one rendering; real templates take milliseconds
MAX_TEMPLATE = 1 << 16  # characters, compiled in seconds; real templates have up to 20,000
MAX_TEXT = 16_000_000  # characters of a rendered text, besides MAX_COPIES times the request's
MAX_COPIES = 64
MAX_REASON = 200  # characters of a template's error message


_renderer = WorkerProcess(__name__, "the chat template cannot be rendered", CPU_SECONDS)


def render(source: str, messages: list[Message], tools: list[Tool] | None = None, /, **variables: Any) -> str:
    """Render a chat template. variables: further ones of the template, such as `bos_token`.
    Raises ModelError if it is missing, refuses the messages, is broken, or exceeds a limit."""
    if not source:
        plain = "give a plain prompt (to generate, or to run without --chat)"
        raise ModelError(f"this model has no chat template: it is a base model; {plain}")
    given = {"documents": None, "add_generation_prompt": True, **variables}
    given |= {"messages": messages, "tools": tools}
    rendered, reason = None, f"is too long (over {MAX_TEMPLATE:,} characters)"
    if len(source) <= MAX_TEMPLATE:
        try:
            rendered, reason = json.loads(_renderer.call(json.dumps([source, given]).encode()))
        except WorkerEndedError as ended:
            reason = "runs for too long" if ended.slow else "takes too much memory"
    if rendered is None:
        raise ModelError(f"the model's chat template {truncated(reason, MAX_REASON)}")
    return str(rendered)


def answer(request: bytes) -> bytes:
    """Render a template in the subprocess."""
    rendered, reason = None, ""
    try:
        template, variables = json.loads(request)
        rendered = _render(template, variables, len(request))
    except MemoryError:  # end the process, which frees the memory
        raise
    except RecursionError:
        reason = "is nested too deeply, or calls itself forever"
    except Exception as error:  # whatever the template raises
        reason = f"cannot be rendered: {str(getattr(error, 'message', None) or error)[: 2 * MAX_REASON]}"
    return json.dumps([rendered, reason]).encode()


def _render(template: str, variables: dict[str, Any], size: int) -> str:
    pieces, remaining = list[str](), MAX_TEXT + MAX_COPIES * size
    for piece in _compile(template).generate(variables):
        pieces.append(piece)
        remaining -= len(piece)
        if remaining < 0:
            raise ValueError("it makes too much text")
    return "".join(pieces)


@lru_cache(maxsize=4)
def _compile(template: str) -> Template:
    """Compile a template with the extensions and functions of transformers."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag `{% generation %}` around an assistant's text, which is ignored."""

        tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: object) -> NoReturn:
        raise TemplateError(str(message))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    # As in transformers: without the HTML escapes of jinja2's filter.
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    return environment.from_string(template)
