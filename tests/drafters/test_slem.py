"""String-level exact match: retokenized drafts, the draft's text, and exactness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from counting import Counting
from enumeration import distance, drafted_distribution, plain_distribution
from paceline.backends.toy import ToyTarget
from paceline.drafters.slem import SlemDrafter, SlemState
from paceline.speculative.forward_output import LogitsOutput
from paceline.speculative.interfaces import Budget, Caps, Features, RequiredOutputs, Session
from paceline.speculative.loop import advance_requests, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.rng import GumbelNoise, SeededRng
from paceline.speculative.sampling import Sampling
from paceline.speculative.stats import Step, StepTimes
from paceline.speculative.tree import EMPTY, DraftTree
from paceline.speculative.vocabulary import Vocab
from paceline.vocab.lexicon import TokenizerVocab
from paceline.vocab.translation import Translation
from tongues import speaking, translation, untaught

EXACT = 1e-12
TIMES = StepTimes()


def drafter(target: Sequence[str], draft: Sequence[str], seed: int = 1) -> SlemDrafter:
    ours = speaking(ToyTarget(len(target)), target)
    theirs = speaking(ToyTarget(len(draft), seed=seed), draft)
    return SlemDrafter(theirs, translation(ours.vocab, theirs.vocab))


WORDS = ["a", "b", "ab"]
DRAFTS = {
    "the same tokens under other ids": ["ab", "a", "b"],
    "shorter tokens": ["b", "a"],
    "longer tokens": ["abab", "ba", "b", "a", "bb"],
    "tokens the target cannot say": ["x", "a", "bx", "b"],
    "nothing in common": ["x", "y"],
}
SAMPLINGS = {"penalties": Sampling(temperature=1.0, repeat_penalty=1.4), "greedy": Sampling()}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("words", DRAFTS.values(), ids=DRAFTS)
def test_the_loop_emits_exactly_the_plain_distribution(words: list[str], sampling: Sampling) -> None:
    target, prompt = speaking(ToyTarget(3, seed=5), WORDS), [0, 1, 2, 0]
    drafted = drafted_distribution(target, drafter(WORDS, words), prompt, Budget(3, 3), sampling, n=3)
    assert sum(drafted.values()) == pytest.approx(1.0, abs=EXACT)
    assert distance(drafted, plain_distribution(target, prompt, sampling, n=3)) < EXACT


class Scripted:
    """A draft model with a scripted chain, and uniform predictions after it."""

    def __init__(self, pieces: Sequence[bytes], script: Sequence[tuple[int, float]], eos: int | None) -> None:
        ends = frozenset(() if eos is None else (eos,))
        self.vocab = Vocab(
            len(pieces), "test", None, ends, False, False, b"%d".__mod__, list(pieces).__getitem__
        )
        self.origin = "a script"
        self.caps = Caps(1, "free", 8, 64, 512, n_ctx=512)
        self.script = list(script)
        self.read: list[list[int]] = []  # what its sessions were given

    def open(self, beside: Session | None = None) -> Any:
        self.tokens = list[int]()
        return self

    pending_tokens = 0

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self.read.append(list(self.tokens))

    def forget(self) -> None: ...

    def close(self) -> None: ...

    def forward(self, batch: Sequence[tuple[Any, DraftTree | int]], want: RequiredOutputs) -> list[Any]:
        return [ScriptedForward(self, tree) for _, tree in batch if isinstance(tree, DraftTree)]


class ScriptedForward(LogitsOutput):
    def __init__(self, draft: Scripted, tree: DraftTree) -> None:
        self._draft, self._at = draft, len(tree)

    def logits(self, row: int) -> np.ndarray[Any, Any]:
        n = self._draft.vocab.size
        token, p = self._draft.script[self._at] if self._at < len(self._draft.script) else (0, 1 / n)
        out = np.full(n, (1 - p) / (n - 1))
        out[token] = p
        logits: np.ndarray[Any, Any] = np.log(out)
        return logits


OURS = [b"a", b"b", b"c", b" ", b"ab", b" c", b"bc", b"\xc3", b"\xa4", b"\xc3\xa4", b"", b"abc", b"a"]
END, FIRST_A = 10, 12
THEIRS = [b"a", b"b", b"c", b" ", b"x", b"\xc3", b"\xa4", b"abc", b"cab", b"", b""]
BREAK, THEIR_END = 9, 10
BUDGET = Budget(9, 9, p_min=0.3)


def tokenizer(text: str) -> list[int]:
    """Merge pairs from the left; an initial "a" has a separate token."""
    out: list[int] = []
    for letter in text:
        pair = OURS[out[-1]] + letter.encode() if out else b""
        if letter.encode() not in OURS:
            return []
        if len(pair) == 2 and pair in OURS:
            out[-1] = OURS.index(pair)
        elif letter == "a" and not out:
            out.append(FIRST_A)
        else:
            out.append(OURS.index(letter.encode()))
    return out


def scripted(*script: tuple[int, float], eos: bool = True) -> tuple[SlemDrafter, Scripted]:
    names = [b"our %d" % i for i in range(len(OURS))]
    ends = frozenset({END} if eos else ())
    target = Vocab(len(OURS), "test", None, ends, False, False, names.__getitem__, OURS.__getitem__)
    draft = Scripted(THEIRS, script, THEIR_END)
    ours, theirs = TokenizerVocab(target, tokenizer), TokenizerVocab(draft.vocab, untaught)
    return SlemDrafter(draft, Translation(ours, theirs)), draft


def propose(drafter: SlemDrafter, prompt: Sequence[int], budget: Budget = BUDGET) -> DraftTree:
    return drafter.propose([(drafter.open(prompt, 0), budget)])[0]


def test_the_drafted_text_is_proposed_in_the_targets_tokens() -> None:
    drafter, draft = scripted((0, 0.9), (1, 0.8), (3, 0.7), (2, 0.6))
    tree = propose(drafter, [2])
    assert tree.tokens == (4, 5)
    assert tree.parents == (-1, 0)
    assert tree.source == ("model", "model")
    assert tree.q is None
    assert draft.read == [[2]]


def test_a_score_is_the_drafts_probability_of_the_bytes() -> None:
    """ "abc" is one drafted token of probability 0.64, of which "ab" gets two thirds."""
    drafter, _ = scripted((7, 0.64), (2, 0.5), (1, 0.5), eos=False)
    tree = propose(drafter, [3])
    assert [OURS[token] for token in tree.tokens] == [b"ab", b"c", b"c", b"b"]
    assert tree.score == pytest.approx([0.64 ** (2 / 3), 0.64 ** (1 / 3), 0.5, 0.5], abs=1e-12)
    assert tree.reach_probability[1] == pytest.approx(0.64, abs=1e-12)
    assert all(0.0 < score <= 1.0 for score in tree.score)


@pytest.mark.parametrize("prompt", [[2], [3, 4], [0, 10, 3], [2, 2, 2, 2, 2, 2], [4, 4, 4, 4, 0, 2]])
def test_a_draft_is_tokenised_as_it_goes_on_from_the_text(prompt: list[int]) -> None:
    drafter, _ = scripted((0, 0.9), (2, 0.9))
    assert propose(drafter, prompt).tokens == (0, 2)


@pytest.mark.parametrize(
    ("prompt", "drafted"),
    [
        ([10], 0),  # nothing before an end counts
        ([0, 0], 1),  # "ab" would be one token
        ([2, 3], 2),  # " c" would be
        ([0, 1], 0),  # and so would "ab" in a text that has them apart
    ],
)
def test_where_the_text_would_be_tokenised_otherwise_with_it_a_draft_stands_alone(
    prompt: list[int], drafted: int
) -> None:
    drafter, _ = scripted((drafted, 0.9), (0, 0.9))
    assert propose(drafter, prompt).tokens == (FIRST_A if drafted == 0 else drafted, 0)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_the_budget_counts_the_targets_tokens(n: int) -> None:
    long = (8, 0.9)
    drafter, draft = scripted(long, long, long)
    for budget in (Budget(n, 9), Budget(9, n)):
        tree = propose(drafter, [3], budget)
        assert len(tree) == n
        assert tree.tokens == (2, 4, 2)[:n]
    assert len(draft.read) == (2 if n else 0)
    assert propose(scripted()[0], [3]) is EMPTY


def test_what_the_target_draws_with_does_not_change_what_is_drafted() -> None:
    """The noise applies to the target's token ids."""
    likely = drafter(WORDS, DRAFTS["longer tokens"])
    memory = likely.open([0, 1, 2, 0], 0)
    (greedy,) = likely.propose([(memory, BUDGET)])
    for seed in range(9):
        noise = GumbelNoise.of(Sampling(temperature=1.5), SeededRng(seed))
        assert noise is not None
        (drawn,) = likely.propose([(memory, replace(BUDGET, gumbel_noise=noise))])
        assert (drawn.tokens, drawn.score) == (greedy.tokens, greedy.score)
    assert len(greedy) > 0


def test_a_draft_ends_with_a_whole_character() -> None:
    drafter, _ = scripted((0, 0.9), (5, 0.9))
    assert propose(drafter, [3]).tokens == (0,)
    drafter, _ = scripted((0, 0.9), (5, 0.9), (6, 0.9))
    assert propose(drafter, [3]).tokens == (0, 9)
    drafter, _ = scripted((5, 0.9))
    assert propose(drafter, [3]) is EMPTY


def test_a_character_that_the_text_has_begun_is_finished() -> None:
    drafter, draft = scripted((6, 0.9), (2, 0.9))
    assert propose(drafter, [0, 7]).tokens == (8, 2)
    assert draft.read == [[0, 5]]
    drafter, _ = scripted()
    assert propose(drafter, [0, 7]) is EMPTY


def test_the_drafts_end_is_the_targets_and_its_other_control_tokens_end_the_draft() -> None:
    drafter, _ = scripted((0, 0.9), (THEIR_END, 0.8), (0, 0.9))
    tree = propose(drafter, [3])
    assert tree.tokens == (0, END)
    assert tree.score == pytest.approx([0.9, 0.8], abs=1e-12)
    assert propose(scripted((THEIR_END, 0.8))[0], [3]).tokens == (END,)
    assert propose(scripted((0, 0.9), (BREAK, 0.8))[0], [3]).tokens == (0,)
    assert propose(scripted((0, 0.9), (THEIR_END, 0.8), eos=False)[0], [3]).tokens == (0,)
    assert propose(scripted((0, 0.9), (5, 0.9), (THEIR_END, 0.8))[0], [3]).tokens == (0,)


def test_what_the_target_cannot_say_ends_the_draft() -> None:
    assert propose(scripted((2, 0.9), (4, 0.9), (2, 0.9))[0], [1]).tokens == (2,)


def test_every_end_of_the_draft_is_an_end_of_the_target() -> None:
    """Including ends without a counterpart."""
    drafter, draft = scripted((BREAK, 0.9))
    ours = drafter._translation.target.vocab
    assert propose(drafter, [3]) is EMPTY
    draft.vocab = replace(draft.vocab, eos=frozenset({BREAK, THEIR_END}))
    assert propose(SlemDrafter(draft, translation(ours, draft.vocab)), [3]).tokens == (END,)


def observed(memory: SlemState, *tokens: int) -> list[int]:
    """Return the draft's tokens for a step that emitted `tokens`."""
    before = len(memory.read)
    memory.update(Step(tokens, (), (), {}, {}, None, TIMES), Features())
    return memory.read[before:]


@pytest.mark.parametrize(
    ("emitted", "read"),
    [
        ([4, 2], [0, 1, 2]),  # as drafted
        ([4, 0], [0, 1, 0]),  # the last one otherwise
        ([11], [0, 1, 2]),  # as drafted, to a boundary of both
        ([4, 5], [0, 1, 3, 2]),
        ([9], [5, 6]),  # otherwise from the start
        ([4, END], [0, 1, THEIR_END]),
        ([0, 7], [0, 5]),  # half a character
    ],
)
def test_what_came_as_drafted_stays_as_drafted_and_the_rest_is_read_as_text(
    emitted: list[int], read: list[int]
) -> None:
    drafter, _ = scripted((0, 0.9), (1, 0.9), (2, 0.9))
    memory = drafter.open([3], 0)
    drafter.propose([(memory, BUDGET)])
    assert observed(memory, *emitted) == read
    assert observed(memory, 4) == [0, 1]


def test_an_accepted_draft_costs_the_draft_model_nothing() -> None:
    """The target drafts for itself: a step computes the new root and the four drafted tokens."""
    target, draft = speaking(ToyTarget(3, seed=3), "abc"), Counting(3, seed=3)
    speaking(draft, "abc")
    drafter = SlemDrafter(draft, translation(target.vocab, draft.vocab))
    request = start_request(target, drafter, GenerationRequest(prompt=[1, 2], max_tokens=100))
    policy = FixedPolicy(Budget(4, 4))
    advance_requests(target, drafter, policy, [request])
    for _ in range(5):
        computed = draft.computed
        ((_, step),) = advance_requests(target, drafter, policy, [request])
        assert step.accepted == {"model": 4}
        assert draft.computed - computed == 5
