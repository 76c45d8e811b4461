"""Suites for a real model with texts of the standard library: code, edits, and grounded questions.

All texts are from modules inside packages (`MODULES`). The draft model of SmolLM2 was trained on answers
about top-level modules and their documentation only (`tools/smollm2/prompts.py`).
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from functools import cache

from paceline.bench.suites.workload import Item
from tools.embedded.corpus import docstrings, stdlib
from tools.toy_suites import renamings

MODULES = (
    "asyncio/base_events", "asyncio/locks", "asyncio/streams", "concurrent/futures/_base", "email/header",
    "email/headerregistry", "email/message", "html/parser", "http/cookiejar", "http/cookies", "json/decoder",
    "json/encoder", "logging/handlers", "multiprocessing/pool", "unittest/mock", "urllib/robotparser",
    "wsgiref/headers", "wsgiref/handlers", "xml/etree/ElementTree",
)  # fmt: skip
ANSWER = 192  # tokens
SHOULDER = "Answer with the code alone, in one Python block."


def code() -> Iterator[Item]:
    """Yield functions to write, to test, to explain and to repair."""
    write = (
        "Write a Python function `chunks(items, size)` that yields lists of at most `size` items. Add a "
        "docstring "
        "and raise ValueError where size is below 1.",
        "Write a Python class `Stack` with push, pop, peek and __len__, a docstring each, and an "
        "IndexError with a "
        "clear message where it is empty.",
        "Write a Python script that counts the words of a text file given on the command line and prints "
        "the ten "
        "most frequent ones with their counts.",
    )
    for number, task in enumerate(write):
        yield item("code", f"write-{number}", user(task))
    for number, (module, name) in enumerate(
        (("http/cookiejar", "domain_match"), ("http/cookies", "_unquote"), ("json/decoder", "JSONArray"))
    ):
        yield item(
            "code",
            f"test-{number}",
            user(
                f"Write unit tests with pytest for this function of the module `{module}`. Cover usual cases "
                f"and one "
                f"that is easily forgotten.\n\n{block(source(module, name))}"
            ),
        )
    for number, (module, name) in enumerate(
        (("urllib/robotparser", "Entry"), ("xml/etree/ElementTree", "_namespaces"))
    ):
        yield item(
            "code",
            f"explain-{number}",
            user(
                f"Explain step by step what this Python code does, and quote the lines that you speak of.\n\n"
                f"{block(source(module, name))}"
            ),
        )
    broken = (
        ("http/cookiejar", "reach", "b = h[i+1:]", "b = h[i:]"),
        ("http/cookiejar", "join_header_words", "if v is not None:", "if v is None:"),
    )
    for number, (module, name, right, wrong) in enumerate(broken):
        text = source(module, name)
        assert text.count(right) == 1
        yield item(
            "code",
            f"repair-{number}",
            user(
                f"This function gives wrong results: there is a mistake in one line. Find it, and answer "
                f"with the whole function, repaired. {SHOULDER}\n\n{block(text.replace(right, wrong))}"
            ),
        )


def edit() -> Iterator[Item]:
    """Yield a function, a class or a module with a change to make; most of the answer is in the prompt."""
    short = (
        ("http/cookiejar", "user_domain_match", "Add type hints to all parameters and to the result"),
        ("http/cookiejar", "time2isoz", "Rename the parameter t to seconds, and all that is made of it"),
        ("urllib/robotparser", "can_fetch", "Add a comment above each line that says what the line does"),
        (
            "email/header",
            "make_header",
            "Rewrite the function so that it takes one more parameter, `strip=False`",
        ),
    )
    for number, (module, name, task) in enumerate(short):
        yield item("edit", f"function-{number}", user(f"{task}. {SHOULDER}\n\n{block(source(module, name))}"))
    found = [
        next(renamings(library(name), 1_500, 6_000))
        for name in ("http/cookiejar", "unittest/mock", "logging/handlers")
    ]
    for number, (function, before, _, old, new) in enumerate(found):
        yield item(
            "edit",
            f"rename-{number}",
            user(
                f"Rename the parameter `{old}` of `{function}` to `{new}`. {SHOULDER}\n\n"
                f"{block(textwrap.dedent(before))}"
            ),
        )
    long = (
        (
            "wsgiref/headers",
            "Headers",
            "make `add_header` raise ValueError where the name is empty",
            "add_header",
            9_000,
        ),
        ("asyncio/locks", "Condition", "make `notify` return how many it woke", "notify", 11_000),
        (
            "html/parser",
            "HTMLParser",
            "add a parameter `strict=False` to `__init__` and keep it",
            "__init__",
            16_000,
        ),
        (
            "logging/handlers",
            "RotatingFileHandler",
            "let `doRollover` log each name it renames",
            "doRollover",
            23_000,
        ),
    )
    for number, (module, thing, task, answer, size) in enumerate(long):
        yield item(
            "edit",
            f"module-{number}",
            user(
                f"Here is a part of the module "
                f"`{module}`.\n\n{block(around(library(module), thing, size))}\n\n"
                f"In `{thing}`, {task}. Answer with the changed `{answer}` alone, as one Python block."
            ),
        )


def grounded() -> Iterator[Item]:
    """Yield summaries of a text and questions about it, whose answers use words of the text."""
    asks = (
        ("wsgiref/headers", 2_200, "Sum the text up in four sentences."),
        ("json/decoder", 3_400, "Which names does the text describe? List each with what it says about it."),
        (
            "email/headerregistry",
            4_900,
            "How does a header tell its own value? Quote the sentences that say so.",
        ),
        (
            "asyncio/streams",
            4_900,
            "Sum the text up by quoting its five most important sentences, one a line.",
        ),
        ("asyncio/locks", 5_600, "List every class in the text with what it is for, as a Markdown table."),
        (
            "asyncio/base_events",
            6_300,
            "Which methods return at once, and which wait? Quote what the text says.",
        ),
        (
            "http/cookiejar",
            12_300,
            "Write a short reference of all functions: the name, and a sentence of the text.",
        ),
        (
            "logging/handlers",
            13_200,
            "Which handler do I take for files that grow? Quote what the text says of it.",
        ),
        (
            "xml/etree/ElementTree",
            15_400,
            "Give an overview of all functions, with the first sentence of each.",
        ),
        (
            "unittest/mock",
            17_300,
            "What is a side effect, and what is a spec? Answer with sentences from the text.",
        ),
    )
    for number, (name, size, ask) in enumerate(asks):
        yield item(
            "grounded",
            str(number),
            (
                ("system", "You answer from the text that the user gives, and in its words."),
                ("user", f"{head(docstrings(library(name), name), size)}\n\n---\n{ask}"),
            ),
        )


def item(
    category: str,
    name: str,
    messages: tuple[tuple[str, str | None], ...],
    *,
    tokens: int = ANSWER,
    session: str = "",
) -> Item:
    return Item(
        id=f"real-{category}-{name}",
        category=category,
        messages=messages,
        max_tokens=tokens,
        session=f"real-{category}-{session}" if session else "",
        size="full",
    )


def user(text: str) -> tuple[tuple[str, str], ...]:
    return (("user", text),)


def block(text: str) -> str:
    return f"```python\n{text.rstrip()}\n```"


@cache
def library(module: str) -> str:
    """Return the source of one of MODULES."""
    assert module in MODULES, module
    return (stdlib() / f"{module}.py").read_text("utf-8")


def source(module: str, name: str) -> str:
    """Return the first function or class of a name, dedented."""
    start, end = span(library(module), name)
    return textwrap.dedent("\n".join(library(module).splitlines()[start:end]))


def span(text: str, name: str) -> tuple[int, int]:
    """Return the range of lines of a function or class."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds) and node.name == name]
    return found[0].lineno - 1, found[0].end_lineno or 0


def around(text: str, name: str, most: int) -> str:
    """Return whole lines around a function or class, at most `most` characters."""
    lines = text.splitlines()
    first, last = span(text, name)
    size = sum(len(line) + 1 for line in lines[first:last])
    while size <= most:
        before, after = lines[first - 1 : first] if first else [], lines[last : last + 1]
        size += sum(len(line) + 1 for line in (*before, *after))
        if not before and not after:
            break
        if size <= most:
            first, last = first - len(before), last + len(after)
    return "\n".join(lines[first:last])


def head(text: str, most: int) -> str:
    """Return the first paragraphs."""
    return text if len(text) <= most else text[:most].rpartition("\n\n")[0].strip()
