"""Each cause fires on its evidence, and not beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paceline.doctor.causes import HIGH, MEDIUM, Evidence, diagnose
from paceline.fits import ABSENT, NO_GRAPH, STRIPPED, USABLE

# A pair that gains: 8 rows cost little more than one, and 0.8 of what is drafted is kept.
WELL = Evidence(
    threads=4,
    physical=4,
    logical=8,
    memory="attention",
    target_size=9 * 10**8,
    draft_size=10**8,
    available=10**10,
    usable=2 * 10**10,
    curve={1: 0.10, 2: 0.11, 4: 0.12, 8: 0.13},
    draft_token=0.005,
    proposals=20,
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
        "verification too expensive",
        HIGH,
        "8 rows costs 6.00 of one over a single row, which takes an acceptance of 0.92 to pay; 0.80",
    ),
    "dear draft that decides": (
        {"draft_token": 0.06, "times": {"draft": 2.0, "forward": 2.0}},
        "draft model too slow",
        HIGH,
        "50% of a step; a token of the draft 60% of a row",
    ),
    "dear draft that still pays": (
        {"draft_token": 0.02, "times": {"draft": 2.0, "forward": 2.0}},
        "draft model too slow",
        MEDIUM,
        "50% of a step",
    ),
    "experts": (
        {"experts": 128, "experts_used": 8, "curve": {1: 0.1, 8: 0.35}},
        "expert growth",
        MEDIUM,
        "8 of 128 experts per token: 8 rows read about 6.5 times as many, and a pass over them costs 3.50",
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
    "larger than memory": (
        {"target_size": 29 * 10**9, "draft_size": 10**9},
        "swapping",
        HIGH,
        "have 30.0 GB, this machine 20.0 GB",
    ),
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
    "a draft of another size class": (
        {"draft_size": 6 * 10**8},
        "draft too large",
        HIGH,
        "67% of the target's bytes",
    ),
    "shuffled weights": (
        {"surprise": 10.0, "log_vocab": 10.8, "accepted": 0, "rejected": 140},
        "draft damaged",
        HIGH,
        "a probability of 4.5e-05, where chance has 2.0e-05",
    ),
    "wrong guesses that its policy withholds": (
        {"drafted": 3, "proposals": 1, "tried": 0.05},
        "draft rarely right",
        HIGH,
        "0.05 of its guesses",
    ),
    "a translated draft": (
        {"translated": True, "differences": ("tokenizer: another type",), "accepted": 10, "rejected": 60},
        "another vocabulary",
        HIGH,
        "(tokenizer: another type), and 0.14 of its guesses",
    ),
    "two bits": (
        {"quantisation": "Q2_K", "accepted": 50, "rejected": 50},
        "draft quantised too low",
        MEDIUM,
        "are Q2_K",
    ),
    "another template": (
        {"differences": ("chat template: it may not know <|im_start|>",), "accepted": 50, "rejected": 50},
        "template or tokens differ",
        MEDIUM,
        "may not know <|im_start|>",
    ),
    "a pass of a millisecond": (
        {"curve": {1: 0.001, 8: 0.0012}, "draft_token": 0.0, "times": {"forward": 2.0, "other": 1.0}},
        "target too quick",
        HIGH,
        "a pass takes 1.0 ms, and deciding and verifying 33% of a step",
    ),
    "no compiler": (
        {"kernels": "no C++ compiler", "curve": {1: 0.1, 2: 0.18, 8: 0.2}},
        "kernels not used",
        MEDIUM,
        "costs 1.80 of one over a single row",
    ),
    "layers of its own": ({"mtp": USABLE}, "MTP layers not used", MEDIUM, "another draft is used"),
    "short answers": (
        {"requests": 40, "answer_tokens": 12.0},
        "short answers",
        MEDIUM,
        "answers of 12 tokens or fewer",
    ),
    "hot requests": (
        {"requests": 40, "temperature": 1.2},
        "high temperature",
        MEDIUM,
        "a temperature of 1.2",
    ),
    "dates on top": (
        {"requests": 40, "early_changes": 0.9},
        "prompts change early",
        HIGH,
        "90% of 40 recorded requests",
    ),
    "a cache of 8 bits": (
        {"cache_type": "q8_0", "accepted": 5, "rejected": 95},
        "quantised cache",
        HIGH,
        "0.05 of its guesses are what the target says, and keys and values have 8 bits",
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
    "a translation that does no harm": {"translated": True, "differences": ("tokenizer: another type",)},
    "two bits that do no harm": {"quantisation": "Q2_K"},
    "a draft of half the size": {"draft_size": 4 * 10**8},
    "no kernels for wide passes that are cheap": {"kernels": "a GPU"},
    "a quick pass with little around it": {"curve": {1: 0.001, 8: 0.0012}, "draft_token": 0.0},
    "layers of its own that draft": {"mtp": USABLE, "uses_mtp": True},
    "long cool requests": {"requests": 9, "answer_tokens": 400.0, "temperature": 0.6, "early_changes": 0.2},
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
