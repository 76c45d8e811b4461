"""GBNF, llama.cpp's grammars (grammars/README.md there), in llguidance's language.

Each character becomes a lexeme: llguidance's lexer is greedy, and longer lexemes would change the language
(in `w "x"` with w ::= [a-z]+ the x would always belong to w)."""

from __future__ import annotations

import re

from paceline.speculative.errors import UsageError

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
            out.append(f"({' '.join(f'/{one}/' for one in _escaped(value))})" if value else '""')
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
