"""`paceline train mtp`: a Llama's file gets an MTP layer, and the trained network is what llama.cpp runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs PyTorch")

import torch

from command_line import command
from gguf_architectures import write_architecture
from gguf_files import rewritten, split, write_llama
from paceline.backends.llama_cpp import LlamaTarget
from paceline.heads import session
from paceline.heads.config import TargetFacts
from paceline.models import zoo
from paceline.models.headers.gguf_file import GGUFFile
from paceline.models.headers.gguf_writer import metadata_field
from paceline.prepare.training.answers import Answer
from paceline.prepare.training.dataset import DraftVocabulary, make_batch
from paceline.prepare.training.features import TrainingFeatures, TrainingSequence
from paceline.prepare.training.mtp import MtpRecipe, add_mtp
from paceline.prepare.training.options import TrainingOptions
from paceline.prepare.training.recipe import Recipe
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import chain
from training_answers import write_lines

Capture = pytest.CaptureFixture[str]
TEXT = [int(token) for token in np.random.default_rng(0).integers(0, 256, 40)]
QUICK = ("--epochs", "2", "--batch-tokens", "256", "--depth", "2", "--sessions", "4", "-n", "16", "-t", "1")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not loud, so that products in 8 bits come close."""
    path = tmp_path_factory.mktemp("llama") / "model.gguf"
    return write_llama(path, spread=0.2, metadata={"llama.rope.freq_base": 500.0})


def with_mtp(source: Path, out: Path) -> Path:
    add_mtp(GGUFFile(source), out)
    return out


def logits_of(path: Path) -> np.ndarray:
    with closing(LlamaTarget(path, n_ctx=64, kernels=False)) as target, closing(target.open()) as text:
        text.extend(TEXT)
        (out,) = target.forward([(text, chain([1, 2], "test"))], RequiredOutputs())
        return np.stack([out.logits(row) for row in range(3)])


@pytest.mark.parametrize("embedded", [False, True])
def test_a_llama_with_a_layer_says_what_it_said(embedded: bool, llama: Path, tmp_path: Path) -> None:
    """The embedded one has Q8_0, and one matrix for embedding and output. Rows move as they are."""
    source = zoo.target_path() if embedded else llama
    out = with_mtp(source, tmp_path / "out.gguf")
    before, after = logits_of(source), logits_of(out)
    assert np.abs(after - before).max() < (0.02 if embedded else 0.001) * np.abs(before).max()
    old, new = GGUFFile(source), GGUFFile(out)
    for name, tensor in old.tensors.items():
        rows = [file.weights(file.tensors[name]).reshape(tensor.shape[-1], -1) for file in (old, new)]
        assert sorted(map(bytes, rows[0])) == sorted(map(bytes, rows[1])), name


def recipe_of(target: LlamaTarget) -> MtpRecipe:
    vocabulary = DraftVocabulary(np.arange(target.vocab.size), target.vocab.size)
    facts = TargetFacts("", "", target.layers, target.hidden_size, target.vocab.size)
    recipe = MtpRecipe(facts, None, vocabulary, TrainingOptions("mtp", Path(), depth=4))
    recipe.begin(target.path, None)
    return recipe


@pytest.fixture(scope="module", params=["mimo2", "qwen35"])
def target(
    request: pytest.FixtureRequest, llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaTarget]:
    """A file with other weights in its layer than those that it began with, as training writes them."""
    folder = tmp_path_factory.mktemp("mtp")
    if request.param == "mimo2":
        first = with_mtp(llama, folder / "first.gguf")
    else:
        first = write_architecture(folder / "first.gguf", "qwen35", next_token_heads=1)
    random = np.random.default_rng(1)
    with closing(LlamaTarget(first, n_ctx=128)) as source:
        recipe = recipe_of(source)
        weights = {
            name: value.numpy() * (1 + 0.2 * random.normal(size=value.shape)) + 0.02
            for name, value in recipe.weights(source.output_head(), None).items()
        }
        (folder / "out").mkdir()
        recipe.write(folder / "out", source, weights, {})
    with closing(LlamaTarget(folder / "out.gguf", n_ctx=128, mtp=True, kernels=False)) as opened:
        yield opened


def sequence(target: LlamaTarget, recipe: MtpRecipe) -> TrainingSequence:
    answer = Answer("", np.array(TEXT[:8], np.int32), np.array(TEXT[8:], np.int32), "length", True)
    return TrainingFeatures(target, [answer], (target.layers + 1,), 8)[0]


def test_the_network_computes_what_llama_cpp_does(target: LlamaTarget) -> None:
    """The logits behind a text, and behind three drafted tokens."""
    recipe, drafted, n = recipe_of(target), TEXT[20:23], 20
    one = sequence(target, recipe)
    network = recipe.network(recipe.weights(target.output_head(), None))
    table = torch.from_numpy(target.token_embeddings(range(target.vocab.size)))
    batch = make_batch([one], recipe.vocabulary, "cpu", len(TEXT))
    with torch.inference_mode():
        steps = recipe.steps(network, batch, lambda tokens: table[tokens], torch.tensor([n - 2]), 4)
        found = np.concatenate([network.logits(output).numpy() for output in steps])
    with closing(target.open_mtp()) as draft, closing(draft.open()) as text:
        text.extend(TEXT[:n])
        text.observe(0, one.hidden[: n - 1])
        (out,) = draft.forward([(text, chain(drafted, "mtp"))], RequiredOutputs())
        wanted = np.stack([out.logits(row) for row in range(4)])
    # Products in 8 bits there. A wrong order of embedding and state, or of heads, is off by more than all.
    assert np.linalg.norm(found - wanted) < 0.1 * np.linalg.norm(wanted)


def test_the_acceptance_is_that_of_a_session(target: LlamaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(target)
    monkeypatch.setitem(session.SESSIONS, recipe.network_class, session.EagleSession)
    weights = {name: value.numpy() for name, value in recipe.weights(target.output_head(), None).items()}
    table = target.token_embeddings(range(target.vocab.size))
    one = sequence(target, recipe)
    guesses = Recipe.acceptance(recipe, weights, table, [one], 3)
    assert recipe.acceptance(weights, table, [one], 3) == guesses


def test_a_trained_file_drafts_for_itself_and_is_trained_further(
    capsys: Capture, llama: Path, tmp_path: Path
) -> None:
    data = write_lines(tmp_path / "prompts.jsonl", *({"prompt": f"{k % 7} and {k}"} for k in range(40)))
    options = ("--data", data, "--held-out", "0.2", *QUICK)
    out, again = tmp_path / "with.dots.gguf", tmp_path / "again.gguf"
    done = command(capsys, "train", "mtp", "-m", llama, "-o", out, *options, "--json")
    assert done.code == 0, done.err
    card = done.json
    assert (card["kind"], card["path"], card["target"]["name"]) == ("mtp", str(out), "random")
    assert card["acceptance"]["length"] > 1.0
    run = ("run", "-p", "5 and 9", "-n", "24", "--ignore-eos", "-t", "1")
    plain = command(capsys, *run, "-m", out, "--draft", "none")
    drafted = command(capsys, *run, "-m", out, "--draft", "mtp")
    assert (drafted.code, drafted.out) == (0, plain.out), drafted.err
    done = command(capsys, "train", "mtp", "-m", out, "-o", again, *options)
    assert done.code == 0, done.err
    assert f"paceline run -m {again}" in done.err
    assert not [path for path in (tmp_path / "again").iterdir() if path.suffix == ".gguf"]


def test_models_that_cannot_have_a_layer_are_refused(capsys: Capture, llama: Path, tmp_path: Path) -> None:
    data = write_lines(tmp_path / "prompts.jsonl", {"prompt": "a"})

    def refused(model: Path, *words: str, out: Path = tmp_path / "out.gguf") -> None:
        done = command(capsys, "train", "mtp", "-m", model, "--data", data, "-o", out, *QUICK)
        assert (done.code != 0, done.out) == (True, "")
        assert [word for word in words if word not in done.err] == [], done.err
        assert len(done.err.splitlines()) == 1

    def scaled(fields: dict[str, bytes], _parts: Any) -> None:
        fields["x"] = metadata_field("llama.rope.scaling.factor", 2.0)

    (tmp_path / "taken.gguf").touch()
    refused(llama, "GGUF file", "-o OUT.gguf", out=tmp_path / "folder")
    refused(llama, "taken", "-o", out=tmp_path / "taken.gguf")
    refused(write_llama(tmp_path / "mix.gguf", experts=2), "Llama without biases")
    refused(rewritten(llama, tmp_path / "scaled.gguf", scaled), "rope.scaling.factor")
    (tmp_path / "parts").mkdir()
    refused(split(llama, tmp_path / "parts")[0], "several parts")
    refused(write_architecture(tmp_path / "m.gguf", "qwen3moe"), "no layers for multi-token prediction")
    mixture = write_architecture(tmp_path / "n.gguf", "qwen3next", next_token_heads=1)
    refused(mixture, "qwen3next has another kind")
    several = write_architecture(tmp_path / "s.gguf", "qwen35", next_token_heads=2)
    refused(several, "qwen35 has another kind, or several")
    refused(Path("toy:seed=3"), "no layers for multi-token prediction")
