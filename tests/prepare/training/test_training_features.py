"""Hidden states and likeliest tokens: those of single passes, in whatever parts they are computed."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.backends.logit_drift import teacher_forced_logits
from paceline.backends.toy import ToyTarget
from paceline.prepare.training.features import MIN_LOGPROB, OnlineFeatures, top_logprobs
from paceline.speculative.errors import ContractError, UsageError
from paceline.speculative.interfaces import NO_FEATURES, RequiredOutputs, Target
from paceline.speculative.tree import EMPTY
from training_answers import answer

LAYERS = (0, 2, 3)


def one_by_one(target: Target, tokens: list[int], layers: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The hidden states of passes over a single token."""
    target.forget()
    rows = []
    with closing(target.open()) as session:
        session.extend(tokens[:1])
        for following in [*tokens[1:], None]:
            out = target.forward([(session, EMPTY)], RequiredOutputs(layers=layers))[0]
            rows.append(np.asarray(out.features.hidden)[-1])
            if following is not None:
                session.commit((), following)
    return np.stack(rows)


def log_softmax(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out: np.ndarray[Any, Any] = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
    return out


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 8, 1000])
@pytest.mark.parametrize("rollback", ["free", "restore"])
@pytest.mark.parametrize(("n_prompt", "n_tokens"), [(1, 1), (1, 6), (5, 1), (9, 12)])
def test_a_sequence_has_what_single_passes_give(
    rows: int, rollback: Any, n_prompt: int, n_tokens: int
) -> None:
    target = ToyTarget(seed=3, layers=3, chunk=4, rollback=rollback)
    target.caps = replace(target.caps, max_batch_tokens=rows)
    given = answer(n_prompt, n_tokens)
    sequence = OnlineFeatures(target, [given], LAYERS, 3)[0]
    tokens = [*given.prompt.tolist(), *given.tokens.tolist()]
    assert (sequence.tokens.tolist(), sequence.first_answer) == (tokens, n_prompt)
    assert sequence.hidden.dtype == np.float32
    np.testing.assert_array_equal(
        sequence.hidden, one_by_one(target, tokens, LAYERS).astype(np.float32), strict=True
    )
    logprobs = log_softmax(teacher_forced_logits(target, tokens, n_prompt, 1))
    best = np.argsort(-logprobs, axis=1)[:, :3]
    np.testing.assert_array_equal(sequence.ids, best.astype(np.int32), strict=True)
    expected = np.take_along_axis(logprobs, best, 1).astype(np.float16)
    np.testing.assert_allclose(sequence.logprobs, expected, atol=1e-3, strict=True)


def test_the_likeliest_tokens_are_in_the_samplers_order_and_impossible_ones_are_finite() -> None:
    ids, logprobs = top_logprobs(np.array([1.0, 3.0, -np.inf, 3.0, 2.0], np.float32), 5)
    assert ids.tolist() == [1, 3, 4, 0, 2]
    expected = log_softmax(np.array([3.0, 3.0, 2.0, 1.0]))
    np.testing.assert_allclose(logprobs[:4], expected)
    assert logprobs[4] == MIN_LOGPROB
    assert np.isfinite(logprobs.astype(np.float16)).all()
    large = np.array([1e4, 0.0], np.float32)
    assert top_logprobs(large, 2)[1].tolist() == [0.0, -1e4]


@pytest.mark.parametrize(
    ("layers", "top_k", "why"),
    [
        ((), 4, "layers"),
        ((2, 1), 4, r"layers \[2, 1\]: must be one or more, ascending"),
        ((1, 1), 4, "layers"),
        ((1,), 0, "top_k 0: must be between 1 and"),
        ((1,), 9, "top_k 9"),
    ],
)
def test_layers_and_top_k_are_checked(layers: tuple[int, ...], top_k: int, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        OnlineFeatures(ToyTarget(layers=3), [], layers, top_k)


def test_a_target_that_shows_no_hidden_states_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    target = ToyTarget(layers=3)
    forward = target.forward

    def blind(*given: Any) -> Any:
        outs = forward(*given)
        for out in outs:
            out.features = NO_FEATURES
        return outs

    monkeypatch.setattr(target, "forward", blind)
    with pytest.raises(ContractError, match="no hidden states from position 0 on"):
        OnlineFeatures(target, [answer(4, 4)], LAYERS, 3)[0]


def test_a_source_is_iterated_in_the_order_of_its_answers() -> None:
    answers = [answer(3, n) for n in range(1, 5)]
    source = OnlineFeatures(ToyTarget(layers=3), answers, LAYERS, 2)
    assert len(source) == 4
    assert [len(one.ids) for one in source] == [1, 2, 3, 4]
    assert [one.tokens.tolist() for one in source] == [
        [*one.prompt.tolist(), *one.tokens.tolist()] for one in answers
    ]


def test_a_transformers_model_is_computed_alike_although_its_cache_has_the_prompt(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from hf_models import folder_of
    from paceline.backends.registry import open_engine

    with closing(open_engine(folder_of("llama", tmp_path / "model"), n_ctx=256, sessions=2)) as target:
        given = answer(20, 30, n_vocab=90)
        tokens = [*given.prompt.tolist(), *given.tokens.tolist()]
        source = OnlineFeatures(target, [given, given], (1, 3), 5)
        first, again = source
        for sequence in (first, again):
            assert sequence.hidden.shape == (50, 2, 32)
            model: Any = target
            with torch.inference_mode():
                out = model._model(torch.tensor([tokens]), output_hidden_states=True)
            for column, layer in enumerate((1, 3)):
                expected = out.hidden_states[layer][0].float().numpy()
                np.testing.assert_allclose(sequence.hidden[:, column], expected, atol=2e-3)
            logprobs = out.logits[0, 19:49].float().log_softmax(-1).topk(5)
            np.testing.assert_allclose(sequence.logprobs, logprobs.values.numpy(), atol=5e-3)
            assert (sequence.ids == logprobs.indices.numpy()).mean() > 0.95
