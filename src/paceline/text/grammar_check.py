"""Grammars compiled first in a process of its own.

llguidance may overflow its stack over a schema, never come back, or take all memory. Bytes are the tokens in
that process: a vocabulary takes no longer to compile for.
"""

from __future__ import annotations

from functools import lru_cache

from paceline.speculative.errors import UsageError
from paceline.text.grammar_source import (
    GrammarSource,
    Schema,
    format_grammar_error,
    from_pattern,
    from_schema,
)
from paceline.text.worker_process import WorkerEndedError, WorkerProcess, serve_requests

DEADLINE_SECONDS = 10.0
CPU_SECONDS = 2  # for one grammar; a schema of a thousand properties takes 0.3
MEMORY_BYTES = 1 << 30  # of addresses


class GrammarChecker(WorkerProcess):
    def __init__(self) -> None:
        super().__init__(__name__, "grammars cannot be checked", DEADLINE_SECONDS)

    def check(self, syntax: GrammarSource) -> None:
        """Raise UsageError for what llguidance cannot use, does not survive, or compiles too long."""
        try:
            value = self.call(syntax.lark.encode())
        except WorkerEndedError as ended:
            reason = "takes too long" if ended.slow else "is too complex"
            raise UsageError(f"{syntax.name} {reason} to compile: simplify it") from None
        if value:
            raise UsageError(format_grammar_error(syntax.name, value.decode(errors="replace")))


_checker = GrammarChecker()


def parse_grammar(json_schema: Schema | None, regex: str | None) -> GrammarSource | None:
    """Return the grammar that is given, checked. Raises UsageError for both, and for what cannot be used."""
    if json_schema is not None and regex is not None:
        raise UsageError("a JSON schema and a regular expression: a text can follow only one of them")
    if json_schema is not None:
        return _validate(from_schema(json_schema))
    return None if regex is None else _validate(from_pattern(regex))


@lru_cache(maxsize=32)
def _validate(syntax: GrammarSource) -> GrammarSource:
    _checker.check(syntax)
    return syntax


def main() -> None:
    from llguidance import LLMatcher, LLTokenizer

    tokenizer = LLTokenizer("byte")

    def answer(lark: bytes) -> bytes:
        """Return why llguidance cannot use the grammar; empty if it can."""
        matcher = LLMatcher(tokenizer, lark.decode(), log_level=0)
        value = str(matcher.get_error())
        if not value:
            matcher.compute_bitmask()  # for the time it takes; the mask itself depends on the vocabulary
        return value.encode()  # the matcher goes here, which may overflow the stack, too

    serve_requests(answer, memory=MEMORY_BYTES, seconds=CPU_SECONDS)
