"""A table that knows how to be shown: on a terminal of any width, in a pipe, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

from rich.console import Console

from paceline.report.table import GAP, listing, widest


@dataclass(frozen=True)
class Block:
    """The first n_left columns say what a row is about, the others are its figures. A column's name may have
    several lines."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_left: int

    def write(self, file: IO[str]) -> None:
        """A terminal that is too narrow gets the figures in several tables; none is cropped."""
        room = Console(file=file).width if file.isatty() else None
        for i, part in enumerate(self.parts(room)):
            file.write("\n" * (i > 0))
            columns = [self.columns[k] for k in part]
            listing(columns, [[row[k] for k in part] for row in self.rows], file, self.n_left)

    def parts(self, room: int | None) -> list[list[int]]:
        """Which columns stand beside each other in `room` characters."""
        words = list(range(self.n_left))
        start = sum(self._width(i) + GAP for i in words)
        out, used = [list(words)], start
        for i in range(self.n_left, len(self.columns)):
            width = self._width(i)
            if room is not None and used + width > room and len(out[-1]) > self.n_left:
                out.append(list(words))
                used = start
            out[-1].append(i)
            used += width + GAP
        return out

    def markdown(self) -> list[str]:
        """GitHub's."""
        marks = ["---" if i < self.n_left else "---:" for i in range(len(self.columns))]
        names = [name.replace("-\n", "-").replace("\n", " ") for name in self.columns]
        return [_line(names), _line(marks), *(_line(row) for row in self.rows)]

    def _width(self, i: int) -> int:
        return widest(self.columns[i], [row[i] for row in self.rows])


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
