"""What is counted as Python, and what as a loop; and how far the draft goes with the target."""

from __future__ import annotations

import pytest

from paceline.models import zoo
from tools.embedded.corpus import held_out
from tools.embedded.evaluate import compare, is_python, load, loops


@pytest.mark.parametrize(
    ("first", "body"),
    [
        ("def f(x):", "\n    return x\n\ndef g(y):\n    return y\n\ndef h("),
        (
            "    def f(self):",
            "\n        return 1\n\n    def g(self):\n        return 2\n\ndef top():\n    re",
        ),
        (
            "        def inner():",
            "\n            pass\n\n        return inner\n\n    def next(self):\n        x",
        ),
        ("def f(x):", '\n    """Not\n    ended'),
        ("def f(x):", "\n    return [\n        x,\n        y"),
        ("def f(x):", "\n    if x:\n        re"),
    ],
)
def test_functions_that_go_on_into_the_next_are_python(first: str, body: str) -> None:
    assert is_python(first, body)


@pytest.mark.parametrize(
    ("first", "body"),
    [
        ("def f(x):", "\n    return )\n    x"),
        ("def f(x):", "\n    for *e)))[1,1, *e]} =$.\n    x"),
        ("def f(x):", "\nreturn x\n\nx"),
        ("    def f(self):", "\n        x = 'abc\n        y\n\n    z"),
        ("def f(x):", "\n    return 1\n        return 2\nx"),
    ],
)
def test_what_python_refuses_is_not(first: str, body: str) -> None:
    assert not is_python(first, body)


def test_a_loop_repeats_its_end() -> None:
    assert loops([1, 2, 3, *[7, 8] * 20])
    assert not loops(list(range(80)))
    assert not loops([5] * 20), "too few to tell"


def test_draft_agrees_with_the_target_on_more_than_a_third_of_unseen_tokens() -> None:
    pytest.importorskip("llama_cpp")
    target, draft = (load(path) for path in (zoo.target_path(), zoo.draft_path()))
    first, second, agreement = compare(target, draft, [held_out()["heapq"][:1500]])
    assert first.nats < second.nats < 6
    assert agreement > 1 / 3
