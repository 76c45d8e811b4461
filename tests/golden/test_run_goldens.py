"""Golden output of `paceline run --json` for every drafter and kind of request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from command_line import command
from goldens import matches
from paceline.models import zoo
from real_model import smollm2

Capture = pytest.CaptureFixture[str]
DRAFTERS = ("none", "lookup", "suffix", "ngram", "lookahead", "model", "cascade", "suffix,lookup,model")
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
KINDS: dict[str, tuple[str, ...]] = {
    "greedy": (),
    "sampled": ("--temp", "0.8", "--top-k", "40", "--seed", "7"),
    "grammar": ("--json-schema", SCHEMA),
    "stop": ("--stop", "e"),
    "logprobs": ("--logprobs", "2"),
}
PROMPT = "def add(a, b):\n    return a + b\n\ndef add_all(a, b, c):\n    return"
# What no machine and no hour changes; times and paths do.
KEPT = ("text", "tokens", "stop_reason", "n_prompt", "n_tokens", "complete", "logprobs", "steps", "drafted",
        "accepted", "by_source")  # fmt: skip


def said(capsys: Capture, *args: str | Path) -> tuple[str, dict[str, Any]]:
    """Return the kernels of a run and the compared fields of its output."""
    done = command(capsys, "run", *args, "-t", "1", "-n", "24", "--no-chat", "--json")
    assert done.code == 0, done.err
    record, stats = done.json, done.json["stats"]
    kept = {name: found[name] for name in KEPT for found in (record, stats) if name in found}
    return record["provenance"].get("kernels") or "none", kept


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "grammar"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_toy_says_what_it_said(capsys: Capture, drafter: str, kind: str) -> None:
    """The toy's vocabulary is eight digits, none of which ends a text."""
    args = ("-m", "toy:", *(("-md", "toy:noise=0.3") if uses_draft(drafter) else ()), "-p", "1234123412341")
    options = ("--stop", "7") if kind == "stop" else KINDS[kind]
    _, found = said(capsys, *args, "--draft", drafter, *options)
    matches("run_toy.json", f"{drafter} {kind}", found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_smollm2_says_what_it_said(capsys: Capture, drafter: str, kind: str) -> None:
    """Rounding differs between processors, so that each kind has a record of its own."""
    draft = ("-md", zoo.path("smollm2-draft")) if uses_draft(drafter) else ()
    args = ("-m", smollm2(), *draft, "-c", "512", "-p", PROMPT)
    path, found = said(capsys, *args, "--draft", drafter, *KINDS[kind])
    matches(f"run_smollm2_{path}.json", f"{drafter} {kind}", found)


def uses_draft(drafter: str) -> bool:
    return "model" in drafter or drafter == "cascade"
