"""Parsing of methods."""

from __future__ import annotations

import pytest

from paceline.bench.method import parse, parse_all
from paceline.speculative.errors import UsageError

BASE = {"n_draft": 5, "p_min": 0.25}


def test_a_name_is_its_drafters_and_its_settings_come_on_top_of_the_benchs() -> None:
    method = parse("lookup+model:n_draft=12:verify=token", BASE)
    assert method.name == "lookup+model:n_draft=12:verify=token"
    drafting = method.drafting
    assert drafting.drafters == ("lookup", "model")
    assert (drafting.n_draft, drafting.p_min, drafting.verify) == (12, 0.25, "token")
    assert (method.needs_draft, method.plain) == (True, False)


def test_plain_decoding_comes_first_whether_it_is_named_or_not() -> None:
    assert [m.name for m in parse_all("lookup, plain", {})] == ["plain", "lookup"]
    assert [m.name for m in parse_all("lookup,none", {})] == ["plain", "lookup"]
    assert [m.plain for m in parse_all("lookup", {})] == [True, False]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("magic", "unknown drafter 'magic'"),
        ("lookup:n_draft", "'n_draft' is no setting; write NAME=NUMBER with one of policy, n_draft, width"),
        ("lookup:drafters=model", "'drafters=model' is no setting"),
        ("lookup:n_draft=many", "'n_draft=many' is no setting"),
        ("lookup:n_draft=0", "n_draft 0: must be at least 1"),
        ("lookup+none", "'none' means plain decoding"),
        ("lookup,lookup", "'lookup' is named twice"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_all(text, {})
