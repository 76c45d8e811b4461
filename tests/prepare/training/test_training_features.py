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
from paceline.prepare.training.features import MIN_LOGPROB, TrainingFeatures, top_logprobs
from paceline.speculative.errors import LogitsError, ModelError, UsageError
from paceline.speculative.forward_output import LogitsOutput
from paceline.speculative.interfaces import RequiredOutputs, Target
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
    sequence = TrainingFeatures(target, [given], LAYERS, 3)[0]
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


class Rows(LogitsOutput):
    def __init__(self, *rows: list[float]) -> None:
        super().__init__(len(rows))
        self._rows = np.array(rows, np.float32)

    def logits(self, row: int) -> Any:
        return self._rows[row]


def test_the_likeliest_tokens_are_in_the_samplers_order() -> None:
    out = Rows([0.0] * 5, [1.0, 3.0, -np.inf, 3.0, 2.0], [1e4, 0.0, 0.0, 0.0, 1.0])
    ids, logprobs = top_logprobs(out, range(1, 3), 5)
    assert ids.tolist() == [[1, 3, 4, 0, 2], [0, 4, 1, 2, 3]]
    np.testing.assert_allclose(logprobs[0, :4], log_softmax(np.array([3.0, 3.0, 2.0, 1.0])))
    assert logprobs[0, 4] == -np.inf
    assert logprobs[1].tolist() == [0.0, 1 - 1e4, -1e4, -1e4, -1e4]


def test_impossible_tokens_have_finite_logprobs(monkeypatch: pytest.MonkeyPatch) -> None:
    target = ToyTarget(layers=3)
    monkeypatch.setattr(target, "logits", lambda _: np.array([0.0, 1.0, *[-np.inf] * 6]))
    logprobs = TrainingFeatures(target, [answer(2, 3)], LAYERS, 8)[0].logprobs
    assert np.isfinite(logprobs).all()
    assert (logprobs[:, 2:] == MIN_LOGPROB).all()
    assert np.exp(logprobs.astype(np.float32)).sum(1) == pytest.approx(1.0, abs=1e-3)


def test_a_small_vocabulary_and_a_small_context_limit_what_is_computed() -> None:
    target = ToyTarget(layers=3, n_ctx=9)
    full = answer(4, 5)
    assert TrainingFeatures(target, [full], LAYERS)[0].ids.shape == (5, 8)
    with pytest.raises(UsageError, match=r"and its prompt have 10 tokens, the context 9: .* \(-c\)"):
        TrainingFeatures(target, [full, answer(4, 6)], LAYERS)


def test_invalid_logits_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    target = ToyTarget(layers=3)
    monkeypatch.setattr(target, "logits", lambda _: np.array([0.0, 1.0, np.nan, *[0.0] * 5]))
    with pytest.raises(LogitsError, match="the toy model: its logits are not numbers"):
        TrainingFeatures(target, [answer(4, 5)], LAYERS)[0]


def test_a_transformers_model_is_computed_alike_although_its_cache_has_the_prompt(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from hf_models import folder_of
    from paceline.backends.registry import open_engine

    with closing(open_engine(folder_of("llama", tmp_path / "model"), n_ctx=256, sessions=2)) as target:
        given = answer(20, 30, n_vocab=90)
        tokens = [*given.prompt.tolist(), *given.tokens.tolist()]
        source = TrainingFeatures(target, [given, given], (1, 3), 5)
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
            assert (np.diff(sequence.logprobs) <= 0).all()
            assert (sequence.ids == logprobs.indices.numpy()).mean() > 0.95


def test_a_gguf_model_is_computed_alike_in_any_parts(target: Path) -> None:
    from paceline.backends.registry import open_engine

    with closing(open_engine(target, n_ctx=256, sessions=2)) as engine:
        given = answer(40, 30, n_vocab=90)
        tokens = [*given.prompt.tolist(), *given.tokens.tolist()]
        source = TrainingFeatures(engine, [given, given], (0, 1, 2), 5)
        try:
            first, again = source
        except ModelError as error:
            pytest.skip(str(error))  # no library that copies them
        np.testing.assert_array_equal(first.hidden, again.hidden)
        expected = one_by_one(engine, tokens, (0, 1, 2))
        np.testing.assert_allclose(first.hidden, expected, rtol=0.02, atol=0.02 * np.abs(expected).max())
        logprobs = log_softmax(teacher_forced_logits(engine, tokens, len(given.prompt), 1))
        np.testing.assert_allclose(
            first.logprobs, np.take_along_axis(logprobs, first.ids.astype(np.int64), 1), atol=0.05
        )
