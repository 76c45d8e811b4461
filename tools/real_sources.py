"""Suites for a real model whose texts are the standard library's: code, edits, and work on a given text.

All of it is from modules that `tools/embedded/corpus.py` holds out of every training text.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator

from paceline.lab.workload import Item
from tools.embedded.corpus import docstrings, held_out
from tools.toy_suites import renamings

ANSWER = 192  # tokens
SHOULDER = "Answer with the code alone, in one Python block."


def code() -> Iterator[Item]:
    """Functions to write, to test, to explain and to repair."""
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
        (("textwrap", "dedent"), ("bisect", "insort_right"), ("heapq", "_siftup"))
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
    for number, (module, name) in enumerate((("graphlib", "_find_cycle"), ("csv", "_guess_delimiter"))):
        yield item(
            "code",
            f"explain-{number}",
            user(
                f"Explain step by step what this Python code does, and quote the lines that you speak of.\n\n"
                f"{block(source(module, name))}"
            ),
        )
    broken = (
        ("colorsys", "hsv_to_rgb", "f = (h*6.0) - i", "f = (h*6.0) + i"),
        ("statistics", "median", "i = n // 2", "i = n // 2 + 1"),
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
    """A function, a class or a module, and what is to be changed in it; most of the answer stands there."""
    short = (
        ("bisect", "bisect_left", "Add type hints to all parameters and to the result"),
        ("colorsys", "rgb_to_hsv", "Rename the variables maxc and minc to highest and lowest"),
        ("sched", "run", "Add a comment above each line that says what the line does"),
        ("textwrap", "indent", "Rewrite the function so that it takes one more parameter, `strip=False`"),
    )
    for number, (module, name, task) in enumerate(short):
        yield item("edit", f"function-{number}", user(f"{task}. {SHOULDER}\n\n{block(source(module, name))}"))
    found = [
        next(renamings(held_out()[name], 1_500, 6_000), None) for name in ("imaplib", "difflib", "pprint")
    ]
    for number, (function, before, _, old, new) in enumerate(one for one in found if one is not None):
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
            "wave",
            "Wave_read",
            "make `readframes` raise ValueError where nframes is negative",
            "readframes",
            9_000,
        ),
        ("graphlib", "TopologicalSorter", "make `done` accept a list of nodes as well", "done", 11_000),
        (
            "textwrap",
            "TextWrapper",
            "add a parameter `max_words=None` to `__init__` and keep it",
            "__init__",
            15_000,
        ),
        (
            "statistics",
            "linear_regression",
            "return a plain tuple instead of the named one",
            "linear_regression",
            17_000,
        ),
    )
    for number, (module, thing, task, answer, size) in enumerate(long):
        yield item(
            "edit",
            f"module-{number}",
            user(
                f"Here is a part of the module "
                f"`{module}`.\n\n{block(around(held_out()[module], thing, size))}\n\n"
                f"In `{thing}`, {task}. Answer with the changed `{answer}` alone, as one Python block."
            ),
        )


def grounded() -> Iterator[Item]:
    """Summaries of a text and questions about it: the answer's words are the text's."""
    texts = {
        name: docstrings(held_out()[name], name)
        for name in (
            "wave",
            "cmd",
            "textwrap",
            "fractions",
            "configparser",
            "statistics",
            "difflib",
            "imaplib",
            "heapq",
            "shelve",
        )
    }
    asks = (
        ("shelve", 3_000, "Sum the text up in four sentences."),
        ("heapq", 2_400, "Which functions does the text describe? List each with what it says about it."),
        (
            "wave",
            6_000,
            "How is a file opened for writing, and which parameters have to be set before the "
            "first "
            "frame is written? Quote the sentences that say so.",
        ),
        (
            "cmd",
            4_300,
            "Sum the text up by quoting its five most important sentences word for word, one a line.",
        ),
        ("textwrap", 6_600, "List every option of TextWrapper with its default, as a Markdown table."),
        ("imaplib", 7_400, "Which methods return data, and in which form? Quote what the text says of each."),
        (
            "configparser",
            12_000,
            "Write a short reference of all methods of the parser: the name, and one "
            "sentence "
            "taken from the text.",
        ),
        (
            "statistics",
            12_500,
            "Which function do I take for a median of grouped data? Quote the example "
            "that the "
            "text gives, and explain it.",
        ),
        (
            "statistics",
            16_500,
            "Give an overview of all functions in the text, with the first sentence of each.",
        ),
        (
            "difflib",
            19_800,
            "What does SequenceMatcher do, what is junk for it, and how fast is it? "
            "Answer with "
            "sentences from the text.",
        ),
    )
    for number, (name, size, ask) in enumerate(asks):
        yield item(
            "grounded",
            str(number),
            (
                ("system", "You answer from the text that the user gives, and in its words."),
                ("user", f"{head(texts[name], size)}\n\n---\n{ask}"),
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


def source(module: str, name: str) -> str:
    """A function or class of a held-out module, without a margin. The first of that name."""
    start, end = span(held_out()[module], name)
    return textwrap.dedent("\n".join(held_out()[module].splitlines()[start:end]))


def span(text: str, name: str) -> tuple[int, int]:
    """The lines of a function or class."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds) and node.name == name]
    return found[0].lineno - 1, found[0].end_lineno or 0


def around(text: str, name: str, most: int) -> str:
    """At most so many characters of whole lines, with all of the named thing and what stands around it."""
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
    """Its first paragraphs."""
    return text if len(text) <= most else text[:most].rpartition("\n\n")[0].strip()
