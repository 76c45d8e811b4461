"""Which of an engine's methods is meant: the one that is named, or what the drafters come to."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.drafter_table import DRAFT
from paceline.integrations.export.asked import Asked
from paceline.integrations.export.reference import kind_of, plain
from paceline.speculative.errors import UsageError

COPIES = "copies"  # of texts, by whatever the engine has for it
NO, MAY, MUST = "no", "may", "must"  # whether a method is given a draft model


def named(engine: str, methods: Mapping[str, str], asked: Asked) -> str:
    """The engine's method that is named. methods: all of them, with whether each is given a draft model.
    Raises UsageError."""
    method = asked.method.lower()
    if method not in methods:
        raise UsageError(f"{engine} has no method {asked.method!r}: choose from {', '.join(methods)}")
    if methods[method] == MUST and not asked.draft:
        raise UsageError(f"{engine}'s {method} needs a draft model: give one (-md)")
    if methods[method] == NO and asked.draft:
        raise UsageError(f"{engine}'s {method} uses no draft model: leave out -md, or the method")
    return method


def meant(engine: str, asked: Asked) -> str:
    """By the drafters: "" for plain decoding, COPIES, or the kind of the draft model. Raises UsageError for
    what an engine that has one method at a time cannot combine."""
    if asked.drafting.plain:
        return ""
    rows, names = asked.drafting.rows, ",".join(asked.drafters)
    if any(row.window for row in rows):
        raise UsageError(
            f"{engine} shows a drafter no rows of the target, which {names} needs: use --draft auto"
        )
    auto = asked.drafters == ("auto",)
    if not asked.draft:
        if not auto and any(DRAFT in row.uses for row in rows):
            raise UsageError(f"--draft {names} needs a draft model: give one (-md)")
        return COPIES
    if not auto and asked.drafters != ("model",):
        raise UsageError(
            f"{engine} drafts by one method at a time, and {names} with a draft model is another: use "
            "--draft model, or leave out -md"
        )
    return kind_of(plain(asked.draft, "draft"))
