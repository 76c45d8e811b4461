"""A check of grammars in a subprocess, since llguidance may overflow its stack, not end, or take all memory.

The subprocess compiles for a vocabulary of bytes, which takes as long as for a model's.
"""

from __future__ import annotations

from functools import lru_cache

from paceline.speculative.errors import UsageError
from paceline.text.grammar_source import GrammarSource, Schema, format_error, from_pattern, from_schema
from paceline.text.worker_process import WorkerEndedError, WorkerProcess, serve_requests

CPU_SECONDS = 2.0  # for one grammar; a schema of a thousand properties takes 0.3
NICENESS = 5  # a quarter of a core beside a thread that decodes


class GrammarChecker(WorkerProcess):
    """A subprocess that compiles grammars."""

    def __init__(self) -> None:
        super().__init__(__name__, "grammars cannot be checked", CPU_SECONDS)

    def check(self, syntax: GrammarSource) -> None:
        """Raise UsageError if llguidance cannot use the grammar, crashes, or takes too long."""
        try:
            error = self.call(syntax.lark.encode())
        except WorkerEndedError as ended:
            reason = "takes too long" if ended.slow else "is too complex"
            raise UsageError(f"{syntax.name} {reason} to compile: simplify it") from None
        if error:
            raise UsageError(format_error(syntax.name, error.decode(errors="replace")))


_checker = GrammarChecker()


def parse_grammar(json_schema: Schema | None, regex: str | None) -> GrammarSource | None:
    """Return a checked grammar. Raises UsageError for a schema and a regex, or an unusable one."""
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
    """Check grammars in the subprocess."""
    from llguidance import LLMatcher, LLTokenizer

    tokenizer = LLTokenizer("byte")

    def answer(lark: bytes) -> bytes:
        """Return llguidance's error, or nothing."""
        matcher = LLMatcher(tokenizer, lark.decode(), log_level=0)
        error = str(matcher.get_error())
        if not error:
            matcher.compute_bitmask()  # its time counts, too
        return error.encode()  # freeing the matcher may overflow the stack, too

    serve_requests(answer, seconds=CPU_SECONDS, niceness=NICENESS)
