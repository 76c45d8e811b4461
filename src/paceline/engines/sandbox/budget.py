"""What one rendering may use up. It grows with what it is given: a long conversation is no attack."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, MappingView
from dataclasses import dataclass
from typing import Any

STEPS = 500_000
STEPS_A_MESSAGE = 10_000
STEPS_A_PAIR = 40  # some templates look at all other messages for each one
CHARACTERS = 16_000_000
TIMES = 64  # that the text of the messages is made anew
TIMES_A_MESSAGE = 8  # some templates add each message to all before
MARKS = 100  # characters that a template writes around a message
MOST_TEXT = 1 << 30  # characters, or `TIMES` the messages where that is more
STEPS_A_SECOND = 1_000_000  # a third of what a slow machine does
CALL = 10  # steps that a call takes
LOOK = 1_000  # steps between two looks at the clock
BITS = 64  # of an integer
DEPTH = 100  # of lists within lists
FAST = 1024  # characters that C compares, searches or copies in the time of a step


class RefusedError(Exception):
    """Reads on after "the model's chat template"."""


@dataclass(frozen=True)
class Weight:
    """Of a value with all that is in it, each time it is there: what writing or comparing it takes."""

    items: int
    characters: int
    depth: int


class Budget:
    """Steps, characters and time that are left. messages: how many there are, with the mappings in them and
    in the tools; letters: of all of them."""

    def __init__(self, messages: int, letters: int) -> None:
        text = letters + MARKS * messages
        self._all_steps = STEPS + STEPS_A_MESSAGE * messages + STEPS_A_PAIR * messages**2 + letters
        self._all_characters = CHARACTERS + text * TIMES
        longer = self._all_characters + text * TIMES_A_MESSAGE * messages
        self._all_characters = max(self._all_characters, min(longer, MOST_TEXT))
        self._seconds = 10 + self._all_steps // STEPS_A_SECOND
        self._steps, self._characters = self._all_steps, self._all_characters
        self._look = self._steps - LOOK
        self._until = time.thread_time() + self._seconds  # of this thread's own time

    def work(self, steps: int) -> None:
        """Raises RefusedError where the template has done too much."""
        if steps > self._steps:
            raise RefusedError(f"ran for too long (over {self._all_steps:,} steps)")
        self._steps -= steps
        if self._steps < self._look:
            self._look = self._steps - LOOK
            if time.thread_time() > self._until:
                raise RefusedError(f"ran for too long (over {self._seconds} seconds)")

    def write(self, characters: int) -> None:
        self.work(1 + characters // FAST)
        self.room(characters=characters)
        self._characters -= characters

    def room(self, *, steps: int = 0, characters: int = 0) -> None:
        """Raises RefusedError where there is none for what is about to be made."""
        if steps > self._steps:
            raise RefusedError(f"ran for too long (over {self._all_steps:,} steps)")
        if characters > self._characters:
            raise RefusedError(f"makes too much text (over {self._all_characters:,} characters)")

    def made(self, value: Any) -> None:
        """Pay for a value that was just made."""
        if isinstance(value, str):
            self.write(len(value))
        elif isinstance(value, int):
            if value.bit_length() > BITS:
                raise RefusedError(f"counts too far (an integer of over {BITS} bits)")
        elif isinstance(value, (list, tuple, dict)):
            self.work(1 + len(value))

    def counted(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self.work(1)
            yield value

    def weigh(self, value: Any) -> Weight:
        """Pay for a look at all of a value. Lists that hold one another make small values that are huge when
        written out, and ones that are too deep for C's stack."""
        if isinstance(value, str):  # most are
            self.work(1 + len(value) // FAST)
            return Weight(1, len(value), 1)
        level, items, characters, depth = [value], 0, 0, 0
        while level:
            if depth == DEPTH:
                raise RefusedError(f"nests lists too deeply (over {DEPTH} levels)")
            depth += 1
            deeper: list[Any] = []
            for one in level:
                length = _length(one)
                self.work(1 + (length // FAST if isinstance(one, str) else length))
                items += 1
                characters += 4 + (length if isinstance(one, str) else 20)
                if isinstance(one, Mapping):
                    deeper.extend(one.keys())
                    deeper.extend(one.values())
                elif not isinstance(one, (str, range)) and length:
                    deeper.extend(one)
            level = deeper
        self.room(characters=characters)
        return Weight(items, characters, depth)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple, range, Mapping, MappingView)) else 0
