"""The suites' texts: from where they are said to be, and what the script writes."""

from __future__ import annotations

import platform
import re
import textwrap
from collections.abc import Iterator
from types import CodeType

import pytest

from paceline.bench.suites.workload import FOLDER
from suite_items import NAMES, REAL, SIZES, of, text
from tools import real_sources, suites, toy_suites
from tools.embedded.corpus import docstrings, held_out, topics
from tools.smollm2.topics import MODULES

pytestmark = pytest.mark.skipif(
    platform.python_version() != "3.11.7", reason="made of CPython 3.11.7's library"
)


def test_code_is_from_modules_that_were_held_out_and_stops_at_the_start_of_a_function() -> None:
    sources = held_out()
    homes = {size: [[name for name, source in sources.items() if item.prompt in source]
                    for item in of("code", size)] for size in SIZES}  # fmt: skip
    assert all(len(found) == 1 for size in SIZES for found in homes[size])
    used = [found[0] for size in SIZES for found in homes[size]]
    assert len(set(used)) == len(used)
    for size in SIZES:
        assert all(re.match(r" *def \w+\(", item.prompt.splitlines()[-1]) for item in of("code", size))


def renamings() -> Iterator[tuple[str, str, str, str, str]]:
    for source in held_out().values():
        yield from toy_suites.renamings(source, 300, 6_000)


def names(code: str) -> list[tuple[set[str], tuple[str, ...], list[object]]]:
    """Of each function in a function, compiled: its variables, the globals and attributes, the constants."""
    out, left = [], [compile(textwrap.dedent(code), "", "exec")]
    while left:
        one = left.pop()
        left += [const for const in one.co_consts if isinstance(const, CodeType)]
        consts: list[object] = [const for const in one.co_consts if not isinstance(const, CodeType)]
        out.append(({*one.co_varnames, *one.co_cellvars, *one.co_freevars}, one.co_names, consts))
    return out


def test_a_renaming_changes_a_variable_and_no_attribute_keyword_or_text() -> None:
    found = list(renamings())
    assert len(found) >= 50
    for _, before, after, old, new in found:
        expected = [
            ({new if name == old else name for name in variables}, others, consts)
            for variables, others, consts in names(before)
        ]
        assert names(after) == expected
        assert names(after) != names(before)


def test_a_tiny_edit_shows_the_first_lines_of_the_renamed_code() -> None:
    heads = {
        (before, old, new, "\n".join(after.splitlines()[:2])) for _, before, after, old, new in renamings()
    }
    for item in of("edit", "tiny"):
        form = r"# Before\n(.*)\n\n# After: `(\w+)` is called `(\w+)`\n(.*)"
        parts = re.fullmatch(form, item.prompt, re.S)
        assert parts, item.id
        assert parts.groups() in heads, item.id


def test_a_full_edit_holds_a_whole_function_and_the_parameter_to_rename() -> None:
    known = {(old, name, new, before) for name, before, _, old, new in renamings()}
    for item in of("edit", "full"):
        form = r".* parameter `(\w+)` of `(\w+)` to `(\w+)`.*?```python\n(.*)\n```"
        parts = re.fullmatch(form, text(item), re.S)
        assert parts, item.id
        assert parts.groups() in known, item.id


def test_tiny_texts_are_documentation_of_modules_that_were_held_out() -> None:
    sources = {name: re.sub(r"\s+", " ", source) for name, source in held_out().items()}
    for item in [*of("quote", "tiny"), *of("prose", "tiny")]:
        # Docstrings are joined and lose their margin, so paragraph by paragraph.
        paragraphs = re.split(r"\n\s*\n", item.prompt.partition("\n\nThe same again")[0])
        words = [re.sub(r"\s+", " ", one).strip() for one in paragraphs]
        assert any(all(one in source or one == name for one in words) for name, source in sources.items())


def test_full_texts_are_the_language_reference() -> None:
    known = topics()
    for item in [*of("quote", "full"), *of("prose", "full")]:
        said = text(item).partition("one a line.\n\n")[2] if item.category == "quote" else text(item)
        assert any(said in topic for topic in known), item.id


def test_a_real_models_texts_are_of_modules_that_its_draft_was_not_taught() -> None:
    """Those modules are inside of packages, and named by none of the prompts."""
    taught = set(MODULES)
    assert not {name.replace("/", ".") for name in real_sources.MODULES} & taught
    assert all(
        "/" in name for name in real_sources.MODULES
    )  # the prompts' functions are of modules that are not
    sources = [re.sub(r"\s+", "", real_sources.library(name)) for name in real_sources.MODULES]
    blocks = [block for name in ("real-code", "real-edit") for item in of(name, "full")
              for block in re.findall(r"```python\n(.*?)\n```", text(item), re.S)]  # fmt: skip
    whole = [one for one in blocks if any(re.sub(r"\s+", "", one) in source for source in sources)]
    assert len(blocks) - len(whole) == 2  # those with a mistake in them
    known = [docstrings(real_sources.library(name), name) for name in real_sources.MODULES]
    for item in of("real-grounded", "full"):
        given = (item.messages[1][1] or "").partition("\n\n---\n")[0]
        assert any(given in one for one in known), item.id


@pytest.mark.parametrize("name", [*NAMES, *REAL])
def test_the_files_are_what_the_script_writes(name: str) -> None:
    assert (FOLDER / f"{name}.jsonl").read_bytes() == suites.lines(name).encode()
