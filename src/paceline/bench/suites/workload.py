"""Suites of requests, from the package, from a file, or from other projects' questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from pathlib import Path

from paceline.bench.jsonl import LineError, located, object_of, raw_lines
from paceline.speculative.errors import UsageError
from paceline.speculative.validation import unknown

Message = tuple[str, str | None]  # role and content
FOLDER = Path(__file__).parent
GROUPS = {
    "toy": ("code", "edit", "json", "agent", "quote", "prose", "chat"),
    "real": tuple(f"real-{name}" for name in ("code", "edit", "json", "agent", "grounded", "chat", "maths")),
}
SUITES = tuple(name for names in GROUPS.values() for name in names)
FILE_FORMATS = ("specbench", "sessions")  # FORM of FORM:FILE


@dataclass(frozen=True)
class Item:
    """A prompt to complete, or chat messages of which the last is the user's.
    An assistant's content may be None: the model's answer to an earlier item of the session, the last None
    for the last item. session: items that share it (not "") follow each other. earlier: ids of the session's
    items before this one. size: "tiny" or "full"; "" fits any model."""

    id: str
    category: str
    prompt: str = ""
    messages: tuple[Message, ...] = ()
    max_tokens: int = 128
    seed: int = 0
    session: str = ""
    size: str = ""
    earlier: tuple[str, ...] = field(default=(), compare=False)

    @property
    def referred(self) -> tuple[str, ...]:
        """Ids of the items whose answers fill the open messages, in order."""
        n_open = sum(content is None for _, content in self.messages)
        return self.earlier[len(self.earlier) - n_open :]


def load(text: str) -> list[Item]:
    """Return the items of comma-separated suites, groups or .jsonl files.
    A file has our fields (see Item), or the questions of Spec-Bench or SPEED-Bench; FORM:FILE names its form.
    Raises UsageError with file and line."""
    out: dict[str, Item] = {}
    sessions: dict[str, tuple[str, ...]] = {}  # ids of their items so far
    for part in suite_names(text):
        for item in read(*suite_file(part)):
            if item.id in out:
                raise UsageError(f"--suite {text}: two items have the id {item.id!r}; each needs its own")
            earlier = sessions.get(item.session, ()) if item.session else ()
            out[item.id] = replace(item, earlier=earlier)
            sessions[item.session] = (*earlier, item.id)
    return list(out.values())


def suite_names(text: str) -> list[str]:
    """Return the names of suites and files in a comma-separated list, with groups expanded."""
    if Path(text).is_file():
        return [text]
    names = [GROUPS.get(one.strip(), (one.strip(),)) for one in text.split(",")]
    return list(dict.fromkeys(name for some in names for name in some))


def suite_file(name: str) -> tuple[Path, str]:
    """Return the file of a suite, and the form in FORM:FILE or "". Raises UsageError for an unknown suite."""
    form, colon, path = name.partition(":")
    if not colon or form not in FILE_FORMATS:
        form, path = "", name
    if path.endswith((".jsonl", ".json")) or "/" in path:
        return Path(path), form
    if name in SUITES:
        return FOLDER / f"{name}.jsonl", ""
    raise unknown("suite", name, [*GROUPS, *SUITES, "a file ending in .jsonl"])


def read(path: Path, form: str = "") -> list[Item]:
    """Read the items of a file. Raises UsageError."""
    from paceline.bench.suites import forms

    items: list[Item] = []
    answered: Counter[str] = Counter()  # items by session
    for line in raw_lines(path):
        with located(f"{path}, line {line.number}"):
            data = object_of(line)
            if form == "sessions":
                parsed = list(forms.session_items(data, line.number))
            else:
                kind = forms.Question if form or "question_id" in data else forms.OwnItem
                # From text: pydantic rejects unpaired surrogates.
                parsed = list(kind.model_validate_json(line.data).items(path.stem, line.number))
            for item in parsed:
                if sum(content is None for _, content in item.messages) > answered[item.session]:
                    raise LineError("no item before it in its session answers its assistant's message")
                items.append(item)
                answered[item.session] += bool(item.session)
    if not items:
        raise UsageError(f"{path}: has no items; write one JSON object a line")
    return items


def length(item: Item) -> int:
    """Return the number of characters of an item."""
    return len(item.prompt) + sum(len(value or "") for _, value in item.messages)


def filter_size(items: Sequence[Item], size: str) -> list[Item]:
    return [item for item in items if item.size in ("", size)]


def sample_items(items: Sequence[Item], n: int) -> list[Item]:
    """Return at most n items in order, spread over and within categories; of a session, the first ones."""
    sample = {item.id for item in islice(interleaved(items), n)}
    return [item for item in items if item.id in sample]


def interleaved(items: Sequence[Item]) -> Iterator[Item]:
    """Yield items in an order whose prefixes are good samples: categories alternate, items within one are
    spread, and sessions stay in order."""
    by_category: dict[str, list[Item]] = {}
    home: dict[str, str] = {}  # session -> category of its first item
    for item in items:
        category = home.setdefault(item.session, item.category) if item.session else item.category
        by_category.setdefault(category, []).append(item)
    for turn in zip_longest(*map(_spread, by_category.values())):
        yield from (item for item in turn if item is not None)


def _spread(items: Sequence[Item]) -> Iterator[Item]:
    """Yield distant items first, and sessions in order."""
    units: dict[str, list[Item]] = {}
    for item in items:
        units.setdefault(item.session or f"\0{item.id}", []).append(item)
    # In van der Corput order (the bits of the index reversed): 0, 4, 2, 6, 1, 5, 3, 7.
    width = len(units).bit_length()
    order = sorted(enumerate(units.values()), key=lambda unit: f"{unit[0]:0{width}b}"[::-1])
    for _, unit in order:
        yield from unit
