"""Suites for a real model from templates: extraction, agents, conversations, arithmetic."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from paceline.bench.suites.workload import Item
from tools.embedded.records import Records
from tools.embedded.words import CITIES, STATUS, a_date, a_time, an_email, full_name
from tools.real_sources import item, library, source, user

SEED = 20_32
GOODS = (
    "desk lamp",
    "office chair",
    "notebook",
    "water bottle",
    "USB cable",
    "bicycle pump",
    "tea kettle",
    "backpack",
    "phone case",
    "garden hose",
    "wall clock",
    "headphones",
)
Messages = list[tuple[str, str]]


def json_() -> Iterator[Item]:
    r = random.Random(SEED)
    makers = (_order, _mails, _log, _contacts, _minutes)
    for number in range(10):
        text, keys = makers[number % len(makers)](r, 4 if number < len(makers) else 10)
        yield item(
            "json",
            str(number),
            user(
                f"Write what this text says as a JSON array of objects with the keys {', '.join(keys)}. "
                f"Answer with "
                f"the JSON alone.\n\n{text}"
            ),
            tokens=256,
        )


def _order(r: random.Random, n: int) -> tuple[str, Sequence[str]]:
    lines = [
        f"- {r.randint(1, 9)} x {name}, {r.randint(3, 120)}.{r.randint(0, 99):02d} EUR each, article "
        f"{r.randint(1000, 9999)}"
        for name in r.sample(GOODS, min(n, len(GOODS)))
    ]
    who = full_name(r)
    text = f"Order of {a_date(r)} by {who}, {r.choice(CITIES)}:\n" + "\n".join(lines)
    return text, ("article", "name", "quantity", "price")


def _mails(r: random.Random, n: int) -> tuple[str, Sequence[str]]:
    parts = []
    for _ in range(n):
        who, other = full_name(r), full_name(r)
        parts.append(
            f"From: {who} <{an_email(r)}>\nTo: {other}\nDate: {a_time(r)}\nSubject: Meeting in "
            f"{r.choice(CITIES)}\n\n"
            f"Dear {other.split()[0]}, can we meet on {a_date(r)} at "
            f"{r.randint(8, 17)}:{r.choice(('00', '15', '30'))}? "
            f"My number is +{r.randint(1, 99)} {r.randint(1000000, 9999999)}. Regards, {who.split()[0]}"
        )
    return "\n\n".join(parts), (
        "sender",
        "address",
        "receiver",
        "meeting_date",
        "meeting_time",
        "city",
        "phone",
    )


def _log(r: random.Random, n: int) -> tuple[str, Sequence[str]]:
    day = a_date(r)
    services = r.sample(("billing", "search", "login", "mailer", "export", "gateway"), 3)
    events = (
        "timeout after 30 s",
        "connection refused",
        "retry succeeded",
        "disk is almost full",
        "slow query",
    )
    lines = [
        f"{day} {8 + i // 4:02d}:{r.randint(0, 59):02d}:{r.randint(0, 59):02d} "
        f"{r.choice(('INFO', 'WARNING', 'ERROR'))} "
        f"[{r.choice(services)}] {r.choice(events)} (request {r.getrandbits(32):08x})"
        for i in range(n)
    ]
    return "\n".join(lines), ("time", "level", "service", "message", "request")


def _contacts(r: random.Random, n: int) -> tuple[str, Sequence[str]]:
    parts = [
        f"{full_name(r)} lives in {r.choice(CITIES)}, was born on {a_date(r)}, can be reached at "
        f"{an_email(r)} and has "
        f"the customer number {r.randint(10000, 99999)}; the account is {r.choice(STATUS)}."
        for _ in range(n)
    ]
    return " ".join(parts), ("name", "city", "born", "email", "customer_number", "status")


def _minutes(r: random.Random, n: int) -> tuple[str, Sequence[str]]:
    tasks = (
        "send the contract",
        "book a room",
        "fix the login page",
        "call the supplier",
        "write the report",
        "order new chairs",
        "test the backup",
        "invite the team",
        "update the price list",
        "plan the move",
    )
    parts = [
        f"{i + 1}. {full_name(r)} will {task} until {a_date(r)}; priority is "
        f"{r.choice(('low', 'medium', 'high'))}."
        for i, task in enumerate(r.sample(tasks, min(n, len(tasks))))
    ]
    return "Minutes of the meeting\n" + "\n".join(parts), ("number", "person", "task", "due", "priority")


def agent() -> Iterator[Item]:
    """Yield sessions after two to five tool calls: half edit code, half query a database."""
    tasks = (
        ("urllib/robotparser", ("can_fetch", "allowance"), "let can_fetch say which line decided"),
        ("http/cookies", ("_quote", "_unquote", "value_decode"), "give _unquote a docstring with an example"),
        ("asyncio/locks", ("notify", "notify_all", "release"), "make notify return how many it woke"),
        ("json/decoder", ("decode", "raw_decode", "JSONArray"), "let decode accept bytes too"),
        ("wsgiref/headers", ("add_header", "get_all", "setdefault"), "refuse empty names with a clear error"),
    )
    for number, (module, names, task) in enumerate(tasks):
        yield item("agent", f"code-{number}", tuple(_coding(module, names, task)))
    records = Records(SEED + 1, [])
    for number in range(5):
        asked = _asking(records, calls=2 + number % 3, answers=number % 2 == 0)
        yield item("agent", f"data-{number}", tuple(asked))


TOOLS = (
    ("find", "Find a name in the repository", {"name": "string"}),
    ("view", "Show a function with line numbers", {"path": "string", "name": "string"}),
    ("replace", "Replace text in a file", {"path": "string", "old": "string", "new": "string"}),
    ("run_tests", "Run the tests of a module", {"path": "string"}),
)


def _coding(module: str, names: Sequence[str], task: str) -> Iterator[tuple[str, str]]:
    path, lines = f"Lib/{module}.py", library(module).splitlines()
    yield "system", _rules([_tool(*tool) for tool in TOOLS])
    yield "user", f"In {path}, {task}. Look at the code first."
    for name in names:
        at = [f"{path}:{i}: {line.strip()}" for i, line in enumerate(lines, 1) if f"{name}(" in line][:6]
        yield "assistant", _call("find", {"name": name})
        yield "user", "Tool: " + "\n".join(at)
        yield "assistant", _call("view", {"path": path, "name": name})
        text = source(module, name).splitlines()
        start = next(i for i, line in enumerate(lines, 1) if f"def {name}(" in line)
        yield "user", "Tool: " + "\n".join(f"{start + i:5} {line}" for i, line in enumerate(text))


def _asking(records: Records, calls: int, *, answers: bool) -> Iterator[tuple[str, str]]:
    """Yield the messages of a database session. answers: the next turn answers instead of calling a tool."""
    one, two = records.entity(), records.entity()
    yield (
        "system",
        _rules([_tool("run_sql", "Run one query", {"query": "string"})])
        + "\n\n"
        + "\n\n".join(records.create_table(entity) for entity in (one, two)),
    )
    for number in range(calls):
        entity = (one, two)[number % 2]
        found = records.rows(entity, 3, 5)
        key = records.r.choice(list(entity.fields))
        value = found[0][key]
        rows = [row | {key: value} for row in found]
        yield "user", f"Which {entity.table} have {key} {value}?"
        query = f"SELECT * FROM {entity.table} WHERE {key} = {records.literal(value)}"
        yield "assistant", _call("run_sql", {"query": query})
        yield "user", "Tool: " + json.dumps(rows)
        if number < calls - 1 or not answers:
            other = next(name for name in entity.fields if name != key)
            told = "; ".join(f"{row['id']} with {other} {row[other]}" for row in rows)
            yield "assistant", f"{len(rows)} {entity.table} have {key} {value}: {told}."
    if not answers:
        yield "user", f"And which {entity.table} have {other} {rows[-1][other]}?"


def _rules(tools: Sequence[Any]) -> str:
    return (
        "You are an assistant with tools. To use one, answer with its call alone: <tool_call>, a JSON "
        "object with "
        "name and arguments, </tool_call>. Its result comes as the next message. When you know enough, "
        "answer "
        f"in words.\nTools: {json.dumps(tools)}"
    )


def _tool(name: str, what: str, parameters: dict[str, str]) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": what, "parameters": schema}}


def _call(name: str, arguments: dict[str, str]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def chat() -> Iterator[Item]:
    single = (
        "What is the difference between weather and climate? Explain it with an example.",
        "I have flour, eggs, milk and two apples. What can I cook in half an hour?",
        "Write a friendly note to the neighbours about a birthday party on Saturday evening.",
        "Name five ways to save energy at home, and say for each how much effort it takes.",
        "Why is the sky blue during the day and red in the evening?",
        "Give me a plan to learn the guitar in three months, week by week.",
    )
    for number, ask in enumerate(single):
        yield item("chat", str(number), user(ask))
    conversations = (
        (
            "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
            "Tell the same story again, but in the first person, and change as little as you can.",
        ),
        (
            "Describe the city of Vienna for a travel guide, in two paragraphs.",
            "Now correct any mistakes in your text, and give me the whole text again.",
        ),
        (
            "List ten ideas for a school project about water.",
            "Take ideas 2, 4 and 7 of your list, repeat them, and add a sentence to each.",
        ),
    )
    for number, (first, second) in enumerate(conversations):
        name = f"talk-{number}"
        yield item("chat", f"{name}.1", user(first), session=name)
        yield item("chat", f"{name}.2", (*user(first), ("assistant", None), *user(second)), session=name)


def maths() -> Iterator[Item]:
    r = random.Random(SEED + 2)
    forms = (
        "A train leaves {city} at {h}:15 and travels {km} km at {v} km/h. When does it arrive?",
        "{who} buys {a} {thing}s at {p} EUR each and gets {d}% off the total. What is to be paid?",
        "A tank holds {big} litres. A pump fills it with {v} litres a minute while {a} litres a minute leak. "
        "How long until it is full?",
        "{who} saves {p} EUR a month at {d}% interest a year, paid at the end of each year. How much is "
        "it after "
        "three years?",
        "The sum of three consecutive numbers is {three}. Which are they?",
    )
    for number in range(10):
        values = {
            "city": r.choice(CITIES),
            "h": r.randint(6, 18),
            "km": r.randint(12, 60) * 10,
            "v": r.randint(6, 16) * 10,
            "who": full_name(r).split()[0],
            "a": r.randint(3, 12),
            "p": r.randint(8, 90),
            "d": r.choice((2, 5, 10, 20)),
            "thing": r.choice(GOODS),
            "big": r.randint(20, 90) * 100,
            "three": 3 * r.randint(20, 200),
        }
        ask = forms[number % len(forms)].format(**values)
        yield item(
            "maths", str(number), user(f"{ask} Solve it step by step, and check the result at the end.")
        )
