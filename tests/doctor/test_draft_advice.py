"""Advice on drafts: measurements decide first, then files and costs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from advice_facts import PAIR, facts, gained, known
from paceline.doctor.drafts import (
    NEVER_PAYS,
    AdviceRequest,
    DraftCandidate,
    Measured,
    MeasuredFacts,
    advise,
    measure,
    memory_needed,
    own_drafts,
)
from paceline.fits import USABLE
from paceline.models.compatibility.known_pairs import KnownPair
from paceline.settings import EngineOptions, LoadOptions

TARGET, SMALL = facts(), facts("draft", billions=0.8)


def ranked(
    *candidates: DraftCandidate, how: MeasuredFacts | None = None, pairs: tuple[KnownPair, ...] = ()
) -> dict[str, Any]:
    return advise(TARGET, candidates, AdviceRequest("code"), how or known(), pairs)


def fitting(*names: str) -> list[DraftCandidate]:
    return [DraftCandidate(facts(name, billions=0.8), name, "compatible") for name in names]


def names(advice: dict[str, Any]) -> list[str]:
    return [row["reference"] for row in advice["drafts"]]


def row(advice: dict[str, Any], reference: str) -> Any:
    return next(row for row in advice["drafts"] if row["reference"] == reference)


def test_measured_drafts_stand_by_their_speed_before_unmeasured_ones() -> None:
    past = {"fast": gained(1.8), "slow": gained(0.8), None: gained(1.2)}
    mappable = DraftCandidate(facts("translated", billions=0.8), "translated", "mappable")
    past["translated"] = gained(0.9)
    advice = ranked(mappable, *fitting("slow", "unknown", "fast"), how=known(past=past))
    assert names(advice) == ["fast", "suffix, lookup", "translated", "slow", "unknown"]
    assert row(advice, "fast")["measured"] == asdict(past["fast"])
    assert row(advice, "unknown")["measured"] is None


def test_each_draft_is_measured_with_its_own_drafter_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[tuple[str, ...], str, str]] = []

    def record(_: AdviceRequest, options: LoadOptions) -> Measured:
        drafting = options.drafting
        tried.append((drafting.drafters, drafting.policy, drafting.cross_vocab))
        return gained(1.0)

    monkeypatch.setattr("paceline.doctor.drafts._run", record)
    drafts = [DraftCandidate(SMALL, "other words", "mappable"), *own_drafts(facts(mtp=USABLE, n_layers=10))]
    measure(Path("t"), drafts, AdviceRequest(), EngineOptions(), lambda: None, print)
    assert tried[1:] == [(("model",), "goodput", "auto"), (("mtp",), "goodput", "off")]


def test_of_what_was_not_measured_kin_comes_first_then_what_needs_least_then_what_is_smaller() -> None:
    stranger = DraftCandidate(facts("stranger", family="other", billions=0.8), "stranger", "same")
    dear, cheap = fitting("dear", "cheap")
    how = known(drafts={"dear": 0.5, "cheap": 0.01, "stranger": 0.001})
    assert names(ranked(stranger, dear, cheap, how=how))[:2] == ["cheap", "dear"]
    light = DraftCandidate(facts("light", billions=0.1), "light", "same")
    assert names(ranked(cheap, light, how=known(None)))[:2] == ["light", "cheap"]


def test_costs_tell_what_is_needed_and_nothing_is_guessed_without_them() -> None:
    advice = ranked(*fitting("draft"), how=known(0.1, {"draft": 0.25}))
    its, copied = row(advice, "draft"), row(advice, "suffix, lookup")
    assert its["draft_cost"] == pytest.approx(0.25)
    assert copied["break_even"] is not None
    assert its["break_even"] is not None
    assert 0.05 < copied["break_even"] < its["break_even"] < 1
    assert its["break_even"] == pytest.approx(0.35, abs=0.01)  # drafts of one token: (1.1 + 0.25) / 1 - 1
    assert advice["two_rows"] == pytest.approx(1.1)
    assert row(ranked(*fitting("draft"), how=known(1.0)), "draft")["break_even"] == NEVER_PAYS
    unmeasured = ranked(*fitting("draft"), how=known(None))
    assert (
        unmeasured["two_rows"],
        row(unmeasured, "draft")["break_even"],
        row(unmeasured, "draft")["draft_cost"],
    ) == (None,) * 3


def test_another_vocabulary_and_no_memory_come_last() -> None:
    one = DraftCandidate(SMALL, "other words", "mappable")
    large = DraftCandidate(facts("large", billions=7.9), "large", "same")
    fair = DraftCandidate(facts("fair", billions=0.8), "fair", "same")
    advice = ranked(large, one, fair, how=known(available=TARGET.size + SMALL.size + 4096 * 2000))
    assert names(advice)[-2:] == ["other words", "large"]
    assert [row["fits"] for row in advice["drafts"]] == [True, True, True, False]


def test_downloads_are_named_where_no_draft_of_its_vocabulary_is_here() -> None:
    (download,) = ranked(pairs=(PAIR,))["downloads"]
    assert (download["reference"], download["verdict"], download["drafter"]) == (
        PAIR.draft,
        "download",
        "download",
    )
    assert download["size"] == pytest.approx(0.53e9, rel=0.01)
    assert ranked(DraftCandidate(SMALL, "other words", "mappable"), pairs=(PAIR,))["downloads"]
    assert not ranked(*fitting("draft"), pairs=(PAIR,))["downloads"]


def test_weights_and_the_same_context_of_both() -> None:
    assert memory_needed((facts(size=1000, kv_bytes=30), facts(size=100, kv_bytes=2)), 10) == (1420, True)


def test_a_size_that_is_not_known_makes_a_lower_bound_but_nothing_is_a_size() -> None:
    assert memory_needed((facts(size=1, kv_bytes=64), facts(size=1, kv_bytes=0)), 10) == (642, False)
    stateful = facts(size=1, kv_bytes=0, memory="recurrent")
    assert memory_needed((facts(size=1, kv_bytes=64), stateful), 10) == (642, True)


def test_layers_of_its_own_come_first_by_what_is_expected_of_them() -> None:
    target = facts(mtp=USABLE, mtp_cost=0.05, n_layers=10)
    (own,) = own_drafts(target)
    assert (own.reference, own.facts.kv_bytes) == ("view:mtp", 100)
    how = known(0.05, past={None: gained(1.1)})
    advice = advise(target, [*fitting("kin"), own], AdviceRequest(), how)
    assert names(advice) == ["suffix, lookup", "view:mtp", "kin"]
    low, high = row(advice, "view:mtp")["expected"]
    assert 1.3 < low < high < 4.0
    assert row(advice, "view:mtp")["memory"] == target.size + 1100 * 4096
    unmeasured = advise(target, [own], AdviceRequest(), known(None))
    assert row(unmeasured, "view:mtp")["expected"] is None
    assert row(unmeasured, "view:mtp")["draft_cost"] == 0.05
    assert own_drafts(facts()) == []
