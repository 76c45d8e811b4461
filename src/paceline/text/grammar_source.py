"""JSON schemas, patterns, choices and GBNF in llguidance's language, and their check in a subprocess.

llguidance's forced tokens are off, so that masks depend on the bytes of a text alone. llguidance may overflow
its stack, not end, or take all memory: the subprocess compiles for a vocabulary of bytes, which takes as long
as for a model's.

Each character of GBNF (llama.cpp's grammars/README.md) becomes a lexeme: llguidance's lexer is greedy, and
longer lexemes would change the language (in `w "x"` with w ::= [a-z]+ the x would always belong to w)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from time import monotonic
from typing import Any

from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError
from paceline.text.json_schema import DEFINITIONS, MAPPINGS, SCHEMAS, adapt
from paceline.text.worker_process import WorkerEndedError, WorkerProcess

Schema = Mapping[str, Any] | bool | str

HEADER = '%llguidance {"no_forcing": true}\n'
LARK = f"{HEADER}start: "
# Bounds white space between JSON's symbols like llama.cpp: some models write spaces without end.
WHITESPACE = {"whitespace_pattern": r"[ ]?|\n{1,2}[ \t]{0,20}"}
# Keywords that llguidance does not have are left out (json_schema.LOOSENED), and oneOf may become anyOf.
LENIENT = {"lenient": True, "coerce_one_of": True}
WHERE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: |invalid regex .* \(in regex\): )?")
UNSATISFIABLE = "Unsatisfiable schema: "
CPU_SECONDS = 2.0  # for one grammar; a schema of a thousand properties takes 0.3
MAX_TRIES, TRY_SECONDS = 200, 3.0  # of schemas within one, to find the place of an error
NICENESS = 5  # a quarter of a core beside a thread that decodes


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A grammar. name: in error messages. lark: in llguidance's language.
    notes: what it does not enforce, or adds."""

    name: str
    lark: str
    notes: tuple[str, ...] = field(default=(), compare=False)

    def matches(self, text: str) -> bool:
        """Return whether `text` is a complete text of the grammar."""
        from llguidance import LLMatcher, LLTokenizer

        matcher = LLMatcher(LLTokenizer("byte"), self.lark, log_level=0)
        return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()

    def after_thought(self, begin: str, end: str, *, is_open: bool) -> GrammarSource:
        """Return the grammar of a text behind a thought between these marks. Unless the thought is open, it
        may be missing."""
        thought = "free_thought free_space" if is_open else f"({json.dumps(begin)} free_thought free_space)?"
        rules = (
            f"free_thought[suffix={json.dumps(end)}]: /(?s:.*)/\nfree_space: /[ \\n]{{0,9}}/\nfree_answer: "
        )
        return replace(self, lark=self.lark.replace("start: ", f"start: {thought} free_answer\n{rules}", 1))


def from_schema(schema: Schema, name: str = "the JSON schema", *, strict: bool = False) -> GrammarSource:
    """Return the source of a schema, as JSON text or its value. Raises UsageError if it is no JSON.
    strict: objects have only the properties that the schema names, unless it says otherwise."""
    if not isinstance(schema, str | Mapping | bool):
        raise typed.invalid(name, schema, "JSON text, a mapping, True or False")
    try:
        if isinstance(schema, str):
            schema = json.loads(typed.text(name, schema))
        if schema is True:
            schema = {}
        schema, notes = adapt(schema, strict=strict)
        if isinstance(schema, Mapping):
            schema = {"x-guidance": WHITESPACE | LENIENT, **schema}
        text = json.dumps(schema, allow_nan=False)  # refuses NaN
        typed.text(name, json.dumps(schema, ensure_ascii=False))  # refuses lone surrogates
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}") from error
    return GrammarSource(name, f"{LARK}%json {text}", notes)


def from_pattern(pattern: str) -> GrammarSource:
    """Return the source of a pattern in the syntax of Rust's regex crate. Raises UsageError if empty."""
    from llguidance import regex_to_lark

    name = "the regular expression"
    if not typed.text(name, pattern):
        raise UsageError(f"{name} is empty: only an empty text matches it")
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:  # llguidance drops it
        raise UsageError(f"{name} cannot be used: it ends in a backslash that escapes nothing")
    return GrammarSource(name, f"{LARK}/{regex_to_lark(pattern, '')}/")


def from_choices(choices: Iterable[str]) -> GrammarSource:
    """Return the source of a list of texts, of which the whole text is one. Raises UsageError."""
    name = "the choices"
    texts = typed.text_list(name, choices)
    if not texts or "" in texts:
        raise UsageError(f"{name}: give at least one text, and none that is empty")
    escaped = ("".join(f"\\x{{{ord(character):x}}}" for character in text) for text in texts)
    return GrammarSource(name, f"{LARK}/{'|'.join(escaped)}/")


def from_gbnf(grammar: str) -> GrammarSource:
    """Return the source of a grammar in llama.cpp's GBNF. Raises UsageError."""
    return GrammarSource("the grammar", HEADER + to_lark(typed.text("the grammar", grammar)))


def format_error(name: str, text: str) -> str:
    """Format llguidance's message in one line."""
    lines = text.splitlines()
    reason = next((line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0])
    reason = WHERE.sub("", reason)
    if reason.startswith(UNSATISFIABLE):
        return f"no text can satisfy {name}: {reason.removeprefix(UNSATISFIABLE)}"
    return f"{name} cannot be used: {reason}"


class GrammarChecker(WorkerProcess):
    """A subprocess that compiles grammars."""

    def __init__(self) -> None:
        super().__init__(__name__, "grammars cannot be checked", CPU_SECONDS, NICENESS)

    def check(self, syntax: GrammarSource) -> None:
        """Raise UsageError if llguidance cannot use the grammar, crashes, or takes too long."""
        try:
            if error := self._format_error(syntax.name, syntax.lark):
                _, is_schema, text = syntax.lark.partition("%json ")
                schema = json.loads(text) if is_schema else None
                place = self._find_place(schema, error, syntax.name) if isinstance(schema, dict) else ""
                raise UsageError(f"{error} (at {place})" if place else error)
        except WorkerEndedError as ended:
            reason = "takes too long" if ended.slow else "is too complex"
            raise UsageError(f"{syntax.name} {reason} to compile: simplify it") from None

    def _format_error(self, name: str, lark: str) -> str:
        error = self.call(lark.encode()).decode(errors="replace")
        return error and format_error(name, error)

    def _find_place(self, schema: Any, error: str, name: str) -> str:
        """Return the place of the innermost schema within another that has this error."""
        end = monotonic() + TRY_SECONDS
        with suppress(RecursionError):
            for place, part in islice(_subschemas(schema, ""), MAX_TRIES):
                if monotonic() > end or self._killed:
                    break
                if self._format_error(name, f"{LARK}%json {json.dumps(part)}") == error:
                    return place
        return ""


def _subschemas(schema: Any, place: str, **definitions: Any) -> Iterator[tuple[str, Any]]:
    """Yield the schemas within one with the definitions around, and their places; the inner ones first."""
    definitions |= {key: schema[key] for key in DEFINITIONS if key in schema}
    for key in (*MAPPINGS, *SCHEMAS):
        parts = schema.get(key)
        if isinstance(parts, list):
            parts = dict(enumerate(parts))
        elif key not in MAPPINGS:
            parts = {"": parts}
        for name, part in parts.items() if isinstance(parts, dict) else ():
            if isinstance(part, dict):
                at = part.get("$comment") or f"{place}/{key}/{name}".removesuffix("/")
                yield from _subschemas(part, at, **definitions)
                yield at, {**definitions, **part}


_checker = GrammarChecker()


def parse_grammar(
    json_schema: Schema | None = None,
    regex: str | None = None,
    choice: Iterable[str] | None = None,
    grammar: str | None = None,
    *,
    check: bool = True,
) -> GrammarSource | None:
    """Return the one grammar that is given. Raises UsageError for more than one, or an unusable one.
    choice: texts of which the answer is one. grammar: GBNF. check: compile it in the subprocess."""
    given = json_schema, regex, choice, grammar
    makers: list[Callable[[Any], GrammarSource]] = [from_schema, from_pattern, from_choices, from_gbnf]
    made = [make(value) for value, make in zip(given, makers, strict=True) if value is not None]
    if len(made) > 1:
        raise UsageError(f"{made[0].name} and {made[1].name}: a text can follow only one of them")
    return _validate(made[0]) if made and check else next(iter(made), None)


@lru_cache(maxsize=32)
def _validate(syntax: GrammarSource) -> GrammarSource:
    _checker.check(syntax)
    return syntax


def answer(lark: bytes) -> bytes:
    """Compile a grammar in the subprocess, and return llguidance's error, or nothing."""
    from llguidance import LLMatcher, LLTokenizer

    matcher = LLMatcher(LLTokenizer("byte"), lark.decode(), log_level=0)
    error = str(matcher.get_error())
    if not error:
        matcher.compute_bitmask()  # its time counts, too
    return error.encode()  # freeing the matcher may overflow the stack, too


TOKENS = re.compile(
    r'(?P<space>\s+|\#[^\n]*)|(?P<head>[\w-]+)\s*::=|(?P<name>[\w-]+)|"(?P<text>(?:\\.|[^"\\])*)"|(?P<any>\.)'
    r"|\[(?P<set>(?:\\.|[^\]\\])*)\]|(?P<symbol>[|()*+?])|\{\s*(?P<count>\d+\s*(?:,\s*(?:\d+\s*)?)?)\}",
    re.DOTALL,
)
CHARACTER = r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([nrt\\\"\[\]]))|([^\\])"
CHARACTERS, TEXT = re.compile(CHARACTER, re.DOTALL), re.compile(f"(?:{CHARACTER})*", re.DOTALL)
CONTROLS = {"n": "\n", "r": "\r", "t": "\t"}


def to_lark(grammar: str) -> str:
    """Return the rules of a GBNF grammar, of which `root` is the start. Raises UsageError."""
    names, heads, out, at = {"root": "r0"}, set[str](), ["start: r0"], 0
    while at < len(grammar):
        token = TOKENS.match(grammar, at)
        if token is None or not TEXT.fullmatch(token["text"] or token["set"] or ""):
            line = grammar.count("\n", 0, at) + 1
            raise UsageError(f"the grammar: line {line} cannot be read as GBNF: {grammar[at : at + 20]!r}")
        kind = token.lastgroup or ""
        value, at = token[kind], token.end()
        if kind in ("head", "name"):
            name = names.setdefault(value, f"r{len(names)}")
            out.append(f"\n{name}:" if kind == "head" else name)
            if kind == "head" and value in heads:
                raise UsageError(f"the grammar: there are two rules {value}: join them with |")
            heads.update([value] if kind == "head" else [])
        elif kind == "text":
            out.append(f"({' '.join(f'/{character}/' for character in _escaped(value))})" if value else '""')
        elif kind == "set":
            negated = value.startswith("^")
            first, *rest = _escaped(value[negated:]) or [""]
            between = ["-" if it == r"\x{2d}" else it for it in rest[:-1]]
            out.append(f"/[{'^' * negated}{''.join([first, *between, *rest[-1:]])}]/")
        elif kind == "count":
            out.append(f"{{{value}}}" if "," in value else f"{{{value},{value}}}")
        elif kind != "space":
            out.append("/(?s:.)/" if kind == "any" else value)
    if missing := sorted(names.keys() - heads):
        raise UsageError(f"the grammar: there is no rule {missing[0]}: add {missing[0]} ::= ...")
    return " ".join(out)


def _escaped(text: str) -> list[str]:
    """Return a regex for each character of a text with GBNF's escapes; only a bare hyphen is \\x{2d}."""
    codes = (
        (it[1] and f"0{it[1]}") or it[2] or it[3] or f"{ord(it[5] or CONTROLS.get(it[4], it[4])):x}"
        for it in CHARACTERS.finditer(text)
    )
    return [f"\\x{{{code}}}" for code in codes]
