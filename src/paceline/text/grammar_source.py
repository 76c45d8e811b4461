"""What a text has to match, in llguidance's own language: a JSON schema or a regular expression, checked.

Where a text can go on in only one way llguidance can also force the tokens a tokenizer would choose. That is
off: what may follow then depends on the text's bytes alone, and no tokenizer is asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn
from urllib.parse import unquote

from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError

Schema = Mapping[str, Any] | bool | str

LARK = '%llguidance {"no_forcing": true}\nstart: '
# Between JSON's symbols, as llama.cpp has it: a model that may write spaces without end sometimes does.
WHITESPACE = {"whitespace_pattern": r"[ ]?|\n{1,2}[ \t]{0,20}"}
WHERE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: |invalid regex .* \(in regex\): )?")
UNSATISFIABLE = "Unsatisfiable schema: "

# llguidance compiles a schema recursively, references and all, and overflows a stack of 8 MB at some 2,500
# levels: that ends the process. Of optional parts (a?) in a row a regular expression takes quadratic time.
MAX_DEPTH = 800
MAX_NODES = 50_000
MAX_PATTERN = 8192  # characters


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """What a text has to match. name: what its user calls it. lark: how llguidance spells it."""

    name: str
    lark: str

    def matches(self, text: str) -> bool:
        """Whether `text` as it stands is one that the grammar allows."""
        from llguidance import LLMatcher, LLTokenizer

        matcher = LLMatcher(LLTokenizer("byte"), self.lark, log_level=0)
        return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


def chosen(json_schema: Schema | None, regex: str | None) -> GrammarSource | None:
    """The one that is given, compiled once to see whether llguidance can use it. It is compiled in this
    process, without a limit on time: a server leaves that to a process of its own (grammar_check.py).

    Raises UsageError for both, and for what cannot be used."""
    if json_schema is not None and regex is not None:
        raise UsageError("a JSON schema and a regular expression: a text can follow only one of them")
    if json_schema is not None:
        return _checked(from_schema(json_schema))
    return None if regex is None else _checked(from_pattern(regex))


def from_schema(schema: Schema) -> GrammarSource:
    """schema: JSON as text, or what it stands for. Raises UsageError for what is no JSON, or too large for
    llguidance to be shown; whether llguidance can use it shows when it is compiled."""
    name = "the JSON schema"
    if isinstance(schema, str):
        typed.text(name, schema)
    elif not isinstance(schema, Mapping | bool):
        raise typed.refusal(name, schema, "JSON text, a mapping, True or False")
    try:
        if isinstance(schema, str):
            schema = json.loads(schema, parse_constant=_refuse_constant)
        if schema is True:
            schema = {}
        if isinstance(schema, Mapping) and "x-guidance" not in schema:
            schema = {**schema, "x-guidance": WHITESPACE}
        text = json.dumps(schema, allow_nan=False)
        typed.text(name, json.dumps(schema, ensure_ascii=False))  # which may spell half a character
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}") from error
    _require_bounded(name, schema)
    return GrammarSource(name, f"{LARK}%json {text}")


def from_pattern(pattern: str) -> GrammarSource:
    """pattern: in the syntax of Rust's regex crate, which knows neither look-around nor back-references.
    Raises UsageError for an empty one and one that is too long; the rest shows when it is compiled."""
    from llguidance import regex_to_lark

    name = "the regular expression"
    if not typed.text(name, pattern):
        raise UsageError(f"{name} is empty: only an empty text matches it")
    if len(pattern) > MAX_PATTERN:
        raise UsageError(f"{name} has {len(pattern):,} characters: use at most {MAX_PATTERN:,}")
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:  # llguidance would drop it
        raise UsageError(f"{name} cannot be used: it ends in a backslash that escapes nothing")
    return GrammarSource(name, f"{LARK}/{regex_to_lark(pattern, '')}/")


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


def _require_bounded(name: str, schema: Any) -> None:
    """Raises UsageError for a schema that is too large, or nested too deeply, its references followed."""
    n_nodes = 0
    depths: dict[str, int] = {}  # of what a reference names, without what that refers to
    links: dict[str, list[tuple[str, int]]] = {}  # the references in it, and how deep they stand

    def read(reference: str, part: Any) -> Iterator[str]:
        nonlocal n_nodes
        depths[reference], links[reference] = 0, []
        todo = [(part, 1)]
        while todo:
            value, depth = todo.pop()
            n_nodes += 1
            depths[reference] = max(depths[reference], depth)
            if n_nodes > MAX_NODES or depth > MAX_DEPTH:
                break
            if isinstance(value, Mapping):
                _require_short(name, value)
                if isinstance(further := value.get("$ref"), str):
                    links[reference].append((further, depth))
            if isinstance(value, Mapping | list | tuple):
                parts = value.values() if isinstance(value, Mapping) else value
                todo += ((one, depth + 1) for one in parts)
        if n_nodes > MAX_NODES:
            raise UsageError(f"{name} has more than {MAX_NODES:,} parts: simplify it")
        return iter([further for further, _ in links[reference]])

    # Depth first, so that of a chain the last part is known first; what refers to itself is followed once.
    total = {"": 0}
    path = [("", read("", schema))]
    while path:
        reference, rest = path[-1]
        unknown = next((further for further in rest if further not in total), None)
        if unknown is not None:
            total[unknown] = 0
            path.append((unknown, read(unknown, _resolved(schema, unknown))))
            continue
        path.pop()
        below = (depth + total[further] for further, depth in links[reference])
        total[reference] = max(depths[reference], *below) if links[reference] else depths[reference]
        if total[reference] > MAX_DEPTH:
            raise UsageError(
                f"{name} is nested too deeply (over {MAX_DEPTH} levels, with its references): make it flatter"
            )


def _require_short(name: str, schema: Mapping[str, Any]) -> None:
    """Raises UsageError for a regular expression in it that is too long."""
    patterns = schema.get("patternProperties")
    for pattern in (schema.get("pattern"), *(patterns if isinstance(patterns, Mapping) else ())):
        if isinstance(pattern, str) and len(pattern) > MAX_PATTERN:
            raise UsageError(
                f"{name} cannot be used: a pattern has {len(pattern):,} characters, {MAX_PATTERN:,} may be"
            )


def _resolved(schema: Any, reference: str) -> Any:
    """The part that a reference names by a JSON pointer; None where it names none here."""
    for key in unquote(reference.partition("#")[2]).split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(schema, Mapping):
            schema = schema.get(key)
        elif isinstance(schema, list | tuple) and key.isdecimal() and int(key[:9]) < len(schema):
            schema = schema[int(key[:9])]
        else:
            return None
    return schema


@lru_cache(maxsize=32)
def _checked(syntax: GrammarSource) -> GrammarSource:
    from llguidance import LLMatcher

    broken, said = LLMatcher.validate_grammar_with_warnings(syntax.lark)
    if broken:
        raise UsageError(complaint(syntax.name, said[0]))
    return syntax


def complaint(name: str, said: str) -> str:
    """llguidance's message, of many lines where a regular expression is at fault, in one."""
    lines = said.splitlines()
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    reason = WHERE.sub("", reason)
    if reason.startswith(UNSATISFIABLE):
        return f"no text can satisfy {name}: {reason.removeprefix(UNSATISFIABLE)}"
    return f"{name} cannot be used: {reason}"
