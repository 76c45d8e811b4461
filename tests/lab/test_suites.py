"""The suites of the package: as described, within their sizes, from the text they are said to be from."""

from __future__ import annotations

import platform
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from types import CodeType

import pytest

import paceline
from paceline.lab.suites import make
from paceline.lab.workload import FOLDER, Item, load, suites
from paceline.llm import LLM
from paceline.zoo.corpus import held_out, topics

NAMES = ("code", "edit", "json", "agent", "quote", "prose", "chat")
SIZES = ("tiny", "full")
made_of = pytest.mark.skipif(platform.python_version() != "3.11.7", reason="made of CPython 3.11.7's library")


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with paceline.load(drafters="none", threads=1) as llm:
        yield llm


def of(name: str, size: str) -> list[Item]:
    return [item for item in load(name) if item.size == size]


def text(item: Item) -> str:
    return item.prompt or "".join(content or "" for _, content in item.messages)


def test_every_suite_is_listed_with_what_it_is_its_licence_and_its_sizes() -> None:
    found = suites()
    assert tuple(suite.name for suite in found) == NAMES
    assert {f"{suite.name}.jsonl" for suite in found} == {path.name for path in FOLDER.glob("*.jsonl")}
    assert all(suite.description for suite in found)
    assert {suite.licence for suite in found} == {"Apache-2.0", "PSF-2.0 (CPython 3.11.7)"}
    assert [(suite.tiny, suite.full) for suite in found] == [
        (12, 12) if suite.name == "agent" else (8, 8) for suite in found
    ]


def test_the_readme_tells_each_suites_licence() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\w.-]+) \|$", (FOLDER / "README.md").read_text("utf-8"), re.M)
    assert rows == [(suite.name, suite.licence.split()[0]) for suite in suites()]


def test_all_suites_can_be_asked_together_and_no_two_items_ask_the_same() -> None:
    items = load(",".join(NAMES))
    assert len({item.id for item in items}) == len(items) == 120
    assert len({text(item) for item in items}) == len(items)


@pytest.mark.parametrize("name", NAMES)
def test_a_suites_items_carry_its_name_their_size_and_its_length(name: str) -> None:
    for item in load(name):
        assert item.category == name
        assert item.id.startswith(f"{name}-{item.size}-")
        assert item.max_tokens == {"tiny": 96, "full": 256}[item.size]


def test_tiny_prompts_fit_the_embedded_models_context_and_end_within_a_line(llm: LLM) -> None:
    for item in (item for name in NAMES for item in of(name, "tiny")):
        assert len(llm.tokens(text(item))) <= 700, item.id
        assert text(item) == text(item).rstrip(), item.id


def test_full_items_have_at_most_7500_characters() -> None:
    assert max(len(text(item)) for name in NAMES for item in of(name, "full")) <= 7_500


def test_tiny_items_are_raw_text_but_for_the_questions_of_chat() -> None:
    assert {name for name in NAMES for item in of(name, "tiny") if item.messages} == {"chat"}


@pytest.mark.parametrize("size", SIZES)
def test_an_agents_session_repeats_what_came_before(size: str) -> None:
    items = of("agent", size)
    assert Counter(item.session for item in items) == {f"{size}-{i}": 4 for i in range(3)}
    for before, item in pairwise(items):
        if before.session == item.session:
            # All of it in messages; as text all up to the opening of the call.
            assert item.messages[: len(before.messages)] == before.messages
            assert item.prompt.startswith(before.prompt)


@pytest.mark.parametrize("size", SIZES)
def test_an_agent_calls_the_tools_it_was_given_and_again_after_a_timeout(size: str) -> None:
    for item in of("agent", size)[3::4]:  # the last of each session
        tools = re.findall(r'"function": \{"name": "(\w+)"', text(item))
        calls = re.findall(r"<tool_call>\n(.*)\n</tool_call>", text(item))
        assert len(calls) == 3
        assert calls[1] == calls[2] != calls[0]
        assert {re.findall(r'"name": "(\w+)"', call)[0] for call in calls} <= set(tools)
        assert text(item).count('Tool: {"error": "timeout"}') == 1


def test_one_agent_in_three_speaks_sql() -> None:
    last = [text(item) for size in SIZES for item in of("agent", size)[3::4]]
    assert ['"arguments": {"query": "SELECT * FROM ' in said for said in last] == [False, True, False] * 2


@made_of
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
        yield from make._renamings(source, 300, 6_000)


def names(code: str) -> list[tuple[set[str], tuple[str, ...], list[object]]]:
    """Of each function in a function, compiled: its variables, the globals and attributes, the constants."""
    out, left = [], [compile(textwrap.dedent(code), "", "exec")]
    while left:
        one = left.pop()
        left += [const for const in one.co_consts if isinstance(const, CodeType)]
        consts: list[object] = [const for const in one.co_consts if not isinstance(const, CodeType)]
        out.append(({*one.co_varnames, *one.co_cellvars, *one.co_freevars}, one.co_names, consts))
    return out


@made_of
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


@made_of
def test_a_tiny_edit_shows_the_first_lines_of_the_renamed_code() -> None:
    heads = {
        (before, old, new, "\n".join(after.splitlines()[:2])) for _, before, after, old, new in renamings()
    }
    for item in of("edit", "tiny"):
        form = r"# Before\n(.*)\n\n# After: `(\w+)` is called `(\w+)`\n(.*)"
        parts = re.fullmatch(form, item.prompt, re.S)
        assert parts, item.id
        assert parts.groups() in heads, item.id


@made_of
def test_a_full_edit_holds_a_whole_function_and_the_parameter_to_rename() -> None:
    known = {(old, name, new, before) for name, before, _, old, new in renamings()}
    for item in of("edit", "full"):
        form = r".* parameter `(\w+)` of `(\w+)` to `(\w+)`.*?```python\n(.*)\n```"
        parts = re.fullmatch(form, text(item), re.S)
        assert parts, item.id
        assert parts.groups() in known, item.id


@made_of
def test_tiny_texts_are_documentation_of_modules_that_were_held_out() -> None:
    sources = {name: re.sub(r"\s+", " ", source) for name, source in held_out().items()}
    for item in [*of("quote", "tiny"), *of("prose", "tiny")]:
        # Docstrings are joined and lose their margin, so paragraph by paragraph.
        paragraphs = re.split(r"\n\s*\n", item.prompt.partition("\n\nThe same again")[0])
        words = [re.sub(r"\s+", " ", one).strip() for one in paragraphs]
        assert any(all(one in source or one == name for one in words) for name, source in sources.items())


@made_of
def test_full_texts_are_the_language_reference() -> None:
    known = topics()
    for item in [*of("quote", "full"), *of("prose", "full")]:
        said = text(item).partition("one a line.\n\n")[2] if item.category == "quote" else text(item)
        assert any(said in topic for topic in known), item.id


def test_a_tiny_quotation_has_begun_as_the_text_begins() -> None:
    for item in of("quote", "tiny"):
        quoted, _, opening = item.prompt.partition("\n\nThe same again, word for word:\n\n")
        assert quoted.startswith(opening)
        assert len(opening.split()) == 4


@made_of
@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_what_make_writes(name: str) -> None:
    assert (FOLDER / f"{name}.jsonl").read_bytes() == make.lines(name).encode()
