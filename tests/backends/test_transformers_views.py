"""Views of a transformers model: parts of it that draft for the whole, on its own cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from decoding import decoded
from hf_models import DEVICE, folder_of
from paceline.backends.transformers.opener import open_engine
from paceline.backends.transformers.target import HfTarget
from paceline.backends.transformers.view import layers_of
from paceline.backends.views import ModelView, parse_view
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import Budget, RequiredOutputs
from paceline.speculative.tree import EMPTY, ROOT, DraftTree
from rows import begun, rows_of, text_rows

PROMPT = [5, 9, 14, 5, 9, 14, 20, 33, 5, 9, 14, 20]
FORK = DraftTree((7, 8, 9, 7), (ROOT, 0, 0, ROOT), (0.5,) * 4, ("test",) * 4)
KINDS = ("llama", "gemma3_text", "gpt2", "qwen3_moe", "falcon")


@pytest.fixture(scope="module", params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HfTarget]:
    target = open_engine(
        folder_of(request.param, tmp_path_factory.mktemp("views")), n_ctx=128, device=DEVICE, sessions=2
    )
    yield target
    target.close()


def viewed(target: HfTarget, words: str) -> ModelView:
    view = parse_view(f"view:{words}", target.layers)
    assert view is not None
    return view


@pytest.mark.parametrize("words", ["exit=2", "attention=1,feed_forward=1", "feed_forward=0"])
def test_whatever_a_view_skips_the_text_is_plain_text(target: HfTarget, words: str) -> None:
    view = target.view(viewed(target, words))
    plain, _ = decoded(target, NoDrafter(), PROMPT, 40, ignore_eos=True)
    target.forget()
    drafter, budget = ModelDrafter(view, target.vocab.size), Budget(4, 8, width=2)
    drafted, steps = decoded(target, drafter, PROMPT, 40, budget, ignore_eos=True)
    assert drafted == plain
    assert any(step.drafted for step in steps)


def test_beside_its_target_a_view_computes_nothing_of_the_text(target: HfTarget) -> None:
    view = target.view(ModelView(2))
    whole = begun(target, PROMPT)
    target.forward([(whole, FORK)], RequiredOutputs())
    whole.commit([0, 2], 11)
    session = view.open(whole)
    session.extend([*PROMPT, 7, 9, 11])
    assert session.pending_tokens == 0
    out = view.forward([(session, FORK)], RequiredOutputs())[0]
    assert out.computed == 1 + len(FORK)
    # What the view left behind the text is not seen by the whole model, and what it said is its own.
    rows = rows_of(target, whole, FORK)
    whole.close()
    target.forget()
    assert np.abs(rows - text_rows(target, [*PROMPT, 7, 9, 11], FORK)).max() < 1e-4


def test_an_early_exit_beside_its_target_computes_the_rows_it_computes_alone(target: HfTarget) -> None:
    view = target.view(ModelView(2))
    alone = text_rows(view, PROMPT, FORK)
    whole = begun(target, PROMPT)
    before = text_rows(view, PROMPT, FORK, whole)  # the whole model has computed nothing yet
    target.forward([(whole, EMPTY)], RequiredOutputs())
    after = text_rows(view, PROMPT, FORK, whole)
    whole.close()
    assert np.abs(alone - before).max() < 1e-4
    assert np.abs(alone - after).max() < 1e-4


# The last linear layers of an attention and of a feed-forward block, by what transformers calls them.
LAST = {
    "llama": ("self_attn.o_proj", "mlp.down_proj"),
    "gpt2": ("attn.c_proj", "mlp.c_proj"),
    "bloom": ("self_attention.dense", "mlp.dense_4h_to_h"),
    "falcon": ("self_attention.dense", "mlp.dense_4h_to_h"),
    "mpt": ("attn.out_proj", "ffn.down_proj"),
    "opt": ("self_attn.out_proj", "fc2"),
    "gpt_neo": ("attn.attention.out_proj", "mlp.c_proj"),
    "gpt_neox": ("attention.dense", "mlp.dense_4h_to_h"),
}


@pytest.mark.parametrize("kind", LAST)
@pytest.mark.parametrize("words", ["exit=2", "attention=1", "feed_forward=1"])
def test_a_view_says_what_the_model_says_whose_blocks_add_nothing(
    kind: str, words: str, tmp_path: Path
) -> None:
    import torch

    target = open_engine(folder_of(kind, tmp_path), n_ctx=64, device=DEVICE)
    view = viewed(target, words)
    if (kind, words) == ("opt", "feed_forward=1"):
        with pytest.raises(UsageError, match="cannot be skipped one by one; skip whole layers"):
            target.view(view)
        return
    reduced = text_rows(target.view(view), PROMPT)
    decoder = target._model.get_decoder()
    kept = view.active_blocks(target.layers)
    with torch.inference_mode():
        for at, layer in enumerate(layers_of(decoder)[1]):
            for part, left in zip(LAST[kind], kept, strict=True):
                if at not in left:
                    for weight in layer.get_submodule(part).parameters():
                        weight.zero_()
    target.forget()
    whole = text_rows(target, PROMPT)
    assert np.abs(reduced - whole).max() < 1e-4
    assert np.abs(whole).max() > 1e-2


def idle(target: HfTarget, layer: int) -> None:
    """Make a layer add nothing to what goes through it."""
    import torch

    with torch.inference_mode():
        for name, weight in target._model.get_decoder().layers[layer].named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()


def test_hidden_states_tell_which_layer_does_nothing(tmp_path: Path) -> None:
    target = open_engine(folder_of("llama", tmp_path, num_hidden_layers=5), n_ctx=64, device=DEVICE)
    idle(target, 3)
    found = target.search_skipped_layers(PROMPT, 4, 9)
    assert found[0] == {3}
    assert [len(layers) for layers in found] == [1, 2, 3]  # never the first and the last
    assert all(layers <= {1, 2, 3} and 3 in layers for layers in found)
