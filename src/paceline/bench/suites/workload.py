"""Suites of requests: from the package, or files of our fields, other projects' questions or recorded
conversations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema, TypeAdapter, field_validator

from paceline.bench.jsonl import LineError, located, object_of, raw_lines
from paceline.speculative.errors import UsageError
from paceline.speculative.validation import unknown
from paceline.text.records import ASSISTANT, REASONING, record_parts

Message = tuple[str, str | None]  # role and content
Text = Annotated[str, Field(min_length=1)]
FOLDER = Path(__file__).parent
GROUPS = {
    "toy": ("code", "edit", "json", "agent", "quote", "prose", "chat"),
    "real": tuple(f"real-{name}" for name in ("code", "edit", "json", "agent", "grounded", "chat", "maths")),
}
SUITES = tuple(name for names in GROUPS.values() for name in names)
FILE_FORMATS = ("specbench", "sessions")  # FORM of FORM:FILE
# Placeholder of SPEED-Bench for a text that it may not redistribute: TURNS_PLACEHOLDER in
# examples/specdec_bench of github.com/NVIDIA/Model-Optimizer.
TO_BE_FETCHED = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
DEFAULT_MAX_TOKENS = 256  # other projects' files have none


class SuiteMessage(NamedTuple):
    role: Literal["system", "user", "assistant"]
    content: str | None


MESSAGES = GetPydanticSchema(lambda _, of: of(tuple[SuiteMessage, ...]))  # as a file has them


@dataclass(frozen=True)
class Item:
    """A prompt to complete, or chat messages of which the last is the user's.
    An assistant's content may be None: the model's answer to an earlier item of the session, the last None
    for the last item. session: items that share it (not "") follow each other. earlier: ids of the session's
    items before this one. size: "tiny" or "full"; "" fits any model."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    id: Text
    category: Text
    prompt: str = ""
    messages: Annotated[tuple[Message, ...], MESSAGES] = ()
    max_tokens: Annotated[int, Field(ge=2)] = 128
    seed: Annotated[int, Field(ge=0)] = 0
    session: str = ""
    size: Annotated[str, Field(pattern="^(tiny|full|)$")] = ""
    earlier: tuple[str, ...] = field(default=(), compare=False)

    @property
    def referred(self) -> tuple[str, ...]:
        """Ids of the items whose answers fill the open messages, in order."""
        n_open = sum(content is None for _, content in self.messages)
        return self.earlier[len(self.earlier) - n_open :]


class Question(BaseModel):
    """The user's turns, in the fields of Spec-Bench (github.com/hemingkx/Spec-Bench) and of SPEED-Bench
    (huggingface.co/datasets/nvidia/SPEED-Bench, after its script has assembled it from parquet). Other
    fields are ignored."""

    model_config = ConfigDict(strict=True)

    question_id: int | str
    category: Text
    turns: list[Annotated[str, Field(pattern=r"\S")]] = Field(min_length=1)

    @field_validator("turns")
    @classmethod
    def _check(cls, turns: list[str]) -> list[str]:
        if any(turn.startswith(TO_BE_FETCHED) for turn in turns):
            raise ValueError("a turn is still to be fetched; run prepare_data.py of SPEED-Bench first")
        return turns

    def items(self) -> Iterator[Item]:
        """Yield an item per turn. Several turns are a session with the model's answers in between."""
        id_, several = str(self.question_id), len(self.turns) > 1
        messages: list[Message] = []
        for turn, text in enumerate(self.turns, 1):
            messages.append(("user", text))
            name, session = (f"{id_}.{turn}", id_) if several else (id_, "")
            past, n = tuple(messages), DEFAULT_MAX_TOKENS
            yield Item(name, self.category, messages=past, max_tokens=n, session=session)
            messages.append((ASSISTANT, None))


def session_items(data: dict[str, Any], number: int) -> Iterator[Item]:
    """Yield an item for every answer of a recorded conversation, with the messages before it. Tool messages
    become user messages, and adjacent messages of one role are joined."""
    name = str(data.get("id", number))
    joined: list[Message] = []
    turn = 0
    for role, content in record_parts(data):
        if role == REASONING or not isinstance(content, str):
            continue
        role = role if role in ("system", ASSISTANT) else "user"
        if joined and joined[-1][0] == role:
            content = f"{joined.pop()[1]}\n\n{content}"
        elif role == ASSISTANT:
            turn += 1
            if joined and joined[-1][0] == "user":
                past, n = tuple(joined), DEFAULT_MAX_TOKENS
                yield Item(f"{name}.{turn}", "agent", messages=past, max_tokens=n, session=name)
        joined.append((role, content))


ITEM = TypeAdapter(Item)


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
    items: list[Item] = []
    answered: Counter[str] = Counter()  # items by session
    for line in raw_lines(path):
        with located(f"{path}, line {line.number}"):
            data = object_of(line)
            if form == "sessions":
                parsed = list(session_items(data, line.number))
            else:
                is_question = form or "question_id" in data
                data = data if is_question else {"id": str(line.number), "category": path.stem} | data
                text = json.dumps(data)  # as pydantic rejects unpaired surrogates in texts only
                own = [] if is_question else [ITEM.validate_json(text)]
                parsed = own or list(Question.model_validate_json(text).items())
            for item in parsed:
                last = item.messages[-1][0] if item.messages else "user"
                if bool(item.prompt) == bool(item.messages) or last != "user":
                    raise LineError("give either a prompt, or messages of which the last is the user's")
                if any(content is None and role != ASSISTANT for role, content in item.messages):
                    raise LineError("only an assistant's content may be left open")
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
