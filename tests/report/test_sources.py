"""Sources are marked in colours or in brackets, and the text itself is never changed."""

from __future__ import annotations

import io
from typing import Literal

import pytest
from rich.console import Console

from paceline.drafter_table import DRAFTERS
from paceline.report.table import STYLES, SourceMarks

PARTS = (("The", "target"), (" cat\t", "lookup"), ("", "model"), ("sat\r\x07", "lookup"), ("!", "model"))


def marks(
    color_system: Literal["standard", "truecolor"] | None = "standard", *, no_color: bool = False
) -> SourceMarks:
    console = Console(file=io.StringIO(), force_terminal=True, color_system=color_system, no_color=no_color)
    return SourceMarks(console)


@pytest.mark.parametrize("color_system", ["standard", "truecolor"])
def test_each_run_of_one_source_has_one_colour(color_system: Literal["standard", "truecolor"]) -> None:
    assert marks(color_system).marked(PARTS) == "The\x1b[32m cat\tsat\r\x07\x1b[0m\x1b[36m!\x1b[0m"


def test_without_colours_drafted_text_stands_in_brackets() -> None:
    expected = "The[lookup: cat\tsat\r\x07][model:!]"
    assert marks(None).marked(PARTS) == expected
    assert marks(no_color=True).marked(PARTS) == expected


def test_every_drafter_that_drafts_has_a_style() -> None:
    assert set(STYLES) == (set(DRAFTERS) | {"later"}) - {"none", "auto", "cascade"}
