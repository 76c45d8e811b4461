"""The entries of a head's config.json or header, which a stranger wrote: each is checked when it is read."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.speculative.errors import ModelError

MAX_WIDTH = 1 << 20  # of a layer
MAX_VOCAB = 1 << 24
MAX_COUNT = 1 << 10  # of layers, heads of attention, or drafted tokens


@contextmanager
def prefix_errors(path: Path) -> Iterator[None]:
    """Begin the messages of errors with the head's path."""
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


class Entries:
    """A JSON object. Each method returns the entry `key`, or a default if it is absent or null, and raises
    ModelError for a value of another type, for one out of range, and for an absent one without a default."""

    def __init__(self, data: Mapping[str, Any], where: str = "config.json") -> None:
        self.data, self._where = data, where

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def _get(self, key: str, default: Any, kinds: tuple[type, ...], wanted: str) -> Any:
        value = self.data.get(key)
        value = default if value is None else value
        if type(value) not in kinds or (value == "" and default is None):
            raise self.error(key, f"must be {wanted}" if key in self else "is missing")
        return value

    def error(self, key: str, reason: str) -> ModelError:
        return ModelError(
            f"{key} in {self._where} {reason}: the head is incomplete or damaged, fetch or train it again"
        )

    def integer(self, key: str, most: int, default: int | None = None, least: int = 0) -> int:
        return int(self._in_range(key, self._get(key, default, (int,), "a whole number"), least, most))

    def number(self, key: str, least: float, most: float, default: float | None = None) -> float:
        return float(self._in_range(key, self._get(key, default, (int, float), "a number"), least, most))

    def _in_range(self, key: str, number: float, least: float, most: float) -> float:
        if key in self and not least <= number <= most:
            raise self.error(key, f"must be from {least:,} to {most:,}")
        return number

    def text(self, key: str, default: str | None = None) -> str:
        return str(self._get(key, default, (str,), "a text"))

    def choice(self, key: str, choices: Collection[str], default: str | None = None) -> str:
        """Return a text that is one of the choices."""
        value = self.text(key, default)
        if value not in choices:
            known = ", ".join(choices)
            raise ModelError(f"{key} in {self._where} is {value!r}: only {known} are known here")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        return bool(self._get(key, default, (bool,), "true or false"))

    def integers(self, key: str, most: int, least: int = 0) -> tuple[int, ...]:
        found = self._get(key, [], (list,), "a list of whole numbers")
        return tuple(Entries({key: value}, self._where).integer(key, most, least=least) for value in found)

    def texts(self, key: str) -> list[str]:
        return [*filter(lambda value: isinstance(value, str), self._get(key, [], (list,), "a list of texts"))]

    def part(self, key: str) -> Entries:
        return Entries(self._get(key, {}, (dict,), "an object"), f"{key} in {self._where}")

    def parts(self, key: str) -> list[Entries]:
        found = self._get(key, [], (list,), "a list of objects")
        return [Entries({key: value}, self._where).part(key) for value in found]
