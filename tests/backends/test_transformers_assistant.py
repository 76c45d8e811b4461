"""Gemma 4's assistant drafts what transformers' own generator does, from the target's cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from assistants import TEXT, TREE, AssistantTests, AssistantWorld
from gguf_architectures import write_architecture
from hf_models import DEVICE, LIKE_LLAMA, folder_of, tokenizer_of, with_large_weights
from paceline.backends.transformers.mtp import HfAssistantDraft
from paceline.backends.transformers.target import HfTarget
from paceline.speculative.errors import ModelError, PacelineError, UsageError
from paceline.speculative.interfaces import NO_OUTPUTS
from paceline.speculative.tree import chain

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WINDOW = 8
GEMMA4: dict[str, Any] = {
    **LIKE_LLAMA, "head_dim": 8, "global_head_dim": 16, "num_hidden_layers": 4, "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "tie_word_embeddings": True,
    "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "num_kv_shared_layers": 0,
}  # fmt: skip
# Small models of the family: their last layers have no cache, as the assistant's.
SHARING = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96, "num_kv_shared_layers": 2}
ORDERED = {"use_ordered_embeddings": True, "num_centroids": 8, "centroid_intermediate_top_k": 3}


def write_target(folder: Path, **changes: Any) -> Path:
    config = transformers.Gemma4TextConfig(**{**GEMMA4, **changes})
    torch.manual_seed(0)
    with_large_weights(transformers.Gemma4ForCausalLM(config)).save_pretrained(folder)
    tokenizer_of().save_pretrained(folder)
    return folder


def write_assistant(folder: Path, whole: dict[str, Any] | None = None, **changes: Any) -> Path:
    text = {**GEMMA4, "hidden_size": 16, "num_hidden_layers": 2, "layer_types": GEMMA4["layer_types"][:2]}
    text |= {"num_kv_shared_layers": 2, **changes}
    config = transformers.Gemma4AssistantConfig(
        **{"text_config": transformers.Gemma4TextConfig(**text), "backbone_hidden_size": 32, **(whole or {})}
    )
    torch.manual_seed(1)
    model = with_large_weights(transformers.Gemma4AssistantForCausalLM(config))
    if model.masked_embedding is not None:
        model.masked_embedding.token_ordering.copy_(torch.randperm(text["vocab_size"]))
    model.save_pretrained(folder)
    return folder


FAMILY: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "large": ({}, {}), "small": (SHARING, ORDERED),
}  # fmt: skip


@pytest.fixture(scope="module", params=FAMILY)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder, (target, assistant) = tmp_path_factory.mktemp("gemma4"), FAMILY[request.param]
    return write_target(folder / "target", **target), write_assistant(folder / "assistant", assistant)


class World(AssistantWorld):
    def __init__(self, files: tuple[Path, Path]) -> None:
        target = HfTarget(files[0], n_ctx=64, sessions=2, device=DEVICE, dtype="float32")
        draft = target.open_mtp(files[1])
        assert isinstance(draft, HfAssistantDraft)
        super().__init__(target, draft)

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is untyped here
    def expected(self, text: Sequence[int], drafted: Sequence[int]) -> np.ndarray:
        """By SinglePositionMultiTokenCandidateGenerator."""
        model, assistant, rows = self.target._model, self.draft.model, list[np.ndarray]()
        out = model(
            input_ids=torch.tensor([text[:-1]], device=DEVICE), use_cache=False,
            output_hidden_states=True, return_shared_kv_states=True,
        )  # fmt: skip
        state = out.hidden_states[-1][:, -1:]
        for token in (text[-1], *drafted):
            embedded = model.get_input_embeddings()(torch.tensor([[token]], device=DEVICE))
            step = assistant(
                inputs_embeds=torch.cat([embedded, state], dim=-1),
                attention_mask=torch.ones((1, len(text)), dtype=torch.long, device=DEVICE),
                position_ids=torch.tensor([[len(text) - 1]], device=DEVICE),
                shared_kv_states=out.shared_kv_states,
                use_cache=False,
            )
            state = step.last_hidden_state
            rows.append(step.logits[0, 0].cpu().numpy())
        return np.stack(rows)

    def are_close(self, rows: np.ndarray, others: np.ndarray) -> bool:
        """Compare the drafted tokens' logits; those of others are the least of a pass less one."""
        drafted = others > others.min(-1, keepdims=True)
        return super().are_close(rows * drafted, others * drafted) and bool(
            (rows[~drafted] < rows.max()).all()
        )


@pytest.fixture
def world(files: tuple[Path, Path]) -> Iterator[World]:
    with closing(World(files)) as opened:
        yield opened


class TestAssistant(AssistantTests): ...


def test_greedy_drafts_are_those_of_transformers_generator(world: World) -> None:
    model, assistant = world.target._model, world.draft.model
    settings = transformers.GenerationConfig(max_length=64)
    generator = transformers.generation.candidate_generator.SinglePositionMultiTokenCandidateGenerator(
        assistant, model.get_input_embeddings(), settings
    )
    generator.num_assistant_tokens = 4
    with torch.inference_mode():
        out = model(input_ids=torch.tensor([TEXT[:-1]], device=DEVICE), **generator.model_kwargs_overrides)
    text = torch.tensor([TEXT], device=DEVICE)
    expected = generator.get_candidates(text, {}, out, False, 0)[0][0, len(TEXT) :].tolist()
    _reading, drafting = world.begin(TEXT)
    drafted = list[int]()
    while len(drafted) < 4:
        out = world.draft.forward([(drafting, chain(drafted, "test"))], NO_OUTPUTS)[0]
        drafted.append(out.argmax(len(drafted)))
    assert drafted == expected


def test_drafts_see_a_branch_that_was_moved_in_the_cache(world: World) -> None:
    reading, drafting = world.begin(TEXT)
    out = world.target.forward([(reading, TREE)], world.want)[0]
    reading.commit([2, 3], 80)
    drafting.extend([63, 64, 80])
    drafting.observe(out.features.start, out.features.hidden[[0, 3, 4]])
    assert world.drafts(drafting, [*TEXT, 63, 64, 80], [9])


def test_costs_can_be_measured_without_a_target(world: World) -> None:
    drafting = world.draft.open()
    drafting.extend(TEXT)
    assert np.isfinite(world.rows(drafting, TREE)).all()


ODD: dict[str, Any] = {
    "hidden states": {"whole": {"backbone_hidden_size": 48}},
    "vocabulary": {"vocab_size": 95},
    "heads of keys": {"num_key_value_heads": 1},
    "size of keys": {"global_head_dim": 8},
}


@pytest.mark.parametrize("odd", ODD)
def test_an_assistant_of_another_model_is_refused(odd: str, files: tuple[Path, Path], tmp_path: Path) -> None:
    draft = write_assistant(tmp_path, **ODD[odd])
    with pytest.raises(ModelError, match="of another model than"):
        paceline.load(files[0], draft, threads=1, device=DEVICE)


def test_a_model_without_such_a_cache_has_no_assistant(files: tuple[Path, Path], tmp_path: Path) -> None:
    whole = write_target(tmp_path / "whole", layer_types=["full_attention"] * 4)
    for target in (folder_of("gemma3_text", tmp_path), folder_of("falcon_h1", tmp_path), whole):
        with pytest.raises(ModelError, match="of another model than"):
            paceline.load(target, files[1], threads=1, device=DEVICE)
    for other in ("toy:layers=3", folder_of("llama", tmp_path)):
        with pytest.raises(UsageError, match=r"MTP"):
            paceline.load(other, "view:mtp", threads=1)
    draft = write_assistant(tmp_path / "draft", layer_types=["full_attention"] * 2)
    with pytest.raises(ModelError, match="of another model than"):
        paceline.load(whole, draft, threads=1, device=DEVICE)


def test_files_and_folders_are_not_mixed(files: tuple[Path, Path], tmp_path: Path) -> None:
    target = write_architecture(tmp_path / "gemma4.gguf", "gemma4")
    draft = write_architecture(tmp_path / "mtp-gemma4.gguf", "gemma4-assistant")
    for pair in ((target, files[1]), (files[0], draft)):
        with pytest.raises(UsageError, match="for targets in"):
            paceline.load(*pair, threads=1)
    with pytest.raises(PacelineError, match="cannot be loaded"):
        paceline.load(files[0], f"hf:{draft}", threads=1, device=DEVICE)
