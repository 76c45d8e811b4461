"""Drafters from settings, by the table."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from paceline.backends.toy import ToyTarget
from paceline.config import Drafting
from paceline.drafter_factory import check_needs, make_drafter
from paceline.drafter_table import DATASTORE, DRAFT, DRAFTERS, HEADS, NGRAMS, DrafterEntry
from paceline.drafters.lookup import LookupDrafter
from paceline.speculative.errors import UsageError


class EchoDrafter(LookupDrafter):
    name = "echo"


def test_a_drafter_is_one_file_and_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it can be named, and `auto` has it."""
    file = SimpleNamespace(make=lambda parts: EchoDrafter(1, parts.drafting.ngram_max))
    monkeypatch.setitem(sys.modules, "paceline.drafters.echo", file)
    with pytest.raises(UsageError, match="unknown drafter 'echo'"):
        Drafting(("echo",))
    monkeypatch.setitem(DRAFTERS, "echo", DrafterEntry("echo", "what was said", in_auto=True))
    for drafters, names in ((("echo",), "echo"), (("auto",), "suffix,lookup,echo")):
        made, _ = make_drafter(Drafting(drafters), ToyTarget(6), None)
        assert made.name == names


def test_what_a_drafter_cannot_do_without_must_be_there() -> None:
    check_needs(Drafting(("auto",)), ())
    check_needs(Drafting(("ngram", "model")), (DRAFT,))
    check_needs(Drafting(("cascade",)), (HEADS["exits"],))  # as good as a draft model
    with pytest.raises(UsageError, match="'cascade' needs a draft model: give one"):
        check_needs(Drafting(("suffix", "cascade")), (NGRAMS, DATASTORE))
    with pytest.raises(UsageError, match="'datastore' needs a corpus that has a datastore"):
        check_needs(Drafting(("datastore",)), (DRAFT, NGRAMS))
