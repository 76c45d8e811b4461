"""Verdicts of the lossless gate on greedy and on sampled output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import broken
import paceline
from fixed_system import FixedSystem
from paceline.api import LLM
from paceline.bench import gate
from paceline.bench.gate import (
    IDENTICAL,
    NEAR_TIE,
    Contestant,
    DifferenceClassifier,
    GateVerdict,
    sampled_verdict,
    tokens_of,
)
from paceline.bench.system import BenchAnswer, BenchRequest
from paceline.bench.text_comparison import Difference
from paceline.speculative.interfaces import Budget
from paceline.speculative.sampling import Sampling

DEFECT = "from token 3 on"
PROMPT = "ab ab ab ab"


def answer(tokens: Sequence[int] | None, text: str = "") -> BenchAnswer:
    n, known = len(tokens or ()), None if tokens is None else tuple(tokens)
    return BenchAnswer(text, known, n, len(PROMPT), 0.1, 0.3, decoded=max(0, n - 1), decoding=0.2)


@pytest.fixture(scope="module")
def llm(models: Path) -> Iterator[LLM]:
    engine: dict[str, Any] = {"threads": 1, "n_ctx": 512, "cache_type": "f32", "flash_attention": False}
    drawn: dict[str, Any] = {"draft_temp": 1.0, "p_min": 0.0, "n_draft": 2}
    with paceline.load(models / "target.gguf", models / "draft.gguf", "model", **engine, **drawn) as loaded:
        yield loaded


def test_near_ties_are_counted_and_pass_and_one_difference_does_not() -> None:
    def verdict(*outcomes: str, sampled: GateVerdict | None = None) -> GateVerdict:
        plain = Contestant(FixedSystem("plain"))
        entry = Contestant(FixedSystem("drafted"), reference=plain, sampled=sampled)
        for number, outcome in enumerate(outcomes):
            entry.add(f"item{number}", outcome)
        return entry.verdict

    unbiased, biased = GateVerdict(True, "unbiased"), GateVerdict(False, "NOT LOSSLESS: biased")
    wrong = GateVerdict(False, "NOT LOSSLESS: item1 from token 3 on")
    assert verdict() == GateVerdict(False, "not checked to the end")
    assert verdict(IDENTICAL, IDENTICAL) == GateVerdict(True, "identical")
    assert verdict(IDENTICAL, NEAR_TIE) == GateVerdict(True, "1 near-tie")
    assert verdict(NEAR_TIE, IDENTICAL, NEAR_TIE) == GateVerdict(True, "2 near-ties")
    assert verdict(NEAR_TIE, DEFECT, DEFECT) == wrong
    # A sampled verdict stands beside the greedy one, and either can fail.
    assert verdict(IDENTICAL, sampled=unbiased) == GateVerdict(True, "identical, unbiased")
    assert verdict(IDENTICAL, sampled=biased) == biased
    assert verdict(NEAR_TIE, DEFECT, sampled=unbiased) == wrong


@pytest.mark.slow
def test_biased_sampling_is_seen_and_unbiased_is_not_accused(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "SAMPLED_CHECK_SIZES", ((4, 300),))
    texts, sampling = [llm.tokens(PROMPT), llm.tokens("the end the")], Sampling(temperature=1.0)
    assert sampled_verdict(llm, sampling, texts, seed=0) == GateVerdict(True, "unbiased")
    monkeypatch.setattr("paceline.speculative.loop.verify", broken.VERIFICATIONS["accepted with p alone"])
    said = sampled_verdict(llm, sampling, texts, seed=0)
    assert said == GateVerdict(False, "NOT LOSSLESS: sampled output is biased")


def test_where_nothing_was_drafted_nothing_is_claimed(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "SAMPLED_CHECK_SIZES", ((1, 5), (1, 5)))
    with paceline.load(models / "target.gguf", drafters="lookup", threads=1, n_ctx=256) as loaded:
        said = sampled_verdict(loaded, Sampling(temperature=1.0), [list(range(200))], seed=0)
    assert (said.lossless, said.description.partition(":")[0]) == (False, "not checked")


@pytest.fixture
def plain(llm: LLM) -> Contestant:
    """Judge the plain answer to PROMPT."""
    entry = Contestant(FixedSystem("plain"))
    tokens = llm.generate(PROMPT, max_tokens=6, ignore_eos=True).tokens
    entry.judge(DifferenceClassifier(llm), "a", asking(llm), answer(tokens))
    return entry


def asking(llm: LLM) -> BenchRequest:
    return BenchRequest(PROMPT, tuple(llm.tokens(PROMPT)), 6)


def test_an_entry_that_says_the_same_passes_and_tokens_beyond_what_was_asked_do_not_count(
    llm: LLM, plain: Contestant
) -> None:
    assert plain.verdict == GateVerdict(True, "reference")
    entry = Contestant(FixedSystem("drafted"), Budget(2, 2), plain)
    entry.judge(DifferenceClassifier(llm), "a", asking(llm), answer([*plain.greedy_tokens["a"], 1, 2]))
    assert entry.verdict == GateVerdict(True, "identical")
    row = entry.row
    assert (row["system"], row["lossless"], row["memory"]) == ("drafted", True, 5)


def test_another_token_is_found_where_it_is_and_stays_found(llm: LLM, plain: Contestant) -> None:
    said = list(plain.greedy_tokens["a"])
    wrong = [*said[:2], (said[2] + 1) % 256, *said[3:]]
    entry = Contestant(FixedSystem("drafted"), Budget(2, 2), plain)
    for tokens in (said, wrong, said):
        entry.judge(DifferenceClassifier(llm), "a", asking(llm), answer(tokens))
    assert entry.verdict == GateVerdict(False, "NOT LOSSLESS: a from token 2 on")


def test_another_programs_own_text_is_told_and_its_drafts_are_held_to_it(llm: LLM, plain: Contestant) -> None:
    said = list(plain.greedy_tokens["a"])
    other = [*said[:2], (said[2] + 1) % 256, *said[3:]]
    theirs = Contestant(FixedSystem("baseline"), reference=plain, other_program_plain=True)
    theirs.judge(DifferenceClassifier(llm), "a", asking(llm), answer(other))
    assert theirs.verdict == GateVerdict(True, "its own text: a from token 2 on")
    drafted = Contestant(FixedSystem("baseline drafted"), Budget(2, 2), theirs)
    drafted.judge(DifferenceClassifier(llm), "a", asking(llm), answer(other))
    assert drafted.verdict == GateVerdict(True, "identical")


def test_where_a_programs_plain_decoding_failed_its_drafts_are_held_to_ours(
    llm: LLM, plain: Contestant
) -> None:
    theirs = Contestant(FixedSystem("baseline"), reference=plain, other_program_plain=True, failed="it died")
    drafted = Contestant(FixedSystem("baseline drafted"), Budget(2, 2), theirs)
    drafted.judge(DifferenceClassifier(llm), "a", asking(llm), answer(plain.greedy_tokens["a"]))
    assert drafted.verdict == GateVerdict(True, "identical")
    assert theirs.verdict == GateVerdict(False, "failed: it died")


def test_a_program_that_tells_no_tokens_is_judged_by_its_text(llm: LLM, plain: Contestant) -> None:
    text = "ab hello"
    encoded = tuple(llm.target.text.encode(text, add_bos=False))
    assert tokens_of(llm, answer(None, text), None) == encoded
    assert tokens_of(llm, answer(None, text), encoded[:-2]) == encoded[:-2]  # it says more than was asked
    assert tokens_of(llm, answer(None, text), (*encoded[:-1], encoded[0])) == encoded
    assert tokens_of(llm, answer([1, 2]), encoded) == (1, 2)


def test_after_a_near_tie_the_rest_must_still_be_what_plain_decoding_would_say(
    llm: LLM, plain: Contestant, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier, said = DifferenceClassifier(llm), list(plain.greedy_tokens["a"])
    near_tie = Difference(3, gap=1e-7, noise=1e-6, spread=1.0)
    monkeypatch.setattr(gate, "explain", lambda *_: near_tie)
    # A token that is taken for a near-tie, and after it what plain decoding goes on with, or something else.
    prompt = [*llm.tokens(PROMPT), *said[:3], (said[3] + 1) % 256]
    rest = list(llm.generate(prompt, max_tokens=2, ignore_eos=True).tokens)
    good = [*prompt[len(llm.tokens(PROMPT)) :], *rest]
    bad = [*good[:-1], (good[-1] + 1) % 256]
    assert classifier.outcome("a", asking(llm), said, good, Budget(2, 2)) == NEAR_TIE
    assert classifier.outcome("a", asking(llm), said, bad, Budget(2, 2)) == f"from token {len(bad) - 1} on"
