"""Training heads on a target's first layers: early exits and Kangaroo adapters."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.backends.toy import ToyTarget
from paceline.drafter_factory import make
from paceline.drafters.none import NoDrafter
from paceline.drafters.parts import DrafterInputs
from paceline.drafts import kind_of, open_head
from paceline.heads.exit_target import ExitTarget
from paceline.prepare.training.answers import Answer
from paceline.prepare.training.features import TrainingFeatures
from paceline.settings import Drafting
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import Budget, Drafter
from paceline.speculative.loop import decode, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest

torch = pytest.importorskip("torch")

from paceline.prepare.training.dataset import DraftVocabulary  # noqa: E402
from paceline.prepare.training.evaluate import fit_temperature  # noqa: E402
from paceline.prepare.training.features import Sequences  # noqa: E402  # needs torch
from paceline.prepare.training.loop import Trainer  # noqa: E402
from paceline.prepare.training.options import make_options  # noqa: E402
from paceline.prepare.training.train import embedding_of, make_recipe  # noqa: E402

KINDS = ("exits", "kangaroo")
N_DRAFT = 4


def toy() -> ToyTarget:
    return ToyTarget(8, seed=3, layers=4, width=16, sharpness=4.0)


@cache
def transformers_target() -> Any:
    pytest.importorskip("transformers")
    from hf_models import model_of
    from paceline.backends.transformers.target import HfTarget

    return HfTarget.around(model_of("llama", num_hidden_layers=4), sessions=2)


def decoded(target: Any, drafter: Drafter, prompt: list[int], n: int) -> tuple[list[int], list[Any]]:
    """Return the emitted tokens, and the steps."""
    request = start_request(target, drafter, GenerationRequest(prompt=prompt, max_tokens=n))
    steps = [s for _, s in decode(target, drafter, FixedPolicy(Budget(N_DRAFT, N_DRAFT)), [request])]
    tokens = list(request.session.tokens)[len(prompt) :]
    request.close()
    return tokens, [step for step in steps if step.tokens]


def answers_of(target: Any, n: int, n_tokens: int) -> list[Answer]:
    rng, out = np.random.default_rng(0), []
    for i in range(n):
        prompt = rng.integers(2, target.vocab.size, 6).tolist()
        tokens, _ = decoded(target, NoDrafter(), prompt, n_tokens)
        out.append(Answer(str(i), np.array(prompt, np.int32), np.array(tokens, np.int32), "length", i < 6))
    return out


def train(target: Any, kind: str, folder: Path, answers: list[Answer], **given: Any) -> tuple[Any, Any, Any]:
    """Train a head into a folder. Return its recipe, and the acceptance before and after."""
    size = target.vocab.size
    plan = make_options(kind, folder, n_draft=N_DRAFT, draft_vocab=size, batch_tokens=256, **given)
    recipe = make_recipe(target, plan, DraftVocabulary(np.arange(size), size))
    source = TrainingFeatures(target, answers, recipe.config.layer_ids, 8)
    training, held_out = Sequences(source, False), Sequences(source, True)
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    embedding = embedding_of(target)
    weights = recipe.weights(target.output_head(), embedding)
    first = {name: value.numpy() for name, value in weights.items()}
    before = recipe.acceptance(first, embedding.numpy(), (held_out[i] for i in range(6)), N_DRAFT)

    def save(weights: Any, acceptance: Any) -> None:
        recipe.write(folder, target, weights, {"acceptance": acceptance.length})

    after = Trainer(recipe, weights, embedding, folder, save).run(training, held_out)
    return recipe, before, after


@pytest.mark.parametrize("kind", KINDS)
def test_a_trained_head_drafts_better_and_changes_no_text(kind: str, tmp_path: Path) -> None:
    target = toy()
    answers = answers_of(target, 40, 24)
    folder = tmp_path / kind
    given = {"epochs": 12, "learning_rate": 2e-2, "exit_layers": (3,)}
    _, before, after = train(target, kind, folder, answers, **given)
    assert after.length > before.length + 0.1
    assert kind_of(folder) == f"{kind} head"
    head = open_head(folder, target)
    assert isinstance(head, ExitTarget)
    assert head.exit_layer == 3
    assert head.config.exits[0].length == pytest.approx(after.length, abs=1e-3)
    steps = steps_of(target, head, answers[:6])
    assert sum(len(step.tokens) for step in steps) / len(steps) == pytest.approx(after.length)


def steps_of(target: Any, head: Any, answers: list[Answer]) -> list[Any]:
    """Draft the answers again with a head, require the same tokens, and return the steps."""
    drafter, out = make(head.kind, DrafterInputs(Drafting((head.kind,)), target, head)), list[Any]()
    for answer in answers:
        tokens, steps = decoded(target, drafter, answer.prompt.tolist(), len(answer.tokens))
        assert tokens == answer.tokens.tolist()
        out += steps
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_for_a_transformers_model(kind: str, tmp_path: Path) -> None:
    target = transformers_target()
    answers = answers_of(target, 12, 12)
    folder = tmp_path / kind
    recipe, _, after = train(target, kind, folder, answers, epochs=8, learning_rate=1e-2)
    assert recipe.config.layer_ids == ((1, 2, 3) if kind == "exits" else (2,))
    assert after.length >= 1.0
    head = open_head(folder, target)
    assert any(len(step.tree) for step in steps_of(target, head, answers[:6]))
    head.close()


def test_the_fitted_temperature_is_that_by_which_the_tokens_were_drawn() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4000, 6)) * 4
    below = logits - logits.max(1, keepdims=True)
    p = 1.0 / np.exp(below / 2.5).sum(1)
    assert fit_temperature(logits, rng.random(4000) < p) == pytest.approx(2.5, rel=0.15)


@pytest.mark.parametrize(
    ("kind", "layers", "message"),
    [("exits", (1, 4), "1 to 3"), ("kangaroo", (1, 2), "one exit layer")],
)
def test_wrong_exit_layers_are_refused(
    kind: str, layers: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        make_recipe(
            toy(), make_options(kind, tmp_path / "x", exit_layers=layers), DraftVocabulary(np.arange(8), 8)
        )
