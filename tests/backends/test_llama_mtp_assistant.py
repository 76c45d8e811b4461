"""Gemma 4's assistant drafts what llama.cpp's own driver does, from the target's cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from assistants import AssistantWorld
from command_line import command
from gguf_architectures import write_architecture
from gguf_files import rewritten
from mtp_driver import ROUNDING, Context
from paceline.backends.llama_cpp import LlamaTarget
from paceline.backends.llama_cpp.mtp_assistant import AssistantDraft
from paceline.models import zoo
from paceline.models.headers.gguf_writer import metadata_field
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.interfaces import NO_OUTPUTS
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain
from rows import table

TEXT = [7, 3, 9, 3, 7, 1, 0, 2, 11, 5, 40, 41]
OTHER = [5, 11, 2, 0, 90, 91, 92]
DRAFTED = [60, 61, 62]
TREE = DraftTree((60, 61, 63, 64, 65), (ROOT, 0, ROOT, 2, 0), (0.5,) * 5, ("test",) * 5)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("gemma4")
    assistant = write_architecture(folder / "mtp-gemma4.gguf", "gemma4-assistant", seed=1)
    return write_architecture(folder / "gemma4.gguf", "gemma4"), assistant


class World(AssistantWorld):
    def __init__(self, files: tuple[Path, Path]) -> None:
        target = LlamaTarget(
            files[0], n_ctx=64, threads=1, sessions=2, cache_type="f32", flash_attention=False,
            kernels=False, mtp=True,
        )  # fmt: skip
        draft = target.open_mtp(files[1])
        assert isinstance(draft, AssistantDraft)
        super().__init__(target, draft)

    def expected(self, text: Sequence[int], drafted: Sequence[int]) -> np.ndarray:
        """The rows of the root and of drafted tokens, by common_speculative_impl_draft_mtp."""
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


def close(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool(np.abs(one - other).max() < ROUNDING)


def test_chains_and_trees_are_the_drivers(world: World) -> None:
    _reading, drafting = world.begin(TEXT)
    assert drafting.is_ready
    assert close(world.rows(drafting, chain(DRAFTED, "test")), world.expected(TEXT, DRAFTED))
    drafting.discard_tree()
    rows = world.rows(drafting, TREE)
    for node in range(len(TREE)):
        assert close(rows[node + 1], world.expected(TEXT, TREE.path_tokens(node))[-1])


@pytest.mark.parametrize("accepted", [[], [0], [0, 1]])
def test_drafts_after_a_step_see_the_accepted_tokens_only(world: World, accepted: list[int]) -> None:
    reading, drafting = world.begin(TEXT)
    world.rows(drafting, chain(DRAFTED, "test"))
    out = world.target.forward([(reading, chain(DRAFTED, "test"))], world.want)[0]
    reading.commit(accepted, 80)
    drafting.extend([*DRAFTED[: len(accepted)], 80])
    assert not drafting.is_ready
    drafting.observe(out.features.start, out.features.hidden[: 1 + len(accepted)])
    assert drafting.is_ready
    text = [*TEXT, *DRAFTED[: len(accepted)], 80]
    assert close(world.rows(drafting, chain([9], "test")), world.expected(text, [9]))


def test_two_sessions_together_have_the_rows_of_each_alone(world: World) -> None:
    texts, trees = (TEXT, OTHER), (chain(DRAFTED, "test"), EMPTY)
    pairs = [world.begin(text) for text in texts]
    batch = [(drafting, tree) for (_, drafting), tree in zip(pairs, trees, strict=True)]
    for out, text, tree in zip(world.draft.forward(batch, NO_OUTPUTS), texts, trees, strict=True):
        assert close(table(out, tree), world.expected(text, tree.tokens))


def test_a_new_context_of_the_target_is_read_from_then_on(world: World) -> None:
    world.begin(OTHER)[0].close()
    world.target.renew_context()
    reading, drafting = world.begin(TEXT)
    assert close(world.rows(drafting, EMPTY), world.expected(TEXT, []))
    reading.close()
    drafting.close()
    drafting.rewind(3)
    again = world.begin(TEXT)
    world.draft.reopen(drafting, again[0])
    drafting.extend(TEXT)
    assert not drafting.is_ready
    drafting.observe(len(TEXT) - 2, again[1]._state[None, None])
    assert close(world.rows(drafting, EMPTY), world.expected(TEXT, []))


def test_the_text_is_that_of_plain_decoding(files: tuple[Path, Path]) -> None:
    def answer(draft: Path | None, **settings: Any) -> list[int]:
        with paceline.load(files[0], draft, threads=1, n_ctx=96, **settings) as llm:
            return [list(llm.generate(TEXT, max_tokens=24, ignore_eos=True).tokens) for _ in range(2)][-1]

    plain = answer(None, drafters="none")
    for width in (1, 3):
        assert answer(files[1], drafters="mtp", policy="fixed", n_draft=3, width=width) == plain


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


def test_each_of_the_two_files_says_that_the_other_is_needed(files: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match="give their model"):
        paceline.load(files[1], threads=1)
    with pytest.raises(UsageError, match="are in a file of their own"):
        paceline.load(files[0], None, "mtp", threads=1)


def test_the_check_opens_both(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    done = command(capsys, "check", *files)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("mtp head: it fits: gemma4-assistant ")
    assert command(capsys, "check", zoo.target_path(), files[1]).code == 3
