"""The suites' texts: from where they are said to be, and what the script writes."""

from __future__ import annotations

import platform
import re
import textwrap
from collections.abc import Iterator
from types import CodeType

import pytest

from paceline.bench.suites.workload import FOLDER
from suite_items import NAMES, REAL, SIZES, of
from tools import suites, toy_suites
from tools.embedded.corpus import held_out

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


@pytest.mark.parametrize("name", [*NAMES, *REAL])
def test_the_files_are_what_the_script_writes(name: str) -> None:
    assert (FOLDER / f"{name}.jsonl").read_bytes() == suites.lines(name).encode()
