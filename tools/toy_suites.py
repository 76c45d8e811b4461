"""The suites for any model, in two sizes: completions for a tiny model, questions for a real one."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paceline.bench.suites.workload import Item
from tools.embedded.corpus import HELD_OUT, docstrings, held_out, topics
from tools.embedded.records import Entity, Records
from tools.questions import QUESTIONS

SEED = 20_27  # not the seed of the records that the embedded models were trained on
N = 8  # items of each size; agent has sessions
TOKENS = {"tiny": 96, "full": 256}
ROWS = {"tiny": 2, "full": 5}  # at most, in the result of a tool call
RESULT = "Tool: "
RUN_SQL = {
    "type": "function",
    "function": {
        "name": "run_sql",
        "description": "Run one query",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}
CONTEXT = {"tiny": 1_500, "full": 7_000}  # characters of source or text before the answer


def code() -> Iterator[Item]:
    modules = held_out()
    for size in TOKENS:
        for number, name in enumerate(_modules(size)):
            text = modules[name]
            lines = text.splitlines(keepends=True)
            starts = [node.lineno for node in functions(text) if node.end_lineno - node.lineno >= 5]
            # In the middle of the module, for some context before it.
            start = min(starts, key=lambda line: abs(line - 0.6 * len(lines)))
            before = _tail("".join(lines[: start - 1]), CONTEXT[size])
            yield _item("code", size, number, prompt=before + lines[start - 1].rstrip("\n"))


def edit() -> Iterator[Item]:
    modules = held_out()
    for size, (shortest, longest) in (("tiny", (300, 1_200)), ("full", (1_000, 6_000))):
        found = [list(renamings(modules[name], shortest, longest)) for name in HELD_OUT]
        # One function of each module, then a second one.
        some = [of[turn] for turn in (0, 1, 2) for of in found if turn < len(of)]
        for number, (function, before, after, old, new) in enumerate(some[:N]):
            if size == "tiny":
                head = "\n".join(after.splitlines()[:2])
                prompt = f"# Before\n{before}\n\n# After: `{old}` is called `{new}`\n{head}"
                yield _item("edit", size, number, prompt=prompt)
            else:
                yield _item("edit", size, number, messages=_user(
                    f"In this Python code, rename the parameter `{old}` of `{function}` to `{new}`. "
                    f"Answer with the code alone.\n\n```python\n{before}\n```"))  # fmt: skip


def json_() -> Iterator[Item]:
    records = Records(SEED, [])
    for size, (low, high) in (("tiny", (4, 5)), ("full", (14, 18))):
        for number in range(N):
            entity = records.entity()
            rows = records.rows(entity, low, high)
            told = "\n".join(_sentence(entity, row) for row in rows)
            if size == "tiny":
                start = json.dumps(rows[:1])[:-1]
                yield _item("json", size, number, prompt=f"{told}\n\nThe same as JSON:\n{start}, {{")
            else:
                keys = ", ".join(["id", *entity.fields])
                yield _item("json", size, number, messages=_user(
                    f"Write all {entity.table} of this text as a JSON array of objects with the keys {keys}. "
                    f"Answer with the JSON alone.\n\n{told}"))  # fmt: skip


def agent() -> Iterator[Item]:
    records = Records(SEED + 1, [])
    for size in TOKENS:
        for session in range(3):
            entity = records.entity()
            find = records.tool_schema(entity, "find")
            # One session in three asks the database instead.
            turns = [_turn(records, entity, find, sql=session == 1, most=ROWS[size]) for _ in range(3)]
            past: list[tuple[str, str]] = []
            for request, turn in enumerate((turns[0], turns[1], turns[1], turns[2])):
                ask = turn.ask if request != 2 else "That failed with a timeout. Please try again."
                yield _agent(size, f"{session}-{request}", f"{size}-{session}", [find, RUN_SQL], past, ask)
                past += [("user", ask), *_answered(turn, failed=request == 1)]


@dataclass(frozen=True)
class Turn:
    """A question, its tool call, the resulting rows, and the answer."""

    ask: str
    call: Any
    rows: list[Any]
    answer: str


def _turn(records: Records, entity: Entity, find: Any, *, sql: bool, most: int) -> Turn:
    """Return a turn that searches by the tool's parameter, with a new value in each turn."""
    (key,) = find["function"]["parameters"]["required"]
    found = records.rows(entity, 1, most)
    value = found[0][key]
    rows: list[dict[str, Any]] = [row | {key: value} for row in found]
    call = {"name": find["function"]["name"], "arguments": {key: value}}
    if sql:
        query = f"SELECT * FROM {entity.table} WHERE {key} = {records.literal(value)}"
        call = {"name": "run_sql", "arguments": {"query": query}}
    other = records.r.choice([name for name in entity.fields if name != key])
    asks = (f"Which {entity.table} have {key} {value}?", f"Show me {entity.table} where {key} is {value}.")
    answer = f"{entity.noun.capitalize()} {rows[0]['id']} has {other} {rows[0][other]}."
    return Turn(records.r.choice(asks), call, rows, answer)


def _agent(size: str, number: str, session: str, schemas: Any, past: list[tuple[str, str]], ask: str) -> Item:
    tools = f"Tools: {json.dumps(schemas)}"
    conversation = [*past, ("user", ask)]
    if size == "full":
        system = (
            f"You answer with one tool call as JSON, and with a sentence once its result is there.\n{tools}"
        )
        return _item("agent", size, number, session=session, messages=(("system", system), *conversation))
    lines = [
        content if content.startswith(RESULT) else f"{role.capitalize()}: {content}"
        for role, content in conversation
    ]
    prompt = "\n".join([tools, *lines, "Assistant: <tool_call>"])
    return _item("agent", size, number, session=session, prompt=prompt)


def _answered(turn: Turn, *, failed: bool) -> list[tuple[str, str]]:
    """Return the messages after a question: a call, its result as a user message, and the answer."""
    call = f"<tool_call>\n{json.dumps(turn.call)}\n</tool_call>"
    result = '{"error": "timeout"}' if failed else json.dumps(turn.rows)
    after = "The call failed." if failed else turn.answer
    return [("assistant", call), ("user", f"{RESULT}{result}"), ("assistant", after)]


def quote() -> Iterator[Item]:
    for size in TOKENS:
        for number, text in enumerate(_texts(size)):
            if size == "tiny":
                words = list(re.finditer(r"\S+", text))
                prompt = f"{text}\n\nThe same again, word for word:\n\n{text[: words[3].end()]}"
                yield _item("quote", size, number, prompt=prompt)
            else:
                yield _item("quote", size, number, messages=_user(
                    "Sum up the following text by quoting its five most important sentences word for word, "
                    f"one a line.\n\n{text}"))  # fmt: skip


def prose() -> Iterator[Item]:
    for size in TOKENS:
        for number, text in enumerate(_texts(size)):
            cut = text[: int(len(text) * 0.8)]
            yield _item("prose", size, number, prompt=cut.rpartition(" ")[0].rstrip())


def chat() -> Iterator[Item]:
    for size, questions in zip(TOKENS, (QUESTIONS[:N], QUESTIONS[N:]), strict=True):
        for number, question in enumerate(questions):
            yield _item("chat", size, number, messages=_user(question))


def _item(suite: str, size: str, number: int | str, **asked: Any) -> Item:
    return Item(id=f"{suite}-{size}-{number}", category=suite, size=size, max_tokens=TOKENS[size], **asked)


def _user(text: str) -> tuple[tuple[str, str], ...]:
    return (("user", text),)


def _modules(size: str) -> list[str]:
    """Return long modules, as far as possible different ones for each size."""
    texts = held_out()
    long = [name for name in HELD_OUT if len(texts[name]) > 6_000]
    return (long if size == "tiny" else long[::-1])[:N]


def functions(text: str) -> list[Any]:
    """Return the nodes of the functions in the syntax tree, in order."""
    found = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and not n.decorator_list]
    return sorted(found, key=lambda node: node.lineno)


def renamings(text: str, shortest: int, longest: int) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield functions with an often used parameter: (name, before, after, parameter, new parameter)."""
    lines = text.splitlines()
    for node in functions(text):
        before = "\n".join(lines[node.lineno - 1 : node.end_lineno])
        if not shortest <= len(before) <= longest:
            continue
        for argument in node.args.args:
            old, new = argument.arg, f"the_{argument.arg}"
            after = re.sub(rf"\b{old}\b", new, before)
            if old != "self" and after.count(new) >= 4 and _renames(before, after, old, new):
                yield node.name, before, after, old, new
                break


def _renames(before: str, after: str, old: str, new: str) -> bool:
    """Return whether only names differ: no attribute, no keyword of a call, no word of a sentence."""
    try:
        tree, expected = (ast.parse(textwrap.dedent(code)) for code in (before, after))
    except SyntaxError:  # e.g. a parameter b beside a literal b"..."
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == old:
            node.id = new
        elif isinstance(node, ast.arg) and node.arg == old:
            node.arg = new
    return ast.dump(tree) == ast.dump(expected)


def _sentence(entity: Entity, row: dict[str, Any]) -> str:
    told = ", ".join(f"{name} {json.dumps(row[name])}" for name in entity.fields)
    return f"{entity.noun.capitalize()} {row['id']} has {told}."


def _texts(size: str) -> list[str]:
    """Return documentation: of held-out modules, or for the full size of the language itself, which the
    embedded models were trained on."""
    if size == "tiny":
        modules = held_out()
        long = [docstrings(modules[name], name) for name in HELD_OUT]
    else:
        long = topics()
    some = [text for text in long if len(text) >= CONTEXT[size]]
    step = max(1, len(some) // N)
    return [_head(text, CONTEXT[size]) for text in some[::step]][:N]


def _head(text: str, most: int) -> str:
    """Return the first paragraphs, or the first lines if paragraphs are long."""
    paragraphs, rows = (text[:most].rpartition(end)[0].strip() for end in ("\n\n", "\n"))
    return paragraphs if len(paragraphs) > most // 2 else rows


def _tail(text: str, most: int) -> str:
    """Return the last lines."""
    return text if len(text) <= most else text[-most:].partition("\n")[2]
