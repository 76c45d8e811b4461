"""Chat templates rendered by jinja2's sandbox in a child process, which bounds their time and memory.

The sandbox keeps a template from reaching Python, but not from running forever or from making gigabytes of
text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from paceline.speculative.errors import ModelError
from paceline.speculative.printable import printable
from paceline.text.worker_process import WorkerEndedError, WorkerProcess, serve_requests

if TYPE_CHECKING:
    from jinja2 import Template

DEADLINE_SECONDS = 60.0
CPU_SECONDS = 5  # for one rendering; real templates take milliseconds
MEMORY_BYTES = 1 << 30  # of addresses
MAX_TEMPLATE = 1 << 16  # characters, compiled in seconds; real templates have up to 20,000
MAX_TEXT = 16_000_000  # characters of a rendered text, and MAX_COPIES of the request's more
MAX_COPIES = 64
MAX_REASON = 200  # characters of an error message that the template writes


class TooMuchTextError(Exception):
    pass


_renderer = WorkerProcess(__name__, "the chat template cannot be rendered", DEADLINE_SECONDS)


def render(template: str, variables: dict[str, Any]) -> str:
    """Render a template. Raise ModelError where it refuses the messages, is broken, or does too much."""
    if len(template) > MAX_TEMPLATE:
        raise ModelError(f"the model's chat template is too long (over {MAX_TEMPLATE:,} characters)")
    try:
        answer = _renderer.call(json.dumps([template, variables]).encode())
    except WorkerEndedError as ended:
        reason = "runs for too long" if ended.slow else "takes too much memory"
        raise ModelError(f"the model's chat template {reason}") from None
    rendered, reason = json.loads(answer)
    if rendered is None:
        line = printable(reason)
        short = line if len(line) <= MAX_REASON else line[:MAX_REASON] + " ..."
        raise ModelError(f"the model's chat template {short}")
    return str(rendered)


def main() -> None:
    import jinja2.ext
    import jinja2.sandbox  # noqa: F401  # loaded before memory is limited

    def answer(request: bytes) -> bytes:
        rendered, reason = None, ""
        try:
            template, variables = json.loads(request)
            rendered = _rendered(template, variables, len(request))
        except MemoryError:  # end the process, with all that the template has left in memory
            raise
        except RecursionError:
            reason = "is nested too deeply, or calls itself forever"
        except TooMuchTextError:
            reason = "makes too much text"
        except Exception as error:  # whatever the template raises
            reason = f"cannot be rendered: {str(getattr(error, 'message', None) or error)[: 2 * MAX_REASON]}"
        return json.dumps([rendered, reason]).encode()

    serve_requests(answer, memory=MEMORY_BYTES, seconds=CPU_SECONDS)


def _rendered(template: str, variables: dict[str, Any], size: int) -> str:
    pieces, left = list[str](), MAX_TEXT + MAX_COPIES * size
    for piece in _compiled(template).generate(variables):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            raise TooMuchTextError
    return "".join(pieces)


@lru_cache(maxsize=4)
def _compiled(template: str) -> Template:
    """Compile a template as transformers does, with the functions that templates of Hugging Face call."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what the assistant says, and writes nothing."""

        tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def refuse(message: object) -> NoReturn:
        raise TemplateError(str(message))

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    functions: dict[str, Callable[..., Any]] = {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    environment.globals.update(functions)
    environment.filters["tojson"] = _tojson
    return environment.from_string(template)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as transformers does. jinja2's own filter escapes for HTML; prompts are plain text."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
