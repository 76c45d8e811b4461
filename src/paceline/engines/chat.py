"""Chat templates: jinja2 in a sandbox, with the functions Hugging Face's templates call.

A template is a program in somebody's file: it may do as much as a template of a real model could need.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from paceline.core.errors import ModelError, UsageError
from paceline.core.printable import printable
from paceline.core.vocab import Vocab
from paceline.engines.alike import encode_within
from paceline.engines.conversation import Message, Tool, texts_in

if TYPE_CHECKING:
    from paceline.engines.engine import Text

Said = tuple[list[Message], list[Tool] | None, dict[str, Any]]  # messages, tools, a template's variables

NO_TEMPLATE = (
    "this model has no chat template: it is a base model; give a plain prompt (to generate, or to run "
    "without --chat)"
)
LONGEST = 1 << 16  # characters of a template, compiled in seconds; real ones have up to 20,000
NUMBER = 20  # characters of one, or of another value that is no text
LONGEST_DATE = 200  # characters of a date's format
LONGEST_REASON = 200  # characters of what a template says when it refuses


def encoded(
    text: Text,
    vocab: Vocab,
    messages: list[Message],
    tools: list[Tool] | None = None,
    variables: Mapping[str, Any] | None = None,
    *,
    answer: str = "",
) -> list[int]:
    """The messages in the model's template, as tokens. answer: what its answer begins with, control tokens
    and all. What messages, tools and variables say is text, even where it contains a control token. Raises
    ModelError without a usable template, and UsageError where such text cannot be told from what the
    template puts around it."""
    variables = variables or {}
    rendered = text.render(messages, tools, variables)
    said: Said = (messages, tools, dict(variables))
    controls = _controls(text, vocab, said)
    if not controls:
        return text.encode(rendered + answer, special=True, add_bos=False)
    # Characters of private use around each of them show where it comes out.
    begin, end = islice((c for c in map(chr, range(0xE000, 0xF8FF)) if c not in rendered), 2)
    spelled = "|".join(map(re.escape, sorted(controls, key=len, reverse=True)))
    found = re.compile(spelled)
    messages, tools, variables = _mapped(said, lambda one: found.sub(f"{begin}\\g<0>{end}", one))
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
        tokens += text.encode_within(control) if control else []
        tokens += encode_within(partial(text.encode, special=True), piece) if piece else []
    return tokens


def _controls(text: Text, vocab: Vocab, said: Said) -> list[str]:
    """The control tokens that what is said contains as text. Raises UsageError where two messages make one
    together: a template may put them side by side."""
    texts = list(texts_in(list(said)))
    contents = "".join((message.get("content") or "").strip() for message in said[0])
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


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value, or several, with each text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _mapped(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(one, change) for one in value]
    return value


def control_texts(text: Text, vocab: Vocab, said: str) -> list[str]:
    """The control tokens that `said` contains as text."""
    special = text.encode(said, special=True, add_bos=False)
    if special == text.encode(said, add_bos=False):
        return []
    silent = (token for token in special if not vocab.piece(token))
    return [vocab.text(token).decode(errors="replace") for token in silent]


def control_text(text: Text, vocab: Vocab, said: str) -> str:
    """The first control token that `said` contains as text; "" where there is none."""
    return next(iter(control_texts(text, vocab, said)), "")


def render(
    template: str,
    messages: list[Message],
    tools: list[Tool] | None = None,
    variables: Mapping[str, Any] | None = None,
    *,
    bos: str = "",
    eos: str = "",
) -> str:
    """variables: what else the template is told, instead of what it is told otherwise. Raises ModelError
    where the template refuses the messages, is broken, or does too much."""
    from jinja2 import TemplateError, TemplateSyntaxError

    from paceline.engines.sandbox.budget import Budget, RefusedError
    from paceline.engines.sandbox.environment import Bounded
    from paceline.engines.sandbox.generation import Generation

    if not template:
        raise ModelError(NO_TEMPLATE)
    if len(template) > LONGEST:
        raise ModelError(f"the model's chat template is too long (over {LONGEST:,} characters)")
    given = {
        "tools": tools,
        "documents": None,
        "bos_token": bos,
        "eos_token": eos,
        "add_generation_prompt": True,
        **(variables or {}),
    }
    mappings, letters = _extent((messages, tools, variables))
    environment = Bounded(
        Budget(mappings, letters),
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", Generation],
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
        return str(environment.compiled(template).render(messages=messages, **given))
    except RefusedError as error:
        raise ModelError(f"the model's chat template {error}") from error
    except RecursionError as error:
        raise ModelError("the model's chat template is nested too deeply, or calls itself forever") from error
    except Exception as error:  # what it raises is its own
        reason = error.message if isinstance(error, TemplateSyntaxError) else str(error)
        raise ModelError(f"the model's chat template cannot be rendered: {_short(reason or '')}") from error


def _extent(value: Any) -> tuple[int, int]:
    """How many mappings are in a value (each message and tool is one), and how many characters it has."""
    if isinstance(value, str):
        return 0, len(value)
    if not isinstance(value, Mapping | list | tuple):
        return 0, 0 if value is None else NUMBER
    inner = [*value, *value.values()] if isinstance(value, Mapping) else value
    extents = [_extent(one) for one in inner]
    return isinstance(value, Mapping) + sum(one for one, _ in extents), sum(one for _, one in extents)


def _short(reason: str) -> str:
    line = printable(reason)
    return line if len(line) <= LONGEST_REASON else line[:LONGEST_REASON] + " ..."
