"""The confidence: a logistic regression that finds what decides, and the scores of real drafts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import paceline
from paceline.backends.toy import ToyTarget
from paceline.drafters.model import ModelDrafter
from paceline.heads.arrays import sigmoid
from paceline.heads.confidence import NAMES, Confidence, read_confidence, row_features
from paceline.prepare.training.confidence import Examples, fit, quality, train_confidence
from paceline.prepare.training.options import make_options
from paceline.prepare.training.prompts import read_prompts
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.interfaces import Budget
from paceline.speculative.loop import decode, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from training_answers import number_prompts

TOY, DRAFT = "toy:seed=3", "toy:seed=3,noise=0.4"


def test_the_weights_of_a_known_rule_are_found() -> None:
    rng = np.random.default_rng(0)
    x = np.stack([np.ones(20_000), rng.normal(size=20_000), rng.normal(size=20_000)], 1)
    y = (rng.random(20_000) < sigmoid(x @ np.array([-0.5, 2.0, 0.0]))).astype(float)
    assert fit(Examples(x, y)) == pytest.approx([-0.5, 2.0, 0.0], abs=0.1)


def test_quality_is_that_of_a_ranking() -> None:
    accepted = np.array([0.0, 0.0, 1.0, 1.0])
    assert quality(np.array([0.1, 0.2, 0.8, 0.9]), accepted)["auc"] == 1.0
    assert quality(np.array([0.9, 0.8, 0.2, 0.1]), accepted)["auc"] == 0.0
    assert quality(np.full(4, 0.5), accepted)["log_loss"] == pytest.approx(np.log(2))


def test_features_do_not_depend_on_the_order_of_tokens() -> None:
    p = np.array([0.5, 0.2, 0.2, 0.1])
    assert row_features(p, 2, 0.7) == pytest.approx(row_features(p[::-1], 2, 0.7))
    assert len(row_features(p, 0, 1.0)) == len(NAMES)
    assert np.isfinite(row_features(np.array([1.0, 0.0]), 0, 1.0)).all()


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    with paceline.load(TOY, DRAFT, "model") as llm:
        prompts = read_prompts([number_prompts(tmp_path / "prompts.jsonl", 40)], chat=False, held_out=0.3)
        plan = make_options("confidence", tmp_path / "confidence", max_tokens=40)
        card = train_confidence(llm, prompts, plan)
    found = card["acceptance"]
    assert found["examples"] > 200
    assert found["confidence"]["log_loss"] < found["score"]["log_loss"] + 0.05
    counts = [sum(n for _, _, n in found[name]["reliability"]) for name in ("confidence", "score")]
    assert counts[0] == counts[1] > 0
    return tmp_path / "confidence"


def test_another_share_or_kind_trains_on_the_same_answers(tmp_path: Path) -> None:
    stages, plan = list[str](), make_options("confidence", tmp_path / "out", max_tokens=40)
    with paceline.load(TOY, DRAFT, "model", sessions=4) as llm:
        for share in (0.001, 0.3, 0.999):  # both sides get enough
            prompts = read_prompts(
                [number_prompts(tmp_path / "prompts.jsonl", 40)], chat=False, held_out=share
            )
            card = train_confidence(llm, prompts, plan, lambda stage, _: stages.append(stage))
            assert card["acceptance"]["examples"] >= 200
        assert "answers" not in stages[stages.index("features") :]
        with pytest.raises(UsageError, match="too few"):  # before a prompt is answered
            train_confidence(llm, prompts, make_options("confidence", tmp_path / "few", max_tokens=12))
        assert not (tmp_path / "few").exists()


def test_it_scores_the_draft_that_it_was_trained_for(trained: Path) -> None:
    with paceline.load(TOY, DRAFT, "model") as plain, paceline.load(TOY, trained, "model") as scored:
        prompt = [1, 2, 3, 4]
        assert scored.generate(prompt, max_tokens=60).tokens == plain.generate(prompt, max_tokens=60).tokens
        assert scored.draft is not None
        assert str(scored.draft.path) == DRAFT


def test_scores_are_its_probabilities(trained: Path) -> None:
    confidence = read_confidence(trained)
    assert confidence is not None
    target, draft = ToyTarget(seed=3), ToyTarget(seed=3, noise=0.4)
    trees = []
    for scorer in (None, confidence):
        drafter = ModelDrafter(draft, target.vocab.size, confidence=scorer)
        request = start_request(target, drafter, GenerationRequest(prompt=(1, 2, 3), max_tokens=8))
        steps = [step for _, step in decode(target, drafter, FixedPolicy(Budget(4, 4)), [request])]
        trees.append(steps[0].tree)
    raw, scored = trees
    assert raw.tokens == scored.tokens
    session = draft.open()
    session.extend((1, 2, 3))
    before = 1.0
    for depth, token in enumerate(scored.tokens):
        (out,) = draft.forward([(session, scored.subset(range(depth), [1.0] * 9))], drafter.required_outputs)
        logits = out.logits(depth)
        p = np.exp(logits - logits.max())
        before = confidence.probability(p / p.sum(), depth, before)
        assert scored.score[depth] == pytest.approx(before)
        assert token == logits.argmax()


def test_another_draft_is_refused(trained: Path, tmp_path: Path) -> None:
    config = trained / "config.json"
    data = json.loads(config.read_text())
    for change, reason in (
        ({"draft": "toy:seed=3,noise=0.5"}, "not the draft that the confidence was trained for"),
        ({"version": 99}, "newer version"),
        ({"weights": {}}, "damaged"),
    ):
        config.write_text(json.dumps(data | change))
        with pytest.raises(ModelError, match=reason):
            paceline.load(TOY, trained, "model")
    assert read_confidence(tmp_path) is None


def test_it_needs_a_draft(tmp_path: Path) -> None:
    prompts = read_prompts([number_prompts(tmp_path / "prompts.jsonl", 40)], chat=False, held_out=0.3)
    with paceline.load(TOY, None, "lookup") as llm, pytest.raises(UsageError, match="give one"):
        train_confidence(llm, prompts, make_options("confidence", tmp_path / "c"))


def test_a_probability_never_overflows() -> None:
    huge = Confidence("x", "y", (1e9,) * len(NAMES))
    assert huge.probability(np.array([0.5, 0.5]), 0, 1.0) in (pytest.approx(0.0), pytest.approx(1.0))
