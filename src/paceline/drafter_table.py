"""The table of drafters. Each row has a file, drafters/NAME.py, in which `make` makes the drafter."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

# What a drafter may draft from, beside the request's own text.
DRAFT, NGRAMS, DATASTORE = "draft model", "n-gram cache", "datastore"


@dataclass(frozen=True)
class DrafterEntry:
    """A row of the table.

    name: in drafters/, on the command line and in settings.
    about: what it drafts from, for --help.
    uses: what it drafts from beside the text.
    optional: it can be made without that.
    learns: it drafts from the answers of earlier requests, too.
    in_auto: `auto` has it, where there is all that it uses; in the order of the table.
    alone: why it cannot be named with others.
    window: its drafts carry a window of guesses that the target computes and nobody verifies.
    token_ids: it uses a draft model's token ids, so that one that drafts text (SLEM) will not do.
    colour: of its text on a terminal; what drafts together differs in hue.
    source: what marks its tokens, where that is not the name."""

    name: str
    about: str
    uses: tuple[str, ...] = ()
    optional: bool = False
    learns: bool = False
    in_auto: bool = False
    alone: str = ""
    window: bool = False
    token_ids: bool = False
    colour: str = ""
    source: str = ""

    def missing(self, available: Collection[str]) -> tuple[str, ...]:
        """What it uses that is not available."""
        return tuple(what for what in self.uses if what not in available)


# What costs least comes first.
_ROWS = (
    DrafterEntry("suffix", "votes of all places like this one",
                 learns=True, in_auto=True, colour="bright_blue"),
    DrafterEntry("lookup", "the last place like this one", in_auto=True, colour="green"),
    DrafterEntry("ngram", "llama.cpp's n-gram counts",
                 uses=(NGRAMS,), optional=True, learns=True, in_auto=True, colour="yellow"),
    DrafterEntry("datastore", "places in a corpus", uses=(DATASTORE,), in_auto=True, colour="magenta"),
    DrafterEntry("lookahead", "n-grams that the target makes itself",
                 alone="needs its window in every pass", window=True, colour="bright_green"),
    DrafterEntry("model", "a draft model", uses=(DRAFT,), in_auto=True, colour="cyan"),
    DrafterEntry("cascade", "a draft model that suffix drafts for",
                 uses=(DRAFT,), learns=True, token_ids=True, colour="bright_cyan", source="later"),
    DrafterEntry("auto", "all that there is something for, where it pays",
                 uses=(DRAFT, NGRAMS, DATASTORE), optional=True, learns=True,
                 alone="is all drafters that there is something for"),
    DrafterEntry("none", "plain decoding", alone="means plain decoding"),
)  # fmt: skip
DRAFTERS = {row.name: row for row in _ROWS}


def users(names: Collection[str], what: str) -> list[str]:
    """Those of the names whose drafters use `what`."""
    return [row.name for row in DRAFTERS.values() if row.name in names and what in row.uses]
