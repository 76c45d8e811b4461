"""What is asked: suites of requests, from the package, from a file, or from another project's questions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from paceline.bench.jsonl import numbered_lines
from paceline.speculative.errors import UsageError

Message = tuple[str, str | None]  # role and content
FOLDER = Path(__file__).parent
# Several suites by one name.
GROUPS = {
    "toy": ("code", "edit", "json", "agent", "quote", "prose", "chat"),
    "real": tuple(f"real-{name}" for name in ("code", "edit", "json", "agent", "grounded", "chat", "maths")),
}
FORMS = ("specbench", "sessions")  # what a file may be said to hold: FORM:FILE
ROLES = ("system", "user", "assistant")
SIZES = ("", "tiny", "full")
# The fields of Spec-Bench's questions (github.com/hemingkx/Spec-Bench, read in its file) and of SPEED-Bench's
# (huggingface.co/datasets/nvidia/SPEED-Bench, read in its card; it comes as parquet, and has to be put
# together by its own script first). Both hold the user's turns only.
QUESTION = {"question_id", "category", "turns"}
SPEED_BENCH = {"sub_category", "source", "src_id", "difficulty", "multiturn"}
# What stands, alone or before a template, where SPEED-Bench may not pass a text on: TURNS_PLACEHOLDER
# in examples/specdec_bench of github.com/NVIDIA/Model-Optimizer, read there.
TO_BE_FETCHED = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
ANSWER = 256  # tokens; their files name no length


@dataclass(frozen=True)
class Item:
    """One request: a `prompt` to complete, or chat `messages` (role, content) in order, the last the user's.

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


@cache
def suites() -> tuple[Suite, ...]:
    """Those that come with the package, as suites/suites.json describes them."""
    known: dict[str, dict[str, str]] = json.loads((FOLDER / "suites.json").read_text("utf-8"))
    return tuple(
        Suite(
            name,
            about["description"],
            about["licence"],
            *(sum(item.size == size for item in load(name)) for size in ("tiny", "full")),
        )
        for name, about in known.items()
    )


def load(text: str) -> list[Item]:
    """The items of one or several of, with commas between them: the name of a suite or of a group of them; a
    .jsonl file with our own fields (see Item; only `prompt` or `messages` has to be there), Spec-Bench's or
    SPEED-Bench's questions; FORM:FILE. Raises UsageError, with file and line."""
    out: dict[str, Item] = {}
    for part in parts(text):
        found = read_as(part) if is_file(part) else read(FOLDER / f"{_known(part)}.jsonl")
        for item in found:
            if out.setdefault(item.id, item) is not item:
                raise UsageError(
                    f"--suite {text}: two items have the id {item.id!r}; name one of the files alone"
                )
    return list(out.values())


def parts(text: str) -> list[str]:
    """What a suite's name names, each once: groups as what is in them."""
    if Path(text).is_file():
        return [text]
    names = [GROUPS.get(one.strip(), (one.strip(),)) for one in text.split(",")]
    return list(dict.fromkeys(name for some in names for name in some))


def _known(name: str) -> str:
    known = json.loads((FOLDER / "suites.json").read_text("utf-8"))
    if name not in known:
        raise UsageError(
            f"unknown suite {name!r}: choose from {', '.join([*GROUPS, *known])}, or name a file that "
            f"ends in "
            ".jsonl"
        )
    return name


def is_file(text: str) -> bool:
    """Whether a suite's name is that of a file."""
    return text.endswith((".jsonl", ".json")) or "/" in text


def located(text: str) -> tuple[str, str]:
    """The form and the path of FORM:FILE; the form is "" where the file itself tells."""
    form, colon, path = text.partition(":")
    return (form, path) if colon and form in FORMS else ("", text)


def read_as(text: str) -> list[Item]:
    """The items of FILE or FORM:FILE."""
    form, path = located(text)
    if form == "sessions":
        return sessions(Path(path))
    items = read(Path(path))
    if form and any(item.prompt for item in items):
        raise UsageError(f"--suite {text}: {path} holds no questions in Spec-Bench's form")
    return items


def sessions(path: Path) -> list[Item]:
    """Recorded conversations, {"id", "messages"} a line: every answer in them is an item, which is asked with
    what was said before it. What a tool said is the user's; messages of one role that follow each other are
    one."""
    items: dict[str, Item] = {}
    for number, line in numbered_lines(path):
        where = f"{path}, line {number}"
        try:
            said = json.loads(line)
            name, messages = str(said.get("id", number)), said["messages"]
            told = [
                ("user" if one["role"] == "tool" else one["role"], _text(one["content"], "content", where))
                for one in messages
            ]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UsageError(
                f"{where}: is no recorded conversation; write an object with id and messages, and a role and "
                "text in each of them"
            ) from error
        joined: list[tuple[str, str]] = []
        for role, content in told:
            if role not in ROLES:
                raise UsageError(
                    f"{where}: a message's role is {role!r}; choose from {', '.join(ROLES)}, tool"
                )
            if joined and joined[-1][0] == role:
                content = f"{joined.pop()[1]}\n\n{content}"
            joined.append((role, content))
        for turn, at in enumerate((i for i, (role, _) in enumerate(joined) if role == "assistant"), 1):
            if at and joined[at - 1][0] == "user":
                id_ = f"{name}.{turn}"
                if id_ in items:
                    raise UsageError(f"{where}: a line before it has the id {name!r} too; each needs its own")
                items[id_] = Item(id_, "agent", messages=tuple(joined[:at]), max_tokens=ANSWER, session=name)
    if not items:
        raise UsageError(f"{path}: no conversation has an answer in it")
    return list(items.values())


def read(path: Path) -> list[Item]:
    items: dict[str, Item] = {}
    asked: Counter[str] = Counter()  # by session
    for number, line in numbered_lines(path):
        where = f"{path}, line {number}"
        try:
            said = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: is no JSON ({error}); write one object a line") from error
        if not isinstance(said, dict):
            raise UsageError(f"{where}: is no JSON object; write one a line")
        question = said.keys() >= QUESTION
        for item in _questions(said, where) if question else [_item(said, path.stem, str(number), where)]:
            if item.id in items:
                raise UsageError(f"{where}: an item before it has the id {item.id!r} too; each needs its own")
            if sum(content is None for _, content in item.messages) > asked[item.session]:
                raise UsageError(f"{where}: no item before it in its session answers its assistant's message")
            items[item.id] = item
            asked[item.session] += bool(item.session)
    if not items:
        raise UsageError(f"{path}: has no items; write one JSON object a line")
    return list(items.values())


def of_size(items: Sequence[Item], size: str) -> list[Item]:
    """Those made for models of that size, and those for any."""
    return [item for item in items if item.size in ("", size)]


def sampled(items: Sequence[Item], n: int) -> list[Item]:
    """At most n items, evenly from all categories and from all over each; a session that is in is in from its
    start. In their order."""
    chosen = {item.id for item in islice(ordered(items), n)}
    return [item for item in items if item.id in chosen]


def ordered(items: Sequence[Item]) -> Iterator[Item]:
    """In an order whose beginnings are all good samples: the categories take turns, each with items from all
    over it; of a session always the next one."""
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
    """Items from far apart first; of a session always the next one, so that none lacks what came before."""
    units: dict[str, list[Item]] = {}
    for item in items:
        units.setdefault(item.session or f"\0{item.id}", []).append(item)
    # By the index with its bits reversed (van der Corput): 0, 4, 2, 6, 1, 5, 3, 7.
    width = len(units).bit_length()
    order = sorted(enumerate(units.values()), key=lambda unit: f"{unit[0]:0{width}b}"[::-1])
    for _, unit in order:
        yield from unit


def _item(said: dict[str, Any], category: str, number: str, where: str) -> Item:
    kinds = {f.name: f.type for f in fields(Item)}
    if unknown := sorted(set(said) - set(kinds)):
        raise UsageError(f"{where}: unknown field {', '.join(unknown)}; known are {', '.join(kinds)}")
    values: dict[str, Any] = {"id": number, "category": category} | said
    for name, value in values.items():
        kind = int if kinds[name] == "int" else str
        if name != "messages" and (not isinstance(value, kind) or isinstance(value, bool)):
            raise UsageError(
                f"{where}: its {name} is {value!r}; write {'a whole number' if kind is int else 'text'}"
            )
        if isinstance(value, str):
            _text(value, name, where)
    if "messages" in said:
        values["messages"] = _messages(said["messages"], where)
    item = Item(**values)
    if bool(item.prompt) == bool(item.messages):
        raise UsageError(f"{where}: give either a prompt or messages, and not an empty one")
    if item.max_tokens < 2 or item.seed < 0:
        raise UsageError(f"{where}: max_tokens must be at least 2, seed at least 0")
    if item.size not in SIZES:
        raise UsageError(f"{where}: its size is {item.size!r}; write tiny or full, or leave it out")
    if not item.id or not item.category:
        raise UsageError(f"{where}: its id or category is empty")
    return item


def _messages(said: Any, where: str) -> tuple[Message, ...]:
    if not isinstance(said, list) or not said:
        raise UsageError(f"{where}: its messages are no list of objects with role and content")
    out: list[Message] = []
    for one in said:
        if not isinstance(one, dict) or one.keys() - {"role", "content"}:
            raise UsageError(f"{where}: a message is no object with role and content alone")
        role, content = one.get("role"), one.get("content")
        if role not in ROLES:
            raise UsageError(f"{where}: a message's role is {role!r}; choose from {', '.join(ROLES)}")
        if content is None and role == "assistant":
            out.append((role, None))
            continue
        if not isinstance(content, str):
            raise UsageError(
                f"{where}: a message's content is no text; images and other parts cannot be asked"
            )
        out.append((role, _text(content, "content", where)))
    if out[-1][0] != "user":
        raise UsageError(f"{where}: its last message is the {out[-1][0]}'s; end with the user's")
    return tuple(out)


def _text(text: str, name: str, where: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{where}: its {name} is no UTF-8 text (character {error.start})") from error
    return text


def _questions(said: dict[str, Any], where: str) -> Iterator[Item]:
    """A question of several turns is a session; what the model answers stands between them."""
    if unknown := sorted(set(said) - QUESTION - SPEED_BENCH - {"reference"}):
        raise UsageError(
            f"{where}: unknown field {', '.join(unknown)} in a Spec-Bench or SPEED-Bench question"
        )
    id_, category, turns = (said[name] for name in ("question_id", "category", "turns"))
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise UsageError(f"{where}: its turns are no list of texts")
    if not isinstance(id_, int | str) or isinstance(id_, bool) or not isinstance(category, str):
        raise UsageError(f"{where}: its question_id is no text or number, or its category no text")
    if not _text(category, "category", where) or not _text(str(id_), "question_id", where):
        raise UsageError(f"{where}: its question_id or category is empty")
    messages: list[Message] = []
    for number, turn in enumerate(turns, 1):
        if not turn.strip():
            raise UsageError(f"{where}: turn {number} is empty; write what is asked")
        if turn.startswith(TO_BE_FETCHED):
            raise UsageError(
                f"{where}: turn {number} is still to be fetched; run prepare_data.py of SPEED-Bench first"
            )
        messages.append(("user", _text(turn, "turn", where)))
        name = str(id_) if len(turns) == 1 else f"{id_}.{number}"
        session = str(id_) if len(turns) > 1 else ""
        yield Item(name, category, messages=tuple(messages), max_tokens=ANSWER, session=session)
        messages.append(("assistant", None))
