"""What is asked: suites of requests, from the package, from a file, or from another project's questions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from paceline.bench.jsonl import LineError, describe, object_of, raw_lines, text_of
from paceline.speculative.errors import UsageError

Message = tuple[str, str | None]  # role and content
FOLDER = Path(__file__).parent
# Several suites by one name.
GROUPS = {
    "toy": ("code", "edit", "json", "agent", "quote", "prose", "chat"),
    "real": tuple(f"real-{name}" for name in ("code", "edit", "json", "agent", "grounded", "chat", "maths")),
}
FILE_FORMATS = ("specbench", "sessions")  # what a file may be said to hold: FORM:FILE


@dataclass(frozen=True)
class Item:
    """A `prompt` to complete, or chat `messages` in order, the last the user's.

    An assistant's content may be None: it is then what the model answered to an item before it in the
    session: the last None to the last item, the one before to the one before. session: items that share it
    (not "") follow each other in it, in order. size: "tiny" or "full"; "" fits any model.
    """

    id: str
    category: str
    prompt: str = ""
    messages: tuple[Message, ...] = ()
    max_tokens: int = 128
    seed: int = 0
    session: str = ""
    size: str = ""


@dataclass(frozen=True)
class Suite:
    """tiny, full: how many items of each size."""

    name: str
    description: str
    licence: str
    tiny: int
    full: int


def known_suites() -> dict[str, dict[str, str]]:
    """Return what suites/suites.json says of each suite of the package."""
    return dict(json.loads((FOLDER / "suites.json").read_text("utf-8")))


@cache
def suites() -> tuple[Suite, ...]:
    """Return the suites of the package."""
    sizes = {name: Counter(item.size for item in load(name)) for name in known_suites()}
    return tuple(
        Suite(name, about["description"], about["licence"], sizes[name]["tiny"], sizes[name]["full"])
        for name, about in known_suites().items()
    )


def load(text: str) -> list[Item]:
    """Return the items of one or several of, with commas between them: the name of a suite or of a group of
    them; a .jsonl file with our own fields (see Item), Spec-Bench's or SPEED-Bench's questions; FORM:FILE.
    Raises UsageError, with file and line."""
    out: dict[str, Item] = {}
    for part in suite_names(text):
        if is_file(part):
            form, path = split_format(part)
            found = read(Path(path), form)
        elif part in known_suites():
            found = read(FOLDER / f"{part}.jsonl")
        else:
            known = ", ".join([*GROUPS, *known_suites()])
            raise UsageError(f"unknown suite {part!r}: choose from {known}, or name a file ending in .jsonl")
        for item in found:
            if out.setdefault(item.id, item) is not item:
                raise UsageError(f"--suite {text}: two items have the id {item.id!r}; name one file alone")
    return list(out.values())


def suite_names(text: str) -> list[str]:
    """Return what a suite's name names, each once: groups as what is in them."""
    if Path(text).is_file():
        return [text]
    names = [GROUPS.get(one.strip(), (one.strip(),)) for one in text.split(",")]
    return list(dict.fromkeys(name for some in names for name in some))


def is_file(text: str) -> bool:
    """Return whether a suite's name is that of a file."""
    return text.endswith((".jsonl", ".json")) or "/" in text


def split_format(text: str) -> tuple[str, str]:
    """Return the form and the path of FORM:FILE; the form is "" where the file itself tells."""
    form, colon, path = text.partition(":")
    return (form, path) if colon and form in FILE_FORMATS else ("", text)


def read(path: Path, form: str = "") -> list[Item]:
    """Read a file's items. Raises UsageError."""
    from pydantic import ValidationError

    from paceline.bench.suites import forms

    items: dict[str, Item] = {}
    requested: Counter[str] = Counter()  # by session
    for line in raw_lines(path):
        where = f"{path}, line {line.number}"
        try:
            data = object_of(line)
            kind: type[forms.OwnItem | forms.Question | forms.SuiteSession] = forms.OwnItem
            if form == "sessions":
                kind = forms.SuiteSession
            elif form or "question_id" in data:
                kind = forms.Question
            # Of the text: JSON as pydantic reads it holds no half of a character.
            found = list(kind.model_validate_json(text_of(line)).items(path.stem, line.number))
        except LineError as error:
            raise UsageError(f"{where}: {error}") from error
        except ValidationError as error:
            raise UsageError(f"{where}: {describe(error)}") from error
        for item in found:
            if item.id in items:
                raise UsageError(f"{where}: an item before it has the id {item.id!r} too; each needs its own")
            if sum(content is None for _, content in item.messages) > requested[item.session]:
                raise UsageError(f"{where}: no item before it in its session answers its assistant's message")
            items[item.id] = item
            requested[item.session] += bool(item.session)
    if not items:
        raise UsageError(f"{path}: has no items; write one JSON object a line")
    return list(items.values())


def length(item: Item) -> int:
    """Return the characters of an item."""
    return len(item.prompt) + sum(len(value or "") for _, value in item.messages)


def filter_size(items: Sequence[Item], size: str) -> list[Item]:
    """Return the items made for models of that size, and those for any."""
    return [item for item in items if item.size in ("", size)]


def sample_items(items: Sequence[Item], n: int) -> list[Item]:
    """Return at most n items in their order, evenly from all categories and from all over each; a session
    that is in is in from its start."""
    chosen = {item.id for item in islice(interleaved(items), n)}
    return [item for item in items if item.id in chosen]


def interleaved(items: Sequence[Item]) -> Iterator[Item]:
    """Yield items in an order whose beginnings are all good samples: the categories take turns, each with
    items from all over it; of a session always the next one."""
    by_category: dict[str, list[Item]] = {}
    home: dict[str, str] = {}  # session -> category of its first item, which all of it counts for
    for item in items:
        category = home.setdefault(item.session, item.category) if item.session else item.category
        by_category.setdefault(category, []).append(item)
    queues = [_spread(some) for some in by_category.values()]
    while queues:
        for queue in list(queues):
            if (following := next(queue, None)) is None:
                queues.remove(queue)
            else:
                yield following


def _spread(items: Sequence[Item]) -> Iterator[Item]:
    """Yield items from far apart first; of a session always the next one."""
    units: dict[str, list[Item]] = {}
    for item in items:
        units.setdefault(item.session or f"\0{item.id}", []).append(item)
    # By the index with its bits reversed (van der Corput): 0, 4, 2, 6, 1, 5, 3, 7.
    width = len(units).bit_length()
    order = sorted(enumerate(units.values()), key=lambda unit: f"{unit[0]:0{width}b}"[::-1])
    for _, unit in order:
        yield from unit
