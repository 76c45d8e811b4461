"""Rows of drafters that other packages install."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.drafter_table import DrafterEntry, add_installed
from paceline.settings import Drafting
from paceline.speculative.errors import UsageError

ROW = DrafterEntry("twins", "repeats of a token", module="twins")


@pytest.mark.parametrize(
    ("entry", "is_added"),
    [(ROW, True), (DrafterEntry("suffix", "", module="twins"), False), (DrafterEntry("twins", ""), False),
     ("twins", False), (None, False)],
)  # fmt: skip
def test_only_a_new_row_with_a_module_is_added(
    entry: Any, is_added: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load() -> Any:
        if entry is None:
            raise ImportError("no such module")
        return entry

    point = SimpleNamespace(name="twins", value="twins:ENTRY", load=load)
    monkeypatch.setattr("paceline.drafter_table.entry_points", lambda group: [point])
    table = {"suffix": DrafterEntry("suffix", "")}
    add_installed(table)
    assert (table.get("twins") == ROW) == is_added
    assert ("is left out" in capsys.readouterr().err) != is_added


@pytest.mark.parametrize(("kind", "drafter"), [("draft", "model"), ("confidence", "model")])
def test_a_kind_of_training_that_is_no_drafter_names_the_drafter(kind: str, drafter: str) -> None:
    with pytest.raises(UsageError, match=f"'{drafter}' with -md"):
        Drafting((kind,))
