"""What the real model is asked when its answers are gathered to train a draft: made by templates, texts of the
standard library, and the model itself.

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
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TOPICS = """
rivers, volcanoes, bread, bicycles, the Roman empire, jazz, penguins, chess, solar panels, the moon landing, tea,
earthquakes, bees, railways, the human heart, origami, coral reefs, sleep, cheese, the printing press, vaccines,
wolves, football, glaciers, the Silk Road, photography, dinosaurs, electric cars, pottery, the stock market, opera,
honey, deserts, whales, lighthouses, the brain, gardening, comets, rice, castles, the internet, swimming, owls,
steam engines, Mars, chocolate, democracy, violins, hurricanes, elephants, libraries, wind power, the Olympics,
coffee, submarines, mushrooms, ancient Egypt, robots, marathon running, butterflies, tunnels, the Renaissance, salt,
telescopes, cats, bridges, inflation, the Amazon rainforest, clocks, batteries, sharks, theatre, potatoes, spiders,
the Cold War, planes, yoga, snow, gold, horses, the immune system, poetry, radio, forests, maps, plastic, camels,
budgeting, job interviews, public speaking, remote work, moving house, learning a language, saving water, recycling,
first aid, healthy breakfasts, time management, stress, exercise at home, birthday parties, camping, dogs, museums
""".replace("\n", " ").split(",")  # fmt: skip
NAMES = "Anna Ben Carla Diego Emma Farid Grace Hiro Ines Jonas Kofi Lena Mei Noah Olga Priya Rosa Sam Tom Yara".split()
THINGS = "apples pencils books stickers marbles cookies tickets shells stamps eggs cards plants bottles coins".split()
CITIES = (
    "Paris Berlin Tokyo Cairo Lima Oslo Rome Delhi Boston Sydney Nairobi Toronto Madrid Seoul Dublin".split()
)
PEOPLE = "teacher, nurse, farmer, pilot, chef, child of ten, manager, traveller, student, grandmother".split(
    ", "
)
GERMAN = (
    ("Der Zug", "Die Lehrerin", "Mein Bruder", "Das Kind", "Die Stadt", "Ein alter Mann", "Die Firma", "Unser Nachbar"),
    ("hat gestern", "wird morgen", "möchte im Sommer", "konnte lange nicht", "soll bald", "will heute"),
    ("ein neues Haus", "einen langen Brief", "das kleine Auto", "die Arbeit", "viele Bücher", "den Garten", "Hilfe"),
    ("gefunden", "sehen", "kaufen", "verlassen", "bekommen", "verstehen", "verkaufen", "brauchen"),
)  # fmt: skip
OPEN = (
    "What is the history of {t}?", "Explain {t} to a {p}.", "Write a short story about {t}.",
    "Give me five facts about {t}.", "What are the advantages and disadvantages of {t}?", "Tell me about {t}.",
    "Write a poem about {t}.", "How does one get started with {t}?", "Why are {t} important?",
    "Write an email to a {p} about {t}.", "Compare {t} and {u}.", "List ten words that have to do with {t}.",
    "Write a blog post about {t} with a title and three paragraphs.", "What would a {p} like about {t}?",
    "Imagine you are a {p}. What do you think of {t}?", "Plan a day around {t} in {c}.",
    "Write a dialogue between a {p} and a {q} about {t}.", "Who first studied {t}, and when?",
    "What is the difference between {t} and {u}?", "Give advice on {t} in a numbered list.",
)  # fmt: skip
ARTICLES = (
    "Write a news report of four paragraphs about {t} in {c}.", "Write a detailed encyclopedia article about {t}.",
    "Write an interview with a {p} who knows a lot about {t}.", "Write a report on {t} for a {p}.",
)  # fmt: skip
FOLLOW_UPS = (
    "Summarize this in three sentences.", "Summarize the text above.", "What is the main point?",
    "Rewrite it for a {p}.", "Make it shorter.", "List the key points.", "Give it a title.", "Continue.",
    "Translate the first sentence into French.", "Which names and places does it mention?",
    "Ask three questions that the text answers.", "Write the same again, but more formal.",
    "Can you give an example?", "Why is that so?", "And what about {u}?", "Explain the last point.",
)  # fmt: skip
CODE = (
    "Write a Python function that {w}.", "Write a Python function that {w}, with a docstring and type hints.",
    "How do I write code that {w} in Python?", "Write a unit test for a function that {w}.",
    "Write a JavaScript function that {w}.", "Write a class with a method that {w}.",
)  # fmt: skip
WORK = """
reverses a string; checks whether a number is prime; sorts a list of tuples by the second item; counts the words of a
text; finds the longest line of a file; merges two dictionaries; removes duplicates from a list; computes the n-th
Fibonacci number; reads a CSV file and sums a column; checks whether two words are anagrams; flattens a nested list;
finds the median of a list; converts Celsius to Fahrenheit; validates an email address; parses a date; caches results
of a slow function; draws a triangle of stars; finds all files with a suffix; counts vowels; rotates a matrix; does a
binary search; computes the greatest common divisor; groups records by a key; retries a request; writes a log line;
splits a list into chunks; finds the most common element; checks balanced brackets; encodes a string as JSON; adds
two matrices; implements a stack; implements a queue; simulates a dice roll; makes a password; sums the digits of a
number; converts a Roman numeral; finds a missing number; capitalizes every word; compares two versions; counts lines
""".replace("\n", " ").split(";")  # fmt: skip
ABOUT_TEXT = (
    "Summarize:\n{x}", "Summarize the following text in two sentences.\n\n{x}", "{x}\n\nWhat does this text say?",
    "Read the text and answer the question.\n\nText: {x}\n\nQuestion: what is described here?",
    "Rewrite this text in simpler words:\n\n{x}", "List the key points of this text:\n{x}",
    "{x}\n\nTL;DR:", "Correct the mistakes in this text:\n\n{x}", "Give the following text a title:\n\n{x}",
    "Answer by the passages below.\n\nPassage 1: {x}\n\nPassage 2: {y}\n\nQuestion: what do they have in common?",
    "Use these documents to answer.\n[1] {x}\n[2] {y}\nQuestion: what is the first document about?",
    "Write three questions about this text, with answers.\n\n{x}", "Repeat this text word for word:\n\n{x}",
)  # fmt: skip
ABOUT_CODE = (
    "What does this function do?\n\n```python\n{x}```", "Add a docstring to this function:\n```python\n{x}```",
    "Rewrite this code with better names:\n\n```python\n{x}```", "Find the bug in this code.\n```python\n{x}```",
    "Add type hints to the function and give all of it back:\n\n```python\n{x}```",
    "{x}\nRewrite this function so that it prints what it does. Answer with the code only.",
    "Translate this Python code into JavaScript:\n```python\n{x}```", "Explain this code line by line:\n\n{x}",
)  # fmt: skip
MODULES = """
argparse ast base64 bisect calendar collections configparser contextlib copy csv datetime difflib dis email.utils
fnmatch fractions ftplib functools getopt glob gzip hashlib heapq hmac html http.client imaplib inspect ipaddress json
locale logging mailbox mimetypes nntplib numbers optparse os pathlib pdb pickle platform plistlib pprint profile
queue random reprlib sched secrets selectors shelve shlex shutil smtplib socket statistics string subprocess tabnanny
tarfile tempfile textwrap threading timeit tokenize trace traceback turtle types typing unittest.case urllib.parse
urllib.request uuid warnings weakref webbrowser xml.dom.minidom zipfile zoneinfo
""".split()  # fmt: skip


@dataclass(frozen=True)
class Conversation:
    """turns: of the user, one after the other; None where the model is to write it. temperature: of the answers."""

    system: str | None
    turns: tuple[str | None, ...]
    temperature: float


SYSTEM = (
    None, None, None, None, None, None,  # the model's own
    "You are a helpful assistant.", "You are a coding assistant. Answer briefly.",
    "You are a careful assistant. Think step by step.",
)  # fmt: skip


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
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.FunctionDef)
                and node.end_lineno
                and 4 <= node.end_lineno - node.lineno <= 22
            ):
                source = ast.get_source_segment(text, node) or ""
                found.add(textwrap.dedent(" " * node.col_offset + source) + "\n")
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
    said = " ".join(" ".join(rng.choice(part) for part in GERMAN) + "." for _ in range(rng.randint(1, 3)))
    return rng.choice(
        ("Translate German to English: {}", "Translate into English:\n{}", "{}\nIn English, please.")
    ).format(said)


def about_text(rng: random.Random) -> str:
    x, y = rng.sample(paragraphs(), 2)
    return rng.choice(ABOUT_TEXT).replace("{x}", x).replace("{y}", y)


def about_code(rng: random.Random) -> str:
    return rng.choice(ABOUT_CODE).replace("{x}", rng.choice(functions()))


def first(rng: random.Random) -> str | None:
    kind = rng.random()
    for share, make in (
        (0.30, lambda _: None), (0.14, lambda rng: fill(rng, rng.choice(OPEN))), (0.14, about_text),
        (0.08, about_code), (0.08, lambda rng: fill(rng, rng.choice(CODE))), (0.10, arithmetic), (0.07, record),
        (0.03, german), (1.0, lambda rng: fill(rng, rng.choice(ARTICLES))),
    ):  # fmt: skip
        kind -= share
        if kind < 0:
            return make(rng)
    raise AssertionError


def conversations(seed: int) -> Iterator[Conversation]:
    """Without end; the same for the same seed."""
    rng = random.Random(seed)
    while True:
        turns = [first(rng)]
        while len(turns) < 3 and rng.random() < 0.35:
            turns.append(fill(rng, rng.choice(FOLLOW_UPS)) if rng.random() < 0.7 else None)
        yield Conversation(rng.choice(SYSTEM), tuple(turns), rng.choice((0.0, 0.0, 0.0, 0.7, 1.0)))


def main() -> None:
    """Print some, to be looked at."""
    made = conversations(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    for _ in range(20):
        print(next(made), end="\n\n")


if __name__ == "__main__":
    main()
