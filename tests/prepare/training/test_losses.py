"""The loss over some of the vocabulary is nearly that over all of it."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from paceline.prepare.training import recipe  # noqa: E402  # needs torch
from paceline.prepare.training.recipe import head_loss, sampled_logits  # noqa: E402

ROWS, WIDTH, K = 40, 16, 4


def example(n_vocab: int) -> tuple[Any, ...]:
    torch.manual_seed(0)
    outputs, matrix = torch.randn(ROWS, WIDTH), torch.randn(n_vocab, WIDTH) / 4
    p, ids = (outputs @ matrix.T).softmax(1).topk(K)
    return outputs, matrix, ids, p / p.sum(1, keepdims=True), torch.ones(ROWS)


def test_a_small_vocabulary_is_whole() -> None:
    outputs, matrix, ids, p, weight = example(300)
    logits, places = sampled_logits(outputs, matrix, ids)
    assert logits.shape == (ROWS, 300)
    expected = (outputs @ matrix.T).gather(1, ids)
    assert torch.allclose(logits.gather(1, places), expected, atol=1e-5)
    found = head_loss(logits, places, p, weight, 0.3)
    assert torch.allclose(found, head_loss(outputs @ matrix.T, ids, p, weight, 0.3), atol=1e-5)


def test_random_tokens_stand_for_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "RANDOM_TOKENS", 400)
    outputs, matrix, ids, p, weight = example(3000)
    exact = head_loss(outputs @ matrix.T, ids, p, weight, 0.0)
    found = []
    for _ in range(40):
        logits, places = sampled_logits(outputs, matrix, ids)
        assert logits.shape[1] < 600
        found.append(head_loss(logits, places, p, weight, 0.0))
    assert float(torch.stack(found).mean()) == pytest.approx(float(exact), rel=0.01)
