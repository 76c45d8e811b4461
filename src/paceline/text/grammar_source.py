"""JSON schemas and regular expressions in llguidance's language.

llguidance's forced tokens are off, so that masks depend on the bytes of a text alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError

Schema = Mapping[str, Any] | bool | str

LARK = '%llguidance {"no_forcing": true}\nstart: '
# Bounds white space between JSON's symbols like llama.cpp: some models write spaces without end.
WHITESPACE = {"whitespace_pattern": r"[ ]?|\n{1,2}[ \t]{0,20}"}
WHERE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: |invalid regex .* \(in regex\): )?")
UNSATISFIABLE = "Unsatisfiable schema: "


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A grammar. name: in error messages. lark: in llguidance's language."""

    name: str
    lark: str

    def matches(self, text: str) -> bool:
        """Return whether `text` is a complete text of the grammar."""
        from llguidance import LLMatcher, LLTokenizer

        matcher = LLMatcher(LLTokenizer("byte"), self.lark, log_level=0)
        return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


def from_schema(schema: Schema) -> GrammarSource:
    """Return the source of a schema, as JSON text or its value. Raises UsageError if it is no JSON."""
    name = "the JSON schema"
    if isinstance(schema, str):
        typed.text(name, schema)
    elif not isinstance(schema, Mapping | bool):
        raise typed.invalid(name, schema, "JSON text, a mapping, True or False")
    try:
        if isinstance(schema, str):
            schema = json.loads(schema)
        if schema is True:
            schema = {}
        if isinstance(schema, Mapping) and "x-guidance" not in schema:
            schema = {**schema, "x-guidance": WHITESPACE}
        text = json.dumps(schema, allow_nan=False)  # refuses NaN
        typed.text(name, json.dumps(schema, ensure_ascii=False))  # refuses lone surrogates
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}") from error
    return GrammarSource(name, f"{LARK}%json {text}")


def from_pattern(pattern: str) -> GrammarSource:
    """Return the source of a pattern in the syntax of Rust's regex crate. Raises UsageError if empty."""
    from llguidance import regex_to_lark

    name = "the regular expression"
    if not typed.text(name, pattern):
        raise UsageError(f"{name} is empty: only an empty text matches it")
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:  # llguidance drops it
        raise UsageError(f"{name} cannot be used: it ends in a backslash that escapes nothing")
    return GrammarSource(name, f"{LARK}/{regex_to_lark(pattern, '')}/")


def format_error(name: str, text: str) -> str:
    """Format llguidance's message in one line."""
    lines = text.splitlines()
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    reason = WHERE.sub("", reason)
    if reason.startswith(UNSATISFIABLE):
        return f"no text can satisfy {name}: {reason.removeprefix(UNSATISFIABLE)}"
    return f"{name} cannot be used: {reason}"
