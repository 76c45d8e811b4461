"""What the real model is asked when its answers are gathered to train a draft: made by templates, texts of the
standard library, and the model itself.

The model writes a user's turn when it is given no more than that turn's beginning (Magpie: Xu et al. 2024,
arXiv:2406.08464); a system prompt (STEER) says what about. What it has asked is asked again in conversations
of their own, and what it has answered there is given to be summarised, looked up in, or rewritten.

Nothing here comes from Spec-Bench, nor from Paceline's own suites: what is measured on is never trained on.
"""

from __future__ import annotations

import json
import pydoc
import pydoc_data.topics
import random
import sys
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tools.smollm2.topics import (
    ABOUT_CODE,
    ABOUT_PASSAGES,
    ABOUT_TEXT,
    ARTICLES,
    CITIES,
    CODE,
    COUNTRIES,
    FACTS,
    FAMOUS,
    FOLLOW_UPS,
    GERMAN_DO,
    GERMAN_MORE,
    GERMAN_WHAT,
    GERMAN_WHEN,
    GERMAN_WHO,
    HISTORY,
    HUMANITIES,
    INVENTED,
    MODULES,
    NAMES,
    OPEN,
    PEOPLE,
    ROLES,
    SCIENCE,
    STEER,
    STEM,
    SYSTEM,
    THINGS,
    TOPICS,
    WORK,
)

STEERED = "system\nYou are an AI assistant "
USER, ASSISTANT = "user\n", "assistant\n"
STEERED_SHARE = 0.14  # of all conversations
KEPT = 4000  # questions and texts of the model's own


@dataclass(frozen=True)
class Conversation:
    """turns: of the user, one after the other; None where the model is to write it. temperature: of the answers."""

    system: str | None
    turns: tuple[str | None, ...]
    temperature: float


@dataclass(frozen=True)
class Written:
    """Questions and answers of the model's own, of conversations that are over: the last of each."""

    questions: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def read(self, conversation: str) -> None:
        """The first turns of a conversation as its template writes it. A turn that was cut ends with a sentence."""
        turns = [turn.split("<|im_end|>")[0] for turn in conversation.split("<|im_start|>")]
        asked, answers = (
            [turn[len(who) :] for turn in turns if turn.startswith(who)] for who in (USER, ASSISTANT)
        )
        if asked and 12 <= len(asked[0]) <= 700 and turns[1].startswith(STEERED):
            self._keep(self.questions, asked[0])
        if answers and len(answers[0]) >= 250 and "```" not in answers[0]:
            self._keep(self.texts, answers[0][: answers[0].rfind(".") + 1] or answers[0])

    def _keep(self, kept: list[str], text: str) -> None:
        kept.append(text)
        del kept[:-KEPT]


@cache
def paragraphs() -> tuple[str, ...]:
    """Prose of Python's documentation and docstrings, 60 to 900 characters each."""
    texts = list(pydoc_data.topics.topics.values())
    for name in MODULES:
        with warnings.catch_warnings(action="ignore"):
            module = pydoc.safeimport(name)
            if module is None:
                continue
            docs = [value.__doc__ for value in (module, *vars(module).values()) if hasattr(value, "__doc__")]
        texts += [doc for doc in docs if isinstance(doc, str)]
    found: set[str] = set()
    for text in texts:
        parts = [" ".join(part.split()) for part in text.split("\n\n")]
        for size in (1, 2, 4):
            for i in range(0, len(parts), size):
                joined = "\n".join(parts[i : i + size])
                if 60 <= len(joined) <= 900:
                    found.add(joined)
    return tuple(sorted(found))


@cache
def functions() -> tuple[str, ...]:
    """Functions of the standard library's source, 4 to 22 lines each."""
    import ast

    found: set[str] = set()
    folder = Path(textwrap.__file__).parent
    for path in sorted(folder.glob("*.py")):
        text = path.read_text("utf-8", errors="replace")
        lines = text.split("\n")
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.FunctionDef)
                and node.end_lineno
                and 4 <= node.end_lineno - node.lineno <= 22
            ):
                found.add(textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])) + "\n")
    return tuple(sorted(found))


def fill(rng: random.Random, text: str) -> str:
    t, u = (one.strip() for one in rng.sample(TOPICS, 2))
    p, q = rng.sample(PEOPLE, 2)
    work = rng.choice(WORK).strip()
    return text.format(t=t, u=u, p=p, q=q, c=rng.choice(CITIES), w=work, x="{x}", y="{y}")


def arithmetic(rng: random.Random) -> str:
    a, b = rng.sample(NAMES, 2)
    thing, other = rng.sample(THINGS, 2)
    i, j, k = rng.randint(2, 60), rng.randint(2, 12), rng.randint(2, 20)
    return rng.choice((
        f"{a} has {i} {thing}. {b} gives {a} {j} times as many. How many {thing} does {a} have now?",
        f"A shop sells {thing} at ${j} each and {other} at ${k} each. {a} buys {i} {thing} and {k} {other}. "
        f"How much does {a} pay?",
        f"{a} reads {i} pages a day. How many pages does {a} read in {j} weeks, and how many days does a book of "
        f"{i * k} pages take?",
        f"What is {i} * {k} + {j}?", f"Solve for x: {j}x + {k} = {i * j + k}.", f"What is {j * 5}% of {i * 10}?",
        f"A train drives {i * 3} km in {j} hours. How far does it come in {k} hours? Explain each step.",
        f"{b} is {k} years older than {a}, who is {i}. How old will {b} be in {j} years?",
        f"There are {i + k} people on a bus. At the first stop {j} leave and {k} get on. At the second half of them "
        f"leave. How many are left?",
        f"{a} earns ${i} an hour and works {j} hours a day. How much does {a} earn in {k} days?",
        f"{a} bakes {i * j} {thing} and puts {j} into each box. How many boxes does {a} need? If each box sells for "
        f"${k}, how much money does {a} make?",
        f"A rope of {i * 4} meters is cut into {k} equal pieces. How long is each of them?",
        f"{a}, {b} and their friend share {i * 3} {thing} equally. {a} then gives {j} to {b}. How many has {b} now?",
        f"Every week {a} saves ${i}. A bicycle costs ${i * k + j}. After how many weeks can {a} buy it?",
        f"In a class of {i + j} students, {j} have no pets. A third of the others have a dog. How many have a dog?",
        f"{a} drinks {j} glasses of water a day, each of {k * 10} ml. How many liters is that in {i} days?",
        f"A store sold {i} {thing} on Monday, twice as many on Tuesday, and {j} fewer than on Tuesday on Wednesday. "
        f"How many {thing} did it sell in all three days?",
        f"{a} has ${i * 10}. {a} spends half of it on {thing} and ${j} on {other}. How much is left?",
        f"The sum of two numbers is {i + k} and their difference is {abs(i - k)}. What are they?",
        f"A rectangle is {i} cm long and {j} cm wide. What are its area and its perimeter?",
        f"What is the probability of drawing one of {j} red {thing} from a bag of {j + k}?",
        f"Simplify ({i}x + {j}) - ({k}x - {j}).", f"If f(x) = {j}x^2 - {k}, what is f({k})?",
        f"{a} runs {j} miles on each weekday and {k} miles on Sunday. How far does {a} run in {i} weeks?",
        f"A recipe for {j} people needs {k} {thing}. How many are needed for {j * 3} people?",
        f"{a} reads a book of {i * 5} pages. On the first day {a} reads {i} pages, on the second twice as many. "
        f"How many pages are left?", f"Which number is larger, {i}/{j} or {k}/{j + 1}? Explain.",
    ))  # fmt: skip


def record(rng: random.Random) -> str:
    rows = [
        {
            "name": rng.choice(NAMES),
            "city": rng.choice(CITIES),
            "age": rng.randint(18, 80),
            "item": rng.choice(THINGS),
        }
        for _ in range(rng.randint(1, 5))
    ]
    told = " ".join(f"{r['name']} from {r['city']} is {r['age']} and ordered {r['item']}." for r in rows)
    listed = json.dumps(rows, indent=rng.choice((None, 2)))
    tool = json.dumps(
        {"name": rng.choice(("search", "get_weather", "send_mail", "add_event")), "arguments": ["text"]}
    )
    return rng.choice((
        f"Extract the people as a JSON list with name, city, age and item.\n\n{told}",
        f"{told}\n\nMake a Markdown table of this.", f"Turn this JSON into CSV:\n{listed}",
        f"Write an SQL statement that creates a table for this and inserts it:\n{listed}",
        f"{listed}\nWho is the oldest? Answer in one sentence.", f"Sort this list by age and return JSON:\n{listed}",
        f"Write an SQL query that lists all {rng.choice(THINGS)} sold in {rng.choice(CITIES)} by month.",
        f"You can call this tool: {tool}. Reply with a JSON call only. Request: {rng.choice(TOPICS).strip()} in "
        f"{rng.choice(CITIES)}",
        f"Add the field \"country\" to each record:\n{listed}",
    ))  # fmt: skip


def german(rng: random.Random) -> str:
    parts = (GERMAN_WHO, GERMAN_WHEN, GERMAN_WHAT, GERMAN_DO)
    said = " ".join(
        " ".join(rng.choice(part) for part in parts) + rng.choice(GERMAN_MORE) + "."
        for _ in range(rng.randint(1, 3))
    )
    return rng.choice((
        "Translate German to English: {}", "Translate into English:\n{}", "{}\nIn English, please.",
        "Translate the following German text to English: {}", "What does this mean in English? \"{}\"",
    )).format(said)  # fmt: skip


def fact(rng: random.Random) -> str:
    c, d = rng.sample(COUNTRIES, 2)
    t, u = (one.strip() for one in rng.sample(TOPICS, 2))
    asked = rng.choice(FACTS).format(c=c, d=d, i=rng.choice(INVENTED), f=rng.choice(FAMOUS), t=t, u=u)
    return asked if rng.random() < 0.4 else f"{asked[0].upper()}{asked[1:]}?"


def role(rng: random.Random) -> str:
    return fill(rng, rng.choice(ROLES).replace("{f}", rng.choice(FAMOUS)))


def subject(rng: random.Random) -> str:
    s, z = rng.sample(SCIENCE, 2)
    h, g = rng.sample(HISTORY, 2)
    return rng.choice(rng.choice((STEM, HUMANITIES))).format(s=s, z=z, h=h, g=g)


def texts(rng: random.Random, written: Written, count: int) -> list[str]:
    """Of the model's own, where there are some, or of the documentation."""
    own = len(written.texts) >= 3 and rng.random() < 0.7
    return rng.sample(written.texts if own else paragraphs(), count)


def about_text(rng: random.Random, written: Written) -> str:
    if rng.random() < 0.6:
        asked = rng.choice(ABOUT_TEXT).replace("{p}", rng.choice(PEOPLE))
        return asked.replace("{x}", "\n\n".join(texts(rng, written, rng.choice((1, 1, 2)))))
    x, y, z = texts(rng, written, 3)
    own = written.questions and rng.random() < 0.3
    q = rng.choice(written.questions) if own else rng.choice((fact(rng), "What do these have in common?"))
    passages = rng.choice(ABOUT_PASSAGES).replace("{q}", q).replace("{x}", x)
    return passages.replace("{y}", y[: rng.randint(200, 900)]).replace("{z}", z[: rng.randint(200, 900)])


def about_code(rng: random.Random) -> str:
    return rng.choice(ABOUT_CODE).replace("{x}", rng.choice(functions()))


def first(rng: random.Random, written: Written) -> str | None:
    kind = rng.random()
    for share, make in (
        (0.20, lambda _: None), (0.18, lambda rng: rng.choice(written.questions) if written.questions else None),
        (0.09, lambda rng: fill(rng, rng.choice(OPEN))), (0.19, lambda rng: about_text(rng, written)),
        (0.04, about_code), (0.05, lambda rng: fill(rng, rng.choice(CODE))), (0.08, arithmetic), (0.04, record),
        (0.04, german), (0.04, fact), (0.03, role), (0.04, subject),
        (1.0, lambda rng: fill(rng, rng.choice(ARTICLES))),
    ):  # fmt: skip
        kind -= share
        if kind < 0:
            return make(rng)
    raise AssertionError


def conversations(seed: int, written: Written) -> Iterator[Conversation]:
    """Without end; the same for the same seed, and the same `written` at the same time."""
    rng = random.Random(seed)
    while True:
        temperature = rng.choice((0.0, 0.0, 0.0, 0.7, 1.0))
        if rng.random() < STEERED_SHARE:
            yield Conversation(rng.choice(STEER), (None,), temperature)
            continue
        turns = [first(rng, written)]
        while len(turns) < 3 and rng.random() < 0.3:
            turns.append(fill(rng, rng.choice(FOLLOW_UPS)) if rng.random() < 0.6 else None)
        yield Conversation(rng.choice(SYSTEM), tuple(turns), temperature)


def main() -> None:
    """Print some, to be looked at."""
    made = conversations(int(sys.argv[1]) if len(sys.argv) > 1 else 0, Written())
    for _ in range(20):
        print(next(made), end="\n\n")


if __name__ == "__main__":
    main()
