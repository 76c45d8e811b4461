"""Each cause fires on its evidence, and not beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.doctor.diagnosis import HIGH, MEDIUM, Evidence, diagnose
from paceline.fits import ABSENT, NO_GRAPH, STRIPPED

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
    times={"draft": 0.1, "forward": 2.0, "verify": 0.01, "commit": 0.01, "other": 0.01},
    others=0.1,
)

CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # what differs: the cause, its severity, and a part of its evidence
    "dear passes": (
        {"curve": {1: 0.1, 8: 0.6}},
        "verification too dear",
        HIGH,
        "8 rows costs 6.00 of one over a single row, which takes an acceptance of 0.92 to pay; 0.80",
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
    "hybrid": ({"memory": "hybrid"}, "checkpoint rollback", MEDIUM, "is so for 75% of drafts"),
    "nothing on it": ({"gpus": 2, "offload": True}, "GPU not used", HIGH, "GPUs here: 2"),
    "more threads than cores": ({"threads": 6}, "too many threads", MEDIUM, "6 threads, 4 physical cores"),
    "more threads than quota": ({"quota": 1.5}, "too many threads", HIGH, "quota is 1.5 processors' time"),
    "times far apart": (
        {"doubt": "times of one and the same pass lie 37.0x apart", "curve": None, "draft_token": None},
        "unreliable timings",
        HIGH,
        "lie 37.0x apart: the machine was too busy to tell",
    ),
    "larger than memory": ({"size": 3 * 10**10}, "swapping", HIGH, "have 30.0 GB, this machine 20.0 GB"),
    "larger than what is free": ({"available": 10**8}, "swapping", MEDIUM, "0.1 GB of memory were free"),
    "busy": ({"others": 4.5}, "cores taken by others", HIGH, "kept 4.5 of 8 processors busy"),
    "as busy as it is": (
        {"logical": 4, "others": 1.0},
        "cores taken by others",
        MEDIUM,
        "kept 1.0 of 4 processors busy, next to 4 threads",
    ),
    "a file without its head": (
        {"mtp": STRIPPED},
        "MTP layers left out",
        MEDIUM,
        "that its file lacks",
    ),
    "a head without a graph": ({"mtp": NO_GRAPH}, "MTP layers not computed", MEDIUM, "cannot compute"),
    "a cache of 8 bits": (
        {"cache_type": "q8_0", "accepted": 5, "rejected": 95, "curve": {1: 0.1, 8: 0.1}},
        "quantised cache",
        HIGH,
        "0.05 of drafted tokens were accepted, and keys and values have 8 bits",
    ),
}

BESIDE: dict[str, dict[str, Any]] = {
    "passes just cheap enough": {"curve": {1: 0.1, 8: 0.41}},
    "too few tokens to tell": {"curve": {1: 0.1, 8: 0.9}, "drafted": 19},
    "a curve without these rows": {"curve": {1: 0.1, 4: 0.9}},
    "a draft that takes no time": {"draft_token": 0.06},
    "experts that cost nothing": {"experts": 128, "experts_used": 8},
    "no GPU": {"offload": False},
    "both on the GPU": {"gpus": 1, "offload": True, "target_layers": 99},
    "a quota that suffices": {"quota": 4.0},
    "one thread on half a processor": {"quota": 0.5, "threads": 1},
    "others on cores we leave": {"others": 4.0},
    "a model of a kind without a head": {"mtp": ABSENT},
    "a cache of 8 bits that does no harm": {"cache_type": "q8_0"},
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
