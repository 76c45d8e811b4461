"""Classification of text as Python and as a loop, and agreement of the draft with the target."""

from __future__ import annotations

import pytest

from paceline.models import zoo
from tools.embedded.corpus import held_out
from tools.embedded.evaluate import compare, is_python, load


@pytest.mark.parametrize(
    ("first", "body", "expected"),
    [
        (
            "    def f(self):",
            "\n        return 1\n\n    def g(self):\n        return 2\n\ndef top():\n    re",
            True,
        ),
        ("def f(x):", '\n    """Not\n    ended', True),
        ("def f(x):", "\n    return [\n        x,\n        y", True),
        ("def f(x):", "\n    return )\n    x", False),
        ("def f(x):", "\nreturn x\n\nx", False),
        ("def f(x):", "\n    return 1\n        return 2\nx", False),
    ],
)
def test_a_function_that_breaks_off_is_python_and_a_mistake_is_not(
    first: str, body: str, expected: bool
) -> None:
    assert is_python(first, body) == expected


def test_draft_agrees_with_the_target_on_more_than_a_third_of_unseen_tokens() -> None:
    pytest.importorskip("llama_cpp")
    target, draft = (load(path) for path in (zoo.target_path(), zoo.draft_path()))
    first, second, agreement = compare(target, draft, [held_out()["heapq"][:1500]])
    assert first.nats < second.nats < 6
    assert agreement > 1 / 3
