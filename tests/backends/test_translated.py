"""Token-level intersection: the view's rows, how little it computes, and the proof that it is lossless."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from enumeration import distance, drafted_distribution, plain_distribution
from paceline.backends.toy import ToyTarget
from paceline.backends.translated import CrossVocabTarget
from paceline.drafters.model import ModelDrafter
from paceline.speculative.interfaces import Budget, RequiredOutputs
from paceline.speculative.sampling import Sampling
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain
from rows import text_rows
from tongues import speaking, translation

EXACT = 1e-12
PROMPT = [0, 1, 2, 0, 1]
WORDS = ["a", "b", "c"]
DRAFTS = {
    "the same tokens under other ids": "cab",
    "two tokens in common": "xbya",
    "one token in common": "xyzc",
    "fewer tokens than the target": "ca",
    "more tokens than the target": ["x", "c", "ab", "a", "y", "b", "bc"],
}
SAMPLINGS = {
    "temperature": Sampling(temperature=0.7),
    "top-k": Sampling(temperature=1.0, top_k=2),
    "top-p": Sampling(temperature=1.3, top_p=0.8),
    "penalties": Sampling(temperature=1.0, repeat_penalty=1.4, frequency_penalty=0.2),
    "logit bias": Sampling(temperature=1.0, logit_bias={0: 1.5, 2: -0.5}),
    "greedy": Sampling(),
}


def target(seed: int = 5, words: Sequence[str] = WORDS) -> ToyTarget:
    return speaking(ToyTarget(len(words), seed=seed), words)


def view(draft: ToyTarget, of: ToyTarget | None = None) -> CrossVocabTarget:
    of = of or target()
    return CrossVocabTarget(draft, translation(of.vocab, draft.vocab))


def foreign(words: Sequence[str], seed: int = 1, **more: Any) -> ToyTarget:
    return speaking(ToyTarget(len(words), seed=seed, **more), words)


def model(words: Sequence[str], temperature: float = 0.0, seed: int = 1) -> ModelDrafter:
    return ModelDrafter(view(foreign(words, seed)), len(WORDS), temperature=temperature)


WAYS: dict[str, tuple[float, Budget]] = {
    "greedy chain": (0.0, Budget(2, 2)),
    "sampled chain": (1.0, Budget(2, 2)),
    "sampled chain, p_min": (0.8, Budget(2, 2, p_min=0.5)),
    "tree": (0.0, Budget(2, 6, width=3, p_split=0.05)),
    "sampled tree": (1.0, Budget(2, 3, width=2, p_split=0.05)),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize(("temperature", "budget"), WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("words", DRAFTS.values(), ids=DRAFTS)
def test_the_loop_emits_exactly_the_plain_distribution(
    words: Sequence[str], temperature: float, budget: Budget, sampling: Sampling
) -> None:
    drafted = drafted_distribution(target(), model(words, temperature), PROMPT, budget, sampling, n=3)
    plain = plain_distribution(target(), PROMPT, sampling, n=3)
    assert sum(drafted.values()) == pytest.approx(1.0, abs=EXACT)
    assert distance(drafted, plain) < EXACT


def test_tokens_without_a_counterpart_are_impossible_and_the_others_keep_their_logits() -> None:
    draft = foreign("xbya", seed=4)
    (row,) = text_rows(view(draft), [0, 1])
    (theirs,) = text_rows(draft, [3, 1])
    assert row.tolist() == [theirs[3], theirs[1], -np.inf]


WORDS_TOO = ["a", "b", "ab", "bb"]


def test_a_token_that_is_several_of_the_drafts_is_read_as_those_in_text_and_tree() -> None:
    draft = foreign("ba", seed=4)
    a, b = 1, 0
    ours = view(draft, target(words=WORDS_TOO))
    tree = DraftTree((2, 0, 3, 1), (ROOT, 0, 0, 2), (0.5,) * 4, ("test",) * 4)
    text = [a, a, b]  # "a" and the root "ab"
    expected = [text, [*text, a, b], [*text, a, b, a], [*text, a, b, b, b], [*text, a, b, b, b, b]]
    for row, read in zip(text_rows(ours, [0, 2], tree), expected, strict=True):
        (theirs,) = text_rows(draft, read)
        assert row.tolist() == [theirs[a], theirs[b], -np.inf, -np.inf]


def test_another_tree_that_reads_like_the_last_one_has_all_its_rows() -> None:
    """Two target tokens have the same text: one tree grows into the other for the draft, not for the view."""
    ours = view(foreign("ab"), target(words=["a", "b", "b"]))
    session = ours.open()
    session.extend([0])
    ours.forward([(session, chain([1], "test"))], RequiredOutputs())
    out = ours.forward([(session, chain([2, 0], "test"))], RequiredOutputs())[0]
    said = [out.logits(row).tolist() for row in range(3)]
    assert said == [row.tolist() for row in text_rows(ours, [0], chain([2, 0], "test"))]


def test_a_text_longer_than_the_drafts_context_is_read_from_its_last_part() -> None:
    draft = foreign("cab", n_ctx=16)
    ours = view(draft)
    theirs = {0: 1, 1: 2, 2: 0}
    drafter = ModelDrafter(ours, 3)
    text = [int(token) for token in np.random.default_rng(0).integers(0, 3, 60)]
    session = ours.open()
    for n in range(1, len(text)):
        session.extend(text[n - 1 : n])
        said = ours.forward([(session, EMPTY)], RequiredOutputs())[0].logits(0).tolist()
        kept = n if n <= 8 else 5 + (n - 9) % 4
        (expected,) = text_rows(draft, [theirs[token] for token in text[n - kept : n]])
        assert said == [expected[theirs[token]] for token in range(3)]
        (tree,) = drafter.propose([(drafter.open(text[:n], 0), Budget(20, 20))])
        assert len(tree) == 7
