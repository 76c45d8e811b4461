"""The suites' texts: from where they are said to be, and what the script writes."""

from __future__ import annotations

import platform
import re

import pytest

from paceline.bench.suites.workload import FOLDER
from suite_items import NAMES, REAL, SIZES, of
from tools import suites
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


@pytest.mark.parametrize("name", [*NAMES, *REAL])
def test_the_files_are_what_the_script_writes(name: str) -> None:
    assert (FOLDER / f"{name}.jsonl").read_bytes() == suites.lines(name).encode()
