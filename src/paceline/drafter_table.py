"""The table of drafters. `make` in drafters/NAME.py makes the drafter of a row.

Other packages add rows by entry points of the group `paceline.drafters`, which refer to a DrafterEntry. Its
`module` names the module with `make`; the entry's own module is imported early and imports only this one.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import entry_points

# Sources of drafts, besides the request's text.
DRAFT, NGRAMS, DATASTORE = "draft model", "n-gram cache", "datastore"
HEADS = {
    kind: f"{kind} head"
    for kind in ("medusa", "eagle", "eagle3", "block", "exits", "kangaroo", "pard", "mtp")
}
DRAFTS = (DRAFT, *HEADS.values())  # what `-md` may name
TRAINED_FOR = {"draft": "model", "confidence": "model"}  # kinds of `paceline train` that are no drafters
HEAD = "paceline.drafters.head"  # the module of heads


@dataclass(frozen=True)
class DrafterEntry:
    """A row of the table."""

    name: str  # the name in drafters/, on the command line and in settings
    about: str  # the description in --help
    uses: tuple[str, ...] = ()  # sources of its drafts, besides the text
    optional: bool = False  # True if it works without these sources
    any_source: bool = False  # True if one of these sources is enough
    learns: bool = False  # True if it drafts from answers of earlier requests
    in_auto: bool = False  # True if `auto` has it, in the table's order, when its sources are available
    alone: str = ""  # the reason why it cannot be combined with others
    window: bool = False  # True if its drafts carry a window of guesses that are computed but not verified
    token_ids: bool = False  # True if it needs a draft model's token ids, which SLEM does not have
    colour: str = ""  # the colour of its text on a terminal
    source: str = ""  # the source of its tokens, if it is not the name
    module: str = ""  # the full name of its module, if it is not drafters/NAME.py

    def missing(self, available: Collection[str]) -> tuple[str, ...]:
        """Return the sources that are not available."""
        missing = tuple(source for source in self.uses if source not in available)
        return () if self.any_source and len(missing) < len(self.uses) else missing


# In the order of their costs.
_ROWS = (
    DrafterEntry("prediction", "the answer that the request predicts", in_auto=True, colour="bright_magenta"),
    DrafterEntry("suffix", "suffix matches in the prompt and in earlier outputs",
                 learns=True, in_auto=True, colour="bright_blue"),
    DrafterEntry("lookup", "prompt lookup: the last n-gram match in the text", in_auto=True, colour="green"),
    DrafterEntry("ngram", "llama.cpp's n-gram counts",
                 uses=(NGRAMS,), optional=True, learns=True, in_auto=True, colour="yellow"),
    DrafterEntry("datastore", "matches in a corpus", uses=(DATASTORE,), in_auto=True, colour="magenta"),
    DrafterEntry("lookahead", "n-grams of the target's own parallel guesses",
                 alone="needs its window in every pass", window=True, colour="bright_green"),
    DrafterEntry("model", "a draft model", uses=(DRAFT,), in_auto=True, colour="cyan"),
    DrafterEntry("medusa", "Medusa heads", uses=(HEADS["medusa"],), in_auto=True, colour="cyan", module=HEAD),
    DrafterEntry("eagle", "an EAGLE head", uses=(HEADS["eagle"],), in_auto=True, colour="cyan", module=HEAD),
    DrafterEntry("eagle3", "an EAGLE-3 head", uses=(HEADS["eagle3"],), in_auto=True, colour="cyan",
                 module=HEAD),
    DrafterEntry("block", "a head that drafts a block at once (DFlash, DSpark)",
                 uses=(HEADS["block"],), in_auto=True, colour="cyan", module=HEAD),
    DrafterEntry("exits", "an early exit of the target, with a trained adapter",
                 uses=(HEADS["exits"],), in_auto=True, colour="cyan", module=HEAD),
    DrafterEntry("kangaroo", "the target's first layers, with an adapter that attends (Kangaroo)",
                 uses=(HEADS["kangaroo"],), in_auto=True, colour="cyan", module=HEAD),
    DrafterEntry("pard", "a draft model that drafts several tokens in a pass",
                 uses=(HEADS["pard"],), in_auto=True, colour="cyan", module=HEAD),
    DrafterEntry("mtp", "the target's own layers that predict further tokens (MTP)",
                 uses=(HEADS["mtp"],), in_auto=True, colour="cyan", module=HEAD),
    DrafterEntry("cascade", "a draft model or an early exit, with suffix drafting for it",
                 uses=(DRAFT, HEADS["exits"]), any_source=True, learns=True, token_ids=True,
                 colour="bright_cyan", source="later"),
    DrafterEntry("auto", "all available drafters, each used when it pays",
                 uses=(*DRAFTS, NGRAMS, DATASTORE), optional=True, learns=True,
                 alone="already has all available drafters"),
    DrafterEntry("none", "plain decoding", alone="means plain decoding"),
)  # fmt: skip
GROUP = "paceline.drafters"  # of entry points


def add_installed(table: dict[str, DrafterEntry]) -> None:
    """Add the rows of other packages' drafters. A broken one, or one with a known name, is reported."""
    for point in entry_points(group=GROUP):
        try:
            row = point.load()
            if not isinstance(row, DrafterEntry) or not row.module or row.name in table:
                raise ValueError("it must be a DrafterEntry with a new name and a module")
        except Exception as error:
            print(f"paceline: the drafter {point.name} ({point.value}) is left out: {error}", file=sys.stderr)
        else:
            table[row.name] = row


DRAFTERS = {row.name: row for row in _ROWS}
add_installed(DRAFTERS)


def users(names: Collection[str], source: str) -> list[str]:
    """Return the names whose drafters use a source."""
    return [row.name for row in DRAFTERS.values() if row.name in names and source in row.uses]


def uses_draft(names: Collection[str]) -> bool:
    """Return whether a drafter uses a draft model or a head."""
    return any(users(names, source) for source in DRAFTS)
