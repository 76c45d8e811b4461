"""Training of draft heads on the toy model: they learn, go on after an interrupt, and draft as they were
evaluated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.api import LLM
from paceline.backends.toy import ToyTarget
from paceline.drafters.head import HeadDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafts import open_head
from paceline.heads.files import read_head, read_safetensors
from paceline.prepare.training.options import TrainingOptions, make_options
from paceline.prepare.training.prompts import TrainingPrompts, read_prompts
from paceline.settings import Drafting
from paceline.speculative.errors import PacelineError, UsageError
from paceline.speculative.interfaces import Budget
from paceline.speculative.loop import decode, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from training_answers import write_lines

pytest.importorskip("torch")

import torch

from paceline.prepare.training import loop
from paceline.prepare.training.answers import CHECKPOINT, SPLIT, AnswerFolder, read_header
from paceline.prepare.training.confidence import train_confidence
from paceline.prepare.training.dataset import DraftVocabulary, TrainingBatch
from paceline.prepare.training.features import TrainingFeatures
from paceline.prepare.training.train import KINDS as ALL_KINDS
from paceline.prepare.training.train import embedding_of, make_recipe, train_head

KINDS = ("medusa", "eagle", "eagle3", "block")
N_PROMPTS, N_TOKENS = 60, 24
QUICK: dict[str, Any] = {
    "epochs": 6,
    "batch_tokens": 256,
    "learning_rate": 1e-2,
    "depth": 3,
    "layers": 1,
    "n_draft": 3,
    "max_tokens": N_TOKENS,
    "evaluations": 3,
    "markov_rank": 4,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def llm() -> LLM:
    target = ToyTarget(8, seed=3, layers=4, width=16, sharpness=4.0)
    return LLM(target, NoDrafter(), Drafting(("none",)))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> TrainingPrompts:
    texts = ["".join(map(str, np.random.default_rng(k).integers(0, 8, 6))) for k in range(N_PROMPTS)]
    file = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    write_lines(file, *({"prompt": text} for text in texts))
    return read_prompts([file], chat=False, held_out=0.2)


def plan_of(kind: str, folder: Path, **more: Any) -> TrainingOptions:
    slow = {"epochs": 16} if kind == "block" else {}
    return make_options(kind, folder, **QUICK | {"draft_vocab": 8} | slow | more)


def weights_of(folder: Path) -> dict[str, Any]:
    return read_safetensors(folder / "model.safetensors")


def checkpoint(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / CHECKPOINT, weights_only=True)
    return state


def stop_at(step: int, then: Callable[[], object]) -> Callable[[str, Any], None]:
    def report(stage: str, progress: Any) -> None:
        if stage == "training" and progress.step == step:
            then()

    return report


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="module", params=KINDS)
def trained(
    request: pytest.FixtureRequest,
    llm: LLM,
    prompts: TrainingPrompts,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, Path, dict[str, Any]]:
    """Train a head of each kind once."""
    kind: str = request.param
    folder = tmp_path_factory.mktemp(kind) / "head"
    return kind, folder, train_head(llm, prompts, plan_of(kind, folder))


def test_a_head_learns(
    trained: tuple[str, Path, dict[str, Any]], llm: LLM, prompts: TrainingPrompts, tmp_path: Path
) -> None:
    kind, _, card = trained
    untrained = train_head(
        llm, prompts, plan_of(kind, tmp_path, epochs=1, learning_rate=1e-12, evaluations=1)
    )
    assert card["kind"] == kind
    assert card["acceptance"]["length"] > untrained["acceptance"]["length"] + 0.2
    share = prompts.held_out * 2.0**64
    assert card["held_out"]["answers"] == sum(int(item.session[:16], 16) < share for item in prompts.items)


def test_the_acceptance_is_that_of_decoding(
    trained: tuple[str, Path, dict[str, Any]], llm: LLM, prompts: TrainingPrompts
) -> None:
    """The files have bfloat16: a near-tie may fall differently, so the numbers are those of the files."""
    from paceline.prepare.training.recipe import Recipe

    _, folder, card = trained
    target, settings = llm.target, read_header(folder / "answers")["settings"]
    answers = list(AnswerFolder(folder / "answers", settings, target.vocab.size).answers.values())
    split = json.loads((folder / SPLIT).read_text())
    held_out = [answer for answer in answers if split[answer.id]]
    head = open_head(folder, target)
    table = embedding_of(target).numpy()
    ids = sorted(set(head.config.layer_ids))
    recipe: Any = SimpleNamespace(
        kind=head.kind, network=lambda _: head._head, vocabulary=DraftVocabulary(np.arange(8), 8)
    )
    found = Recipe.acceptance(recipe, {}, table, TrainingFeatures(target, held_out, ids, 8), 3)
    drafter, steps, tokens, accepted, drafted = HeadDrafter(head), 0, 0, 0, 0
    for answer in held_out:
        request = start_request(
            target, drafter, GenerationRequest(prompt=answer.prompt.tolist(), max_tokens=N_TOKENS)
        )
        for _ in decode(target, drafter, FixedPolicy(Budget(3, 3)), [request]):
            steps += 1
        assert request.session.tokens[len(answer.prompt) :] == answer.tokens.tolist()
        tokens += len(answer.tokens)
        accepted += request.stats.accepted
        drafted += request.stats.drafted
        request.close()
    assert drafted > accepted > 0
    assert (found.steps, found.tokens, sum(found.accepted)) == (steps, tokens, accepted)
    assert abs(found.length - card["acceptance"]["length"]) < 0.1


@pytest.mark.parametrize("kind", ["eagle", "block"])  # noise on the hidden states, random anchors
def test_a_run_that_was_interrupted_ends_like_one_that_was_not(
    kind: str, llm: LLM, prompts: TrainingPrompts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    whole, stopped, killed = (tmp_path / name for name in ("whole", "stopped", "killed"))

    def copy() -> None:  # as after a kill: what is on the disk at this moment
        shutil.copytree(whole, killed)

    card = train_head(llm, prompts, plan_of(kind, whole, epochs=6), stop_at(11, copy))
    with pytest.raises(KeyboardInterrupt):
        train_head(llm, prompts, plan_of(kind, stopped, epochs=6), stop_at(14, interrupt))
    suffixes = {path.suffix for path in stopped.iterdir()}
    assert suffixes <= {"", ".pt", ".json", ".npy", ".safetensors"}  # nothing torn
    expected = checkpoint(whole)
    assert 0 < checkpoint(stopped)["numbers"]["_step"] < expected["numbers"]["_step"]
    for folder in (stopped, killed):
        again = train_head(llm, prompts, plan_of(kind, folder, epochs=6))
        assert again["acceptance"] == card["acceptance"]
        found = checkpoint(folder)
        assert again["history"] == expected["numbers"]["history"]
        for name, value in expected["weights"].items():
            assert np.array_equal(found["weights"][name].numpy(), value.numpy()), name
        for name, value in weights_of(whole).items():
            assert np.array_equal(weights_of(folder)[name], value)
        over = train_head(llm, prompts, plan_of(kind, folder, epochs=6))
        assert over["acceptance"] == card["acceptance"]


def learned(kind: str, folder: Path) -> Any:
    """All that was learned, to the last bit."""
    if kind == "confidence":
        return json.loads((folder / "config.json").read_text())["weights"]
    return {name: value.tolist() for name, value in weights_of(folder).items()}


@pytest.mark.parametrize("kind", ["medusa", "eagle3", "confidence"])
def test_a_run_killed_at_any_stage_ends_like_one_that_was_not(
    kind: str, prompts: TrainingPrompts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers end in another order; the hidden states that it has stay."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    whole, copies, quick = tmp_path / "whole", list[Path](), {"epochs": 2, "evaluations": 2}

    def kill(stage: str, progress: Any) -> None:  # what is on the disk at this moment
        at = progress.done if stage == "answers" else progress[0] if stage == "features" else progress.step
        if (stage, at) in {("answers", 9), ("answers", 33), ("features", 20), ("training", 3)}:
            copies.append(tmp_path / f"{stage}{at}{len(copies)}")
            shutil.copytree(whole, copies[-1])

    draft = ("toy:seed=3,noise=0.4,eos=7", "model") if kind == "confidence" else (None, "none")
    with paceline.load("toy:seed=3,layers=4,width=16,eos=7", *draft, sessions=3) as llm:
        train = train_confidence if kind == "confidence" else train_head
        train(llm, prompts, plan_of(kind, whole, **quick), kill)
        assert len(copies) >= 2
        for folder in copies:
            train(llm, prompts, plan_of(kind, folder, **quick))
            assert learned(kind, folder) == learned(kind, whole), folder


def test_an_interrupt_within_a_step_or_an_evaluation_leaves_the_checkpoint_before(
    llm: LLM, prompts: TrainingPrompts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    train_head(llm, prompts, plan_of("medusa", tmp_path / "whole"))
    for name, calls in (("_evaluate", 1), ("_update", 7)):
        folder = tmp_path / name
        with monkeypatch.context() as patch:
            interrupt_after(patch, name, calls)
            with pytest.raises(KeyboardInterrupt):
                train_head(llm, prompts, plan_of("medusa", folder))
        train_head(llm, prompts, plan_of("medusa", folder))
        assert learned("medusa", folder) == learned("medusa", tmp_path / "whole"), name


def interrupt_after(patch: pytest.MonkeyPatch, name: str, calls: int) -> None:
    """Let the trainer's method end, at this call, by an interrupt."""
    method, left = getattr(loop.Trainer, name), [calls]

    def interrupted(self: Any, *given: Any) -> Any:
        out, left[0] = method(self, *given), left[0] - 1
        return out if left[0] else interrupt()

    patch.setattr(loop.Trainer, name, interrupted)


def test_a_run_keeps_its_split_when_others_add_answers(
    llm: LLM, prompts: TrainingPrompts, tmp_path: Path
) -> None:
    shared, few = tmp_path / "shared", replace(prompts, items=prompts.items[:20])
    plan = replace(plan_of("medusa", tmp_path / "head", epochs=2), cache=shared)
    first = train_head(llm, few, plan)
    other = replace(plan_of("eagle", tmp_path / "other", epochs=1), cache=shared)
    train_head(llm, replace(prompts, held_out=0.5), other)
    again = train_head(llm, prompts, replace(plan, epochs=3))
    assert (again["training"], again["held_out"]) == (first["training"], first["held_out"])


def test_a_run_that_is_made_longer_evaluates_again(
    llm: LLM, prompts: TrainingPrompts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, calls = loop.Trainer._evaluate, list[int]()

    def counted(self: loop.Trainer, some: Any) -> Any:
        calls.append(1)
        return evaluate(self, some)

    monkeypatch.setattr(loop.Trainer, "_evaluate", counted)
    train_head(llm, prompts, plan_of("medusa", tmp_path / "head", epochs=1, evaluations=2))
    assert len(calls) == 2
    train_head(llm, prompts, plan_of("medusa", tmp_path / "head", epochs=2, evaluations=2))
    assert len(calls) == 3  # at the whole of the longer run


def test_another_setting_in_the_folder_of_a_run_is_refused(
    llm: LLM, prompts: TrainingPrompts, tmp_path: Path
) -> None:
    train_head(llm, prompts, plan_of("medusa", tmp_path, epochs=1))
    changed: tuple[tuple[dict[str, Any], str], ...] = (
        ({"learning_rate": 0.5}, "has a run with another learning_rate"),
        ({"depth": 2}, "has a run with another depth"),
        ({"draft_vocab": 5}, "another draft_vocab"),
        ({"max_tokens": 9}, "max_tokens"),
    )
    for other, reason in changed:
        with pytest.raises(UsageError, match=reason):
            train_head(llm, prompts, plan_of("medusa", tmp_path, epochs=1, **other))
    with pytest.raises(UsageError, match="has a run with another kind"):
        train_head(llm, prompts, plan_of("eagle", tmp_path, epochs=1, use_cache=False))
    assert train_head(llm, prompts, plan_of("medusa", tmp_path, epochs=1))["kind"] == "medusa"
    (tmp_path / CHECKPOINT).write_bytes(b"torn")
    with pytest.raises(UsageError, match=r"checkpoint.pt: cannot be read"):
        train_head(llm, prompts, plan_of("medusa", tmp_path, epochs=1))


def test_a_reduced_vocabulary_is_drafted(llm: LLM, prompts: TrainingPrompts, tmp_path: Path) -> None:
    card = train_head(llm, prompts, plan_of("eagle3", tmp_path, draft_vocab=5))
    files = read_head(tmp_path)
    ids = np.arange(5) + files.weights["d2t"]
    assert files.config.draft_vocab == len(set(ids)) == files.weights["lm_head.weight"].shape[0] == 5
    assert files.weights["t2d"].nonzero()[0].tolist() == ids.tolist()
    assert card["acceptance"]["length"] > 1.2
    row = np.arange(5, dtype=np.float32)
    full = open_head(tmp_path, llm.target).scatter(row)
    assert full[ids].tolist() == row.tolist()
    assert np.isneginf(np.delete(full, ids)).all()


def test_too_little_memory_is_refused_before_hidden_states_are_computed(
    llm: LLM, prompts: TrainingPrompts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.prepare.training.train.free_memory", lambda: 1000)
    with pytest.raises(UsageError, match="training needs about"):
        train_head(llm, prompts, plan_of("eagle3", tmp_path))
    assert not (tmp_path / "features").exists()


def test_heads_share_answers_and_hidden_states(
    llm: LLM, prompts: TrainingPrompts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    card = train_head(llm, prompts, plan_of("eagle3", tmp_path / "eagle3", cache=shared))
    assert card["acceptance"]["length"] > 1.2
    assert sorted(path.name for path in shared.iterdir()) == ["answers", "features"]
    assert not (tmp_path / "eagle3" / "features").exists()
    alone = train_head(llm, prompts, plan_of("eagle3", tmp_path / "alone"))
    assert alone["acceptance"] == card["acceptance"]
    monkeypatch.setattr(TrainingFeatures, "compute", lambda *_: pytest.fail("computed again"))
    for kind in ("medusa", "exits", "kangaroo", "block"):
        plan = plan_of(kind, tmp_path / kind, cache=shared, epochs=1, evaluations=1)
        with pytest.raises(KeyboardInterrupt):
            train_head(llm, prompts, plan, stop_at(1, interrupt))
        assert (tmp_path / kind / CHECKPOINT).is_file()
        assert train_head(llm, prompts, plan)["kind"] == kind


def test_a_run_goes_on_with_its_answers_and_its_draft_vocabulary(
    llm: LLM, prompts: TrainingPrompts, tmp_path: Path
) -> None:
    """Others may have changed the shared folder meanwhile, and a time limit may have left prompts open."""
    shared, plan = tmp_path / "shared", plan_of("medusa", tmp_path / "head", draft_vocab=5)
    plan = replace(plan, cache=shared)
    with pytest.raises(KeyboardInterrupt):
        train_head(llm, prompts, plan, stop_at(9, interrupt))
    before = np.load(tmp_path / "head" / "draft_vocab.npy")
    file = shared / "answers" / "answers.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: len(lines) // 2]))
    notes = list[str]()
    card = train_head(llm, prompts, plan, note=notes.append)
    assert card["training"]["answers"] + card["held_out"]["answers"] == len(lines) // 2
    assert not any("not answered" in note for note in notes)
    assert np.array_equal(np.load(tmp_path / "head" / "draft_vocab.npy"), before)
    with pytest.raises(UsageError, match="another draft_vocab"):
        train_head(llm, prompts, replace(plan, draft_vocab=6))


@pytest.mark.parametrize("kind", sorted({*ALL_KINDS} - {"mtp"}))  # which writes another file
def test_a_batch_without_a_token_to_draft_teaches_nothing(kind: str, tmp_path: Path) -> None:
    """A prompt can be longer than what of a sequence is trained on."""
    target, n = ToyTarget(8, seed=3, layers=4, width=64), 6
    plan = plan_of(kind, tmp_path, width=64)
    recipe = make_recipe(target, plan, DraftVocabulary(np.arange(8), 8))
    table = embedding_of(target)
    weights = {
        name: torch.nn.Parameter(value, requires_grad=name not in recipe.frozen)
        for name, value in recipe.weights(target.output_head(), table).items()
    }
    batch = TrainingBatch(
        torch.arange(n),
        torch.zeros(n, len(recipe.layer_ids), 64),
        torch.zeros(n, dtype=torch.long),
        torch.zeros(n, 3, dtype=torch.long),
        torch.zeros(n, 3),
        torch.zeros(n),
    )
    loss = recipe.loss(recipe.network(weights), batch, lambda tokens: table[tokens])
    loss.backward()
    assert float(loss.detach()) == 0.0
    grads = [value.grad for value in weights.values() if value.grad is not None]
    assert not any(grad.any() for grad in grads)


def test_a_full_disk_is_told_and_leaves_the_checkpoint_before(
    llm: LLM, prompts: TrainingPrompts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_head(llm, prompts, plan_of("medusa", tmp_path), stop_at(3, interrupt))
    before = (tmp_path / CHECKPOINT).read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("torch.save", full)
        with pytest.raises(PacelineError, match="No space left on device"):
            train_head(llm, prompts, plan_of("medusa", tmp_path))
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    assert train_head(llm, prompts, plan_of("medusa", tmp_path))["acceptance"]["length"] > 1.0
