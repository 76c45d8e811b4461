"""Draws follow their probabilities, and whoever knows the seed finds the same tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest

from decoding import decoded
from paceline.backends.recorded import Recording, ReplayTarget, numeric_vocab
from paceline.backends.toy import ToyTarget
from paceline.bench.replay.replay import replay_recording
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.engine import InferenceEngine
from paceline.speculative.interfaces import Budget, Drafter
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.rng import GumbelNoise, SeededRng, uniform
from paceline.speculative.sampling import Sampling, TokenDistribution, target_distribution

V = 6
PROMPT = [1, 2, 3]
IDS = np.arange(4)
P = np.array([0.5, 0.3, 0.15, 0.05])
# Four standard deviations of a share of N.
N = 20_000
WITHIN = 4 * 0.5 / math.sqrt(N)


def test_no_two_of_a_thousand_seeds_in_a_row_share_their_numbers() -> None:
    even, ids, seeds = np.full(1000, 0.001), np.arange(8), [*range(1000), *range(2**32 - 4, 2**32 + 4)]
    drawn = {tuple(rng.draw(even) for _ in range(4)) for rng in map(SeededRng, seeds)}
    raced = {tuple(SeededRng(seed).exponential(3, ids).tolist()) for seed in seeds}
    assert len(drawn) == len(raced) == len(seeds)


def test_draws_and_acceptances_follow_their_probabilities() -> None:
    """5,000 draws of a fixed seed, within four standard deviations."""
    rng = SeededRng(7)
    n = 5000
    counts = np.bincount([rng.draw(np.array([0.2, 0.5, 0.3])) for _ in range(n)], minlength=3) / n
    assert np.abs(counts - [0.2, 0.5, 0.3]).max() < 4 * 0.5 / math.sqrt(n)
    accepted = sum(rng.accept(0.25) for _ in range(n)) / n
    assert abs(accepted - 0.25) < 4 * 0.5 / math.sqrt(n)
    assert rng.accept(1.0)
    assert not rng.accept(0.0)


def test_at_a_place_a_seed_draws_one_token_however_often_and_another_seed_others() -> None:
    first, again, other = SeededRng(1), SeededRng(1), SeededRng(2)
    row = TokenDistribution(np.arange(1000), np.full(1000, 0.001))
    drawn = [first.draw_at(place, row) for place in range(5)]
    assert drawn == [again.draw_at(place, row) for place in (4, 3, 2, 1, 0)][::-1]
    assert drawn == [first.draw_at(place, row) for place in range(5)]
    assert drawn != [other.draw_at(place, row) for place in range(5)]


def test_draws_follow_their_probabilities_along_a_text_and_over_seeds() -> None:
    row = TokenDistribution(IDS, P)
    rng = SeededRng(3)
    along = np.array([rng.draw_at(place, row) for place in range(N)])
    seeds = np.array([SeededRng(seed).draw_at(7, row) for seed in range(N)])
    for drawn in (along, seeds):
        assert np.abs(np.bincount(drawn, minlength=4) / N - P).max() < WITHIN
    # Neighbours in a text know nothing of each other, and neither do those of two seeds.
    pairs = np.zeros((4, 4))
    np.add.at(pairs, (along[:-1], along[1:]), 1 / (N - 1))
    assert np.abs(pairs - np.outer(P, P)).max() < WITHIN
    assert np.abs(np.histogram2d(along, seeds, bins=4)[0] / N - np.outer(P, P)).max() < WITHIN


def test_a_tokens_number_does_not_depend_on_who_else_takes_part() -> None:
    rng = SeededRng(4)
    every = rng.exponential(11, np.arange(100_000))
    some = np.array([99_999, 3, 70])
    assert rng.exponential(11, some).tolist() == every[some].tolist()
    assert every.min() > 0.0
    assert every.mean() == pytest.approx(1.0, abs=4 / math.sqrt(len(every)))
    assert every.var() == pytest.approx(1.0, abs=4 * math.sqrt(8 / len(every)))


@pytest.mark.parametrize("likeness", [0.0, 0.5, 0.9])
def test_two_that_know_the_noise_agree_at_least_as_often_as_is_proved(likeness: float) -> None:
    """Daliri et al., arXiv:2408.07978: at least (1 - d) / (1 + d), at most 1 - d."""
    other = np.array([0.1, 0.2, 0.3, 0.4])
    q = likeness * P + (1 - likeness) * other
    distance = 0.5 * float(np.abs(P - q).sum())
    rng = SeededRng(5)
    agreed = [
        rng.draw_at(place, TokenDistribution(IDS, P)) == rng.draw_at(place, TokenDistribution(IDS, q))
        for place in range(N)
    ]
    share = sum(agreed) / N
    assert (1 - distance) / (1 + distance) - WITHIN < share < 1 - distance + WITHIN


def test_who_perturbs_the_targets_own_logits_finds_what_it_draws() -> None:
    logits = np.random.default_rng(0).normal(size=50, scale=2).astype(np.float32)
    for sampling in (
        Sampling(temperature=1.0),
        Sampling(temperature=0.6, top_k=5),
        Sampling(temperature=1.5, top_p=0.7, min_p=0.05),
        Sampling(temperature=1.0, xtc_probability=0.5, xtc_threshold=0.05),
        Sampling(temperature=0.8, top_n_sigma=1.0, dynatemp_range=0.6),
        Sampling(temperature=0.002),
        Sampling(temperature=1e-320),
    ):
        rng = SeededRng(6)
        noise = GumbelNoise.of(sampling, rng)
        assert noise is not None
        for place in range(50):
            ids, perturbed = noise.at(place - 2).perturbed(logits, 2)
            assert ids[perturbed.argmax()] == rng.draw_at(place, target_distribution(logits, sampling, ()))


def test_noise_leaves_out_what_depends_on_the_text_and_is_none_where_nothing_is_drawn() -> None:
    rng = SeededRng(0)
    assert GumbelNoise.of(Sampling(), rng) is None
    edited = Sampling(temperature=1.0, repeat_penalty=2.0, dry_multiplier=1.0, logit_bias={1: -math.inf})
    assert GumbelNoise.of(edited, rng) == GumbelNoise(Sampling(temperature=1.0), rng)


def generated(
    target: ToyTarget, drafter: Drafter, budget: Budget, sampling: Sampling, seed: int, n: int = 12
) -> tuple[list[int], list[int]]:
    """Return the text, and the number of tokens of each pass."""
    tokens, steps = decoded(target, drafter, PROMPT, n, budget, sampling=sampling, seed=seed)
    return tokens, [len(step.tokens) for step in steps]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0),
        Sampling(temperature=0.7, top_k=3, top_p=0.9),
        Sampling(temperature=1.3, repeat_penalty=1.5, logit_bias={2: 1.0}),
    ],
)
@pytest.mark.parametrize("width", [1, 3])
def test_the_text_of_a_seed_is_plain_decodings_with_a_draft_that_knows_the_noise(
    sampling: Sampling, width: int
) -> None:
    target = ToyTarget(V, seed=1)
    for seed in range(40):
        plain, _ = generated(target, NoDrafter(), Budget(0, 0), sampling, seed)
        for draft in (target, ToyTarget(V, seed=2)):
            text, _ = generated(target, ModelDrafter(draft, V), Budget(4, 9, width), sampling, seed)
            assert text == plain


def test_a_draft_that_says_what_the_target_says_is_always_right() -> None:
    target, sampling = ToyTarget(V, seed=1), Sampling(temperature=1.0, min_p=0.02)
    for seed in range(10):
        _, brought = generated(target, ModelDrafter(target, V), Budget(3, 3), sampling, seed)
        assert brought == [4, 4, 4]


def test_a_token_next_to_impossible_is_no_overflow() -> None:
    row = TokenDistribution(np.array([0, 1]), np.array([1.0, 5e-324]))
    assert {SeededRng(seed).draw_at(0, row) for seed in range(20)} == {0}


def test_a_replay_of_a_sampled_text_takes_the_steps_of_the_run() -> None:
    budget, sampling = Budget(4, 4), Sampling(temperature=1.0)
    drafter = ModelDrafter(ToyTarget(V, seed=2), V)
    text, brought = generated(ToyTarget(V, seed=1), drafter, budget, sampling, 0, n=60)
    said = text[: sum(brought[:-4])]  # drafts near the end of a run are shorter
    noise = GumbelNoise.of(sampling, SeededRng(0))
    recording = Recording(tuple(PROMPT), tuple(said), gumbel_noise=noise)
    target = ReplayTarget(numeric_vocab(V), [recording])
    engine = InferenceEngine(target, drafter, FixedPolicy(budget), detokenize=False)
    assert replay_recording(engine, recording).steps == len(brought) - 4


def test_random_numbers_lie_inside_the_unit_interval() -> None:
    assert all(0.0 < x < 1.0 for x in uniform(np.array([0, 2**64 - 1], np.uint64)))


def test_impossible_tokens_are_never_drawn() -> None:
    rng, row = SeededRng(0), TokenDistribution(np.arange(3), np.array([0.0, 1.0, 0.0]))
    assert {rng.draw_at(place, row) for place in range(100)} == {1}
    assert {rng.draw(np.array([0.0, 0.5, 0.0, 0.5])) for _ in range(100)} == {1, 3}
