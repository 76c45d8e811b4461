"""The certificate's summary: short, the defects first, and nothing in it that a terminal would obey."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from paceline.cli.output import strict_json
from paceline.report.certificate import lines

Record = dict[str, Any]
MODEL = {
    "name": "Qwen2.5 Coder 7B Instruct",
    "description": "qwen2 7B Q4_K - Medium",
    "size": 4_700_000_000,
    "fingerprint": "0123456789abcdef" * 4,
}


def difference(gap: float = 0.0123, text: tuple[str, str] = ("\n", "    ")) -> Record:
    return {
        "index": 60,
        "gap": gap,
        "noise": 0.0456,
        "spread": 3.0,
        "tokens": (3, 4),
        "drafted_gap": 0.1,
        "text": text,
    }


def a_run(verdict: str = "identical", told: Record | None = None) -> Record:
    if verdict != "identical" and told is None:
        told = difference()
    return {
        "verdict": verdict,
        "n_tokens": 2048,
        "stats": {"drafted": 1800, "accepted": 1500},
        "difference": told,
        "logprobs": {"tokens": 60, "worst": 0.01},
    }


def moved(passed: bool = True) -> Record:
    return {
        "passed": passed,
        "sequences": 16,
        "tokens": 900,
        "worst": 0.0123,
        "limit": 0.0456,
        "noise": 0.0228,
        "spread": 3.0,
        "rows": 1600,
        "beside": True,
    }


def a_record(
    runs: list[Record] | None = None,
    draft: bool = True,
    defects: tuple[str, ...] = (),
    exact: bool = False,
    every: list[Record] | None = None,
) -> Record:
    return {
        "certified": not defects,
        "defects": list(defects),
        "greedy": runs or [a_run()] * 8,
        "every_draft": every or [],
        "sampled": {
            "passed": "sampled" not in defects,
            "drafted": 40_000,
            "accepted": 9_000,
            "contexts": 8,
            "runs": 16_000,
            "level": 3.7e-05,
            "overruns": 0,
            "ties": 0,
            "draft": {"p_values": [0.5, 1.0]},
            "first_token": {"p_values": [0.31, 0.0123]},
            "first_pair": {"p_values": [0.0456, 0.8]},
        },
        "state": moved("state" not in defects),
        "logprobs": moved("log-probabilities" not in defects),
        "provenance": {
            "paceline": "0.1.0",
            "engine": "llama-cpp-python 0.3.36",
            "target": MODEL,
            "draft": MODEL if draft else None,
            "threads": 16,
            "exact_rows": 8 if exact else 0,
            "drafting": {
                "drafters": ("lookup", "model") if draft else ("lookup",),
                "policy": "p_min",
                "n_draft": 7,
                "width": 1,
                "draft_temp": 0.8,
                "verify": "traversal",
                "cross_vocab": "off",
            },
        },
    }


ALL = ("greedy", "sampled", "state", "log-probabilities")


def test_what_is_certified_is_told_line_by_line() -> None:
    assert lines(a_record()) == [
        "losslessness certificate, paceline 0.1.0, llama-cpp-python 0.3.36",
        "target    Qwen2.5 Coder 7B Instruct (qwen2 7B Q4_K - Medium), 4.7 GB, fingerprint 0123456789abcdef",
        "draft     Qwen2.5 Coder 7B Instruct (qwen2 7B Q4_K - Medium), 4.7 GB, fingerprint 0123456789abcdef",
        "drafting  lookup,model by p_min, n_draft 7, width 1, draft_temp 0.8, verify traversal, threads 16",
        "greedy    8 prompts, 16,384 tokens (12,000 of 14,400 drafted tokens accepted): 8 identical",
        "sampled   16,000 runs (9,000 of 40,000 drafted tokens accepted): p 0.012 (limit 4e-05): passed",
        "state     16 walks beside another session, 1,600 rows: off by 0.012 (limit 0.046): passed",
        "logprobs  900 tokens: off by 0.012 (limit 0.046): passed",
        "CERTIFIED: drafted output is plain output",
    ]


def test_what_run_does_by_default_is_checked_with_every_draft_too() -> None:
    record = a_record(every=[a_run()] * 7 + [a_run("near-tie")])
    record["provenance"]["drafting"] |= {"drafters": ["auto"], "policy": "goodput"}
    said = lines(record)
    assert said[3].startswith("drafting  auto by goodput, n_draft 7, ")
    at = next(i for i, line in enumerate(said) if line.startswith("greedy"))
    assert said[at + 1].endswith("(12,000 of 14,400 drafted tokens accepted): 7 identical, 1 near-tie")
    assert "prompt 8 token 60" in said[at + 2]


@pytest.mark.parametrize("odd", ["\x1b[31mred\x07", "a\nb\rc", "\u2028", "\x9b1m", "\x00"])
def test_nothing_that_a_terminal_obeys_comes_through(odd: str) -> None:
    record = a_record([a_run("defect", difference(text=(odd, odd)))])
    record["provenance"]["target"] = MODEL | {"name": odd, "description": odd}
    said = lines(record)
    assert all(line.isprintable() for line in said)
    assert len(said) == len(lines(a_record([a_run("defect")])))


def test_an_output_that_ended_early_is_infinitely_far_apart_and_also_so_when_read_back() -> None:
    record = a_record([a_run("defect", difference(gap=math.inf, text=("x", "")))])
    record["state"] = moved(passed=False) | {"worst": math.nan}
    said = lines(record)
    assert any("'x' or '', inf apart" in line for line in said)
    assert any("off by nan" in line for line in said)
    assert lines(json.loads(json.dumps(strict_json(record), allow_nan=False))) == said
