"""Generated text with drafted parts marked by drafter: colours on a terminal, brackets elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from rich.console import Console
from rich.style import Style

from paceline.drafter_table import DRAFTERS
from paceline.speculative.stats import TARGET

STYLES = {row.source or row.name: Style.parse(row.colour) for row in DRAFTERS.values() if row.colour}
OTHER = Style.parse("bold")  # for a source without a colour


class SourceMarks:
    """Marks for drafted text; the target's text has none. Colours obey NO_COLOR and TERM=dumb."""

    def __init__(self, console: Console) -> None:
        self._coloured = console.color_system is not None and not console.no_color

    def marked(self, parts: Iterable[tuple[str, str]]) -> str:
        groups = groupby((part for part in parts if part[0]), key=lambda part: part[1])
        return "".join(self._mark("".join(text for text, _ in group), source) for source, group in groups)

    def legend(self, drafters: Sequence[str]) -> str:
        marked = [self._mark(name if self._coloured else "text", name) for name in drafters if name != "none"]
        return "sources: " + ", ".join([TARGET, *marked])

    def _mark(self, text: str, source: str) -> str:
        if source == TARGET:
            return text
        # Console.print would drop control characters and expand tabs.
        return STYLES.get(source, OTHER).render(text) if self._coloured else f"[{source}:{text}]"
