"""Gemma 4's assistant drafts what llama.cpp's own driver does, from the target's cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import paceline
from assistants import OTHER, TEXT, AssistantTests, AssistantWorld
from gguf_architectures import write_architecture
from gguf_files import rewritten
from mtp_driver import ROUNDING, Context
from paceline.backends.llama_cpp import LlamaTarget
from paceline.backends.llama_cpp.mtp_assistant import AssistantDraft
from paceline.models.headers.gguf_writer import metadata_field
from paceline.speculative.errors import ModelError


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("gemma4")
    assistant = write_architecture(folder / "mtp-gemma4.gguf", "gemma4-assistant", seed=1)
    return write_architecture(folder / "gemma4.gguf", "gemma4"), assistant


class World(AssistantWorld):
    rounding = ROUNDING

    def __init__(self, files: tuple[Path, Path]) -> None:
        target = LlamaTarget(
            files[0], n_ctx=64, threads=1, sessions=2, cache_type="f32", flash_attention=False,
            kernels=False, mtp=True,
        )  # fmt: skip
        draft = target.open_mtp(files[1])
        assert isinstance(draft, AssistantDraft)
        super().__init__(target, draft)

    def expected(self, text: Sequence[int], drafted: Sequence[int]) -> np.ndarray:
        """By common_speculative_impl_draft_mtp."""
        rows, root = list[np.ndarray](), len(text) - 1
        with closing(Context(self.target, mtp=False)) as target:
            layers = self.draft._model.pointer
            with closing(Context(self.target, mtp=True, layers=layers, other=target)) as context:
                states = target.decode(text[:-1])[1][-1:]
                for token in (text[-1], *drafted):
                    logits, states = context.decode([token], states, root)
                    rows.append(logits[-1])
        return np.stack(rows)


@pytest.fixture
def world(files: tuple[Path, Path]) -> Iterator[World]:
    with closing(World(files)) as opened:
        yield opened


class TestAssistant(AssistantTests): ...


def test_a_new_context_of_the_target_is_read_from_then_on(world: World) -> None:
    world.begin(OTHER)[0].close()
    world.target.renew_context()
    assert world.drafts(world.begin(TEXT)[1], TEXT, [])


def test_an_assistant_of_another_model_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    key = "gemma4-assistant.attention.head_count_kv"
    odd = rewritten(
        files[1], tmp_path / "odd.gguf", lambda fields, _: fields.update({key: metadata_field(key, 1)})
    )
    other = write_architecture(tmp_path / "qwen35.gguf", "qwen35", next_token_heads=1)
    for target, draft in ((files[0], odd), (other, files[1])):
        for drafters in ("auto", "mtp"):
            with pytest.raises(ModelError, match="of another model than"):
                paceline.load(target, draft, drafters, threads=1)
