"""Capabilities detected for transformers models, and refusal of everything beyond them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from hf_models import DEVICE, folder_of, model_of
from paceline.backends.transformers import trial
from paceline.backends.transformers.loading import fingerprint_weights
from paceline.backends.transformers.opener import open_engine
from paceline.backends.transformers.target import HfTarget
from paceline.speculative.errors import BusyError, ModelError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY, chain
from paceline.system import home

TEXT = [(7 * at + 3) % 90 + 2 for at in range(60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trial")


def whole(target: HfTarget, tokens: Sequence[int]) -> np.ndarray:
    """The last row of one pass of transformers itself, on a model that nobody has used."""
    with torch.inference_mode():
        ids = torch.tensor([list(tokens)], device=DEVICE)
        return np.array(target._model(input_ids=ids, use_cache=False).logits[0, -1].cpu().numpy())


def near(a: np.ndarray, b: np.ndarray) -> bool:
    return float(np.abs(a - b).max()) < 1e-3


@pytest.mark.parametrize("kind", ["rwkv", "openai-gpt", "roberta"])
def test_a_model_that_does_not_go_on_from_our_cache_is_refused(kind: str, folder: Path) -> None:
    path = folder_of(kind, folder)
    for _ in range(2):  # and again, by what is kept on the disk
        with pytest.raises(
            ModelError, match=rf"{kind} of transformers .* cannot be decoded \(token by token.*GGUF"
        ):
            open_engine(path, n_ctx=64, device=DEVICE)
    with pytest.raises(ModelError, match="cannot be decoded"):
        HfTarget.around(model_of(kind))


def test_a_model_that_takes_no_cache_of_ours_is_refused_with_its_own_words(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"minimax of transformers .* \(MiniMax uses cache of its own"):
        open_engine(folder_of("minimax", folder), n_ctx=64, device=DEVICE)


@pytest.mark.parametrize("window", [4, 24])  # one that a trial sees, and one that it does not
def test_windows_that_count_cells_have_no_trees_and_no_shared_pass(window: int, folder: Path) -> None:
    path = folder_of("gpt_neo", folder / str(window), window_size=window)
    target = open_engine(path, n_ctx=128, device=DEVICE, sessions=2)
    assert (target.caps.max_branches, target.caps.rollback, target.caps.max_sessions) == (1, "free", 2)
    texts = [TEXT[:40], TEXT[20:45]]
    sessions = [target.open() for _ in texts]
    for session, text in zip(sessions, texts, strict=True):
        session.extend(text)
    for round_ in range(3):
        draft = chain([11, 12, 13], "test")
        outs = target.forward([(session, draft) for session in sessions], RequiredOutputs())
        for session, out in zip(sessions, outs, strict=True):
            for row in range(len(draft) + 1):
                assert near(out.logits(row), whole(target, [*session.tokens, *draft.tokens[:row]])), row
        for session in sessions:
            session.commit([0], 20 + round_)


def test_state_in_the_modules_is_one_sessions(folder: Path) -> None:
    target = open_engine(folder_of("recurrent_gemma", folder), n_ctx=128, device=DEVICE, sessions=4)
    assert (target.caps.max_branches, target.caps.rollback, target.caps.max_sessions) == (1, "none", 1)
    texts = [TEXT[:9], TEXT[30:41], TEXT[:13], TEXT[50:51]]  # the third goes on with nothing of the first
    expected = [[whole(target, [*text, *TEXT[20 : 20 + n]]) for n in range(4)] for text in texts]
    for text, rows in zip(texts, expected, strict=True):
        session = target.open()
        session.extend(text)
        other = target.open()
        with pytest.raises(BusyError):
            other.extend(text)
        for n, row in enumerate(rows):
            assert near(target.forward([(session, EMPTY)], RequiredOutputs())[0].logits(0), row), n
            session.commit([], TEXT[20 + n])
        session.close()


def test_a_model_is_tried_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[trial.TraitProbe] = []
    run = trial.TraitProbe.run

    def counted(self: trial.TraitProbe) -> trial.ProbedTraits:
        made.append(self)
        return run(self)

    monkeypatch.setattr(trial.TraitProbe, "run", counted)
    path = folder_of("phi3", folder / "once", num_hidden_layers=2)  # which no other test has tried
    for attention in ("auto", "auto", "eager", "eager"):
        open_engine(path, n_ctx=64, device=DEVICE, attention=attention).close()
    assert len(made) == 2  # once for each attention
    (kept,) = [
        file
        for file in (home.home() / "transformers").glob("*.json")
        if (key := json.loads(file.read_text())["key"])["attention"] == "eager"
        and key["model"] == fingerprint_weights(path)
    ]
    said = json.loads(kept.read_text())
    assert said["key"].keys() == {"model", "engine", "dtype", "attention", "device", "trial"}
    kept.write_text("{}")  # what cannot be read is found again
    open_engine(path, n_ctx=64, device=DEVICE, attention="eager").close()
    assert len(made) == 3
    assert json.loads(kept.read_text()) == said


def test_a_model_without_numbers_is_left_to_its_rows() -> None:
    model = model_of("llama")
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    caps = HfTarget.around(model).caps
    assert (caps.max_branches, caps.rollback) == (64, "free")


def test_too_little_memory_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama", seed=8)
    with monkeypatch.context() as patch:
        patch.setattr(type(model), "forward", full)
        with pytest.raises(ModelError, match="out of memory in a pass"):
            HfTarget.around(model)
    assert HfTarget.around(model).caps.max_branches == 64


def full(self: Any, input_ids: Any, cache: Any = None, position_ids: Any = None, **_: Any) -> Any:
    raise torch.OutOfMemoryError("Tried to allocate 20.00 MiB.")
