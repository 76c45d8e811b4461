"""Text for terminals: lines and streams that wrap between words."""

from __future__ import annotations

import shutil
import textwrap
from typing import IO

FENCE = "```"  # around code, which is never wrapped
TAB = 8  # cells between two tab stops


def wrapped(text: str, file: IO[str], hanging: int = 0) -> str:
    """Return the text with its lines wrapped between words if `file` is a terminal.
    hanging: spaces before a line's continuation; 0 for as many as before the line."""
    if not file.isatty():
        return text
    width = shutil.get_terminal_size().columns

    def wrap(line: str) -> str:
        indent = line[: len(line) - len(line.lstrip())] if not hanging else " " * hanging
        return textwrap.fill(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )

    return "\n".join(line if len(line) <= width else wrap(line) for line in text.split("\n"))


class WordWrap:
    """Wraps streamed text between words: a word that does not fit moves to the next line.
    width: of the terminal, in cells."""

    def __init__(self, width: int) -> None:
        self._width = width - 1  # a full line leaves the cursor in an undefined place
        self._line, self._word, self._column, self._code = "", "", 0, False

    def feed(self, text: str) -> str:
        """Return the text with the control sequences that move words."""
        from rich.cells import cell_len

        out = []
        for character in text:
            if character == "\n":
                self._code ^= self._line.lstrip().startswith(FENCE)
                self._line = self._word = ""
                self._column = 0
            else:
                cells = TAB - self._column % TAB if character == "\t" else cell_len(character)
                word = cell_len(self._word)
                if self._column + cells > self._width and not self._code and not character.isspace():
                    if 0 < word < self._column:
                        out.append(f"\x1b[{word}D\x1b[K\n{self._word}")
                        self._column = word
                    elif not word:
                        out.append("\n")
                        self._column = 0
                self._line += character
                self._word = "" if character.isspace() else self._word + character
                self._column = self._column + cells if self._column + cells <= self._width + 1 else cells
            out.append(character)
        return "".join(out)
