"""Each cause fires on its evidence, and not beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.doctor.diagnosis import HIGH, MEDIUM, SEVERITIES, Cause, Evidence, diagnose

# A pair that gains: 8 rows cost little more than one, and 0.8 of what is drafted is kept.
WELL = Evidence(
    threads=4,
    physical=4,
    logical=8,
    memory="attention",
    size=10**9,
    available=10**10,
    usable=2 * 10**10,
    curve={1: 0.10, 2: 0.11, 4: 0.12, 8: 0.13},
    draft_token=0.005,
    steps=20,
    drafted=140,
    accepted=60,
    rejected=15,
    times={"draft": 0.1, "forward": 2.0, "verify": 0.01, "keep": 0.01, "other": 0.01},
    seconds=2.2,
    others=0.1,
    throttled=0.0,
)

CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # what differs: the cause, its severity, and a part of its evidence
    "dear passes": (
        {"curve": {1: 0.1, 8: 0.6}},
        "verification too dear",
        HIGH,
        "8 rows costs 6.00 of one over a single row, which takes an acceptance of 0.92 to pay; 0.80",
    ),
    "passes dearer than rows": (
        {"curve": {1: 0.1, 8: 0.9}},
        "verification too dear",
        HIGH,
        "more than certainty",
    ),
    "dear draft that decides": (
        {"draft_token": 0.06, "times": {"draft": 2.0, "forward": 2.0}},
        "draft too dear",
        HIGH,
        "50% of a step; a token of the draft 60% of a row",
    ),
    "dear draft that still pays": (
        {"draft_token": 0.02, "times": {"draft": 2.0, "forward": 2.0}},
        "draft too dear",
        MEDIUM,
        "50% of a step",
    ),
    "experts": (
        {"experts": 128, "experts_used": 8, "curve": {1: 0.1, 8: 0.35}},
        "expert growth",
        MEDIUM,
        "8 of 128 experts a token: 8 rows read about 6.5 times as many, and a pass over them costs 3.50",
    ),
    "recurrent": ({"memory": "recurrent"}, "full-checkpoint rollback", HIGH, "is recurrent"),
    "hybrid": ({"memory": "hybrid"}, "full-checkpoint rollback", HIGH, "is hybrid"),
    "a build without GPU": ({"gpus": 1, "offload": False}, "GPU not used", HIGH, "cannot use any"),
    "nothing on it": ({"gpus": 2, "offload": True}, "GPU not used", HIGH, "GPUs here: 2"),
    "more threads than cores": ({"threads": 6}, "too many threads", MEDIUM, "6 threads, 4 physical cores"),
    "more threads than quota": ({"quota": 1.5}, "too many threads", HIGH, "quota is 1.5 processors' time"),
    "times far apart": (
        {"doubt": "times of one and the same pass lie 37.0x apart", "curve": None, "draft_token": None},
        "times that tell nothing",
        HIGH,
        "lie 37.0x apart: the machine was too busy to tell",
    ),
    "throttled": ({"throttled": 0.5}, "throttled", HIGH, "for 0.50 s in a run of 2.20 s"),
    "swapped in": ({"swapped": 5 << 20}, "swapping", HIGH, "5 MB came back from swap (of all programs)"),
    "larger than memory": ({"size": 3 * 10**10}, "swapping", HIGH, "have 30.0 GB, this machine 20.0 GB"),
    "larger than what is free": ({"available": 10**8}, "swapping", MEDIUM, "0.1 GB of memory were free"),
    "busy": ({"others": 4.5}, "cores taken by others", HIGH, "kept 4.5 of 8 processors busy"),
    "as busy as it is": (
        {"logical": 4, "others": 1.0},
        "cores taken by others",
        MEDIUM,
        "kept 1.0 of 4 processors busy, beside 4 threads",
    ),
}

BESIDE: dict[str, dict[str, Any]] = {
    "passes just cheap enough": {"curve": {1: 0.1, 8: 0.41}},
    "too few tokens to tell": {"curve": {1: 0.1, 8: 0.9}, "drafted": 19},
    "no curve": {"curve": None},
    "a curve without these rows": {"curve": {1: 0.1, 4: 0.9}},
    "a draft that takes no time": {"draft_token": 0.06},
    "experts that cost nothing": {"experts": 128, "experts_used": 8},
    "all experts used": {"experts": 8, "experts_used": 8, "curve": {1: 0.1, 8: 0.35}},
    "no GPU": {"offload": False},
    "both on the GPU": {"gpus": 1, "offload": True, "target_layers": 99},
    "an engine nobody asked": {"gpus": 1},
    "a quota that suffices": {"quota": 4.0},
    "one thread on half a processor": {"quota": 0.5, "threads": 1},
    "hardly throttled": {"throttled": 0.04},
    "pages that any start reads": {"swapped": 4096},
    "memory nobody could read": {"size": 10**12, "available": 0, "usable": 0},
    "others on cores we leave": {"others": 4.0},
    "others nobody could measure": {"others": None, "throttled": None},
}


def test_a_pair_that_gains_has_no_causes() -> None:
    assert diagnose(WELL) == []


def test_of_what_is_not_known_nothing_is_concluded() -> None:
    assert diagnose(Evidence()) == []


@pytest.mark.parametrize("case", CASES)
def test_a_cause_is_named_with_its_evidence(case: str) -> None:
    change, name, severity, words = CASES[case]
    (cause,) = diagnose(replace(WELL, **change))
    assert (cause.name, cause.severity) == (name, severity)
    assert words in cause.evidence
    assert cause.remedy


@pytest.mark.parametrize("case", BESIDE)
def test_what_lies_beside_is_no_cause(case: str) -> None:
    assert diagnose(replace(WELL, **BESIDE[case])) == []


def test_another_length_is_advised_where_one_pays() -> None:
    (cause,) = diagnose(replace(WELL, curve={1: 0.1, 2: 0.11, 4: 0.5, 8: 0.6}))
    assert "--n-draft 1" in cause.remedy
    (cause,) = diagnose(replace(WELL, curve={1: 0.1, 2: 0.3, 4: 0.5, 8: 0.9}))
    assert "--draft none" in cause.remedy


COUNTS = st.integers(0, 10**13)
SECONDS = st.floats(0, 1e6)


@given(
    st.builds(
        Evidence,
        threads=st.integers(1, 999),
        physical=st.integers(0, 999),
        logical=st.integers(0, 999),
        quota=st.one_of(st.none(), st.floats(0.001, 1e3)),
        gpus=st.integers(0, 8),
        offload=st.sampled_from([None, True, False]),
        experts=st.integers(0, 512),
        experts_used=st.integers(0, 512),
        size=COUNTS,
        available=COUNTS,
        usable=COUNTS,
        curve=st.one_of(st.none(), st.dictionaries(st.sampled_from([1, 2, 4, 8, 64]), st.floats(1e-9, 1e3))),
        draft_token=st.one_of(st.none(), st.floats(0, 1e3)),
        doubt=st.sampled_from(["", "times of one and the same pass lie 37.0x apart"]),
        steps=st.integers(0, 99),
        drafted=st.integers(0, 9999),
        accepted=st.integers(0, 9999),
        rejected=st.integers(0, 99),
        times=st.fixed_dictionaries({"draft": SECONDS, "forward": SECONDS}),
        seconds=SECONDS,
        others=st.one_of(st.none(), SECONDS),
        throttled=st.one_of(st.none(), SECONDS),
        swapped=COUNTS,
    )
)
def test_whatever_is_known_can_be_judged(evidence: Evidence) -> None:
    found = diagnose(evidence)
    order = [SEVERITIES.index(cause.severity) for cause in found]
    assert order == sorted(order)
    assert all(isinstance(cause, Cause) and cause.evidence and cause.remedy for cause in found)
    assert len({cause.name for cause in found}) == len(found)
