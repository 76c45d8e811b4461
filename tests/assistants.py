"""A target with its assistant (MTP layers in a file of their own), of any backend, and its tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from command_line import command
from paceline.models import zoo
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import NO_OUTPUTS, RequiredOutputs
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain
from rows import begun, table

TEXT = [7, 3, 9, 3, 7, 5, 2, 11, 5, 40, 41, 20, 21, 22]  # longer than the window
OTHER = [5, 11, 2, 90, 91, 92]
DRAFTED = [60, 61, 62]
TREE = DraftTree((60, 61, 63, 64, 65), (ROOT, 0, ROOT, 2, 0), (0.5,) * 5, ("test",) * 5)


class AssistantWorld:
    rounding = 1e-4

    def __init__(self, target: Any, draft: Any) -> None:
        self.target, self.draft = target, draft
        self.want = RequiredOutputs(layers=draft.config.layer_ids)

    def close(self) -> None:
        self.draft.close()
        self.target.close()

    def begin(self, text: Sequence[int], drafting: Any = None) -> tuple[Any, Any]:
        """Sessions of a text whose root is its last token. drafting: one that was closed."""
        reading = begun(self.target, text[:-1])
        out = self.target.forward([(reading, EMPTY)], self.want)[0]
        reading.commit((), text[-1])
        if drafting is None:
            drafting = self.draft.open(reading)
        else:
            self.draft.reopen(drafting, reading)
        drafting.extend(text)
        assert not drafting.is_ready
        drafting.observe(out.features.start, out.features.hidden)
        assert drafting.is_ready
        return reading, drafting

    def rows(self, session: Any, tree: DraftTree) -> np.ndarray:
        return table(self.draft.forward([(session, tree)], NO_OUTPUTS)[0], tree)

    def expected(self, text: Sequence[int], drafted: Sequence[int]) -> np.ndarray:
        """The rows of the root and of drafted tokens, by the engine's own driver."""
        raise NotImplementedError

    def are_close(self, rows: np.ndarray, others: np.ndarray) -> bool:
        return rows.shape == others.shape and bool((np.abs(rows - others) < self.rounding).all())

    def drafts(self, drafting: Any, text: Sequence[int], drafted: Sequence[int]) -> bool:
        """Whether the rows of a chain are the driver's."""
        return self.are_close(self.rows(drafting, chain(drafted, "test")), self.expected(text, drafted))


class AssistantTests:
    """A module that derives from it has the fixtures `files` and `world`."""

    def test_chains_and_trees_are_the_drivers(self, world: AssistantWorld) -> None:
        _reading, drafting = world.begin(TEXT)
        assert world.drafts(drafting, TEXT, DRAFTED)
        drafting.discard_tree()
        rows = world.rows(drafting, TREE)
        for node in range(len(TREE)):
            assert world.are_close(rows[[node + 1]], world.expected(TEXT, TREE.path_tokens(node))[-1:])

    @pytest.mark.parametrize("accepted", [[], [0], [0, 1]])
    def test_drafts_after_a_step_see_accepted_tokens_only(
        self, world: AssistantWorld, accepted: list[int]
    ) -> None:
        reading, drafting = world.begin(TEXT)
        world.rows(drafting, chain(DRAFTED, "test"))
        out = world.target.forward([(reading, chain(DRAFTED, "test"))], world.want)[0]
        reading.commit(accepted, 80)
        new = [*DRAFTED[: len(accepted)], 80]
        drafting.extend(new)
        assert not drafting.is_ready
        drafting.observe(out.features.start, out.features.hidden[: 1 + len(accepted)])
        assert drafting.is_ready
        assert world.drafts(drafting, [*TEXT, *new], [9])

    def test_two_sessions_together_have_the_rows_of_each_alone(self, world: AssistantWorld) -> None:
        texts, trees = (TEXT, OTHER), (chain(DRAFTED, "test"), EMPTY)
        pairs = [world.begin(text) for text in texts]
        batch = [(drafting, tree) for (_, drafting), tree in zip(pairs, trees, strict=True)]
        for out, text, tree in zip(world.draft.forward(batch, NO_OUTPUTS), texts, trees, strict=True):
            assert world.are_close(table(out, tree), world.expected(text, tree.tokens))

    def test_a_closed_session_reads_the_cells_of_the_next_one(self, world: AssistantWorld) -> None:
        reading, drafting = world.begin(OTHER)
        reading.close()
        drafting.close()
        drafting.rewind(1)
        world.begin(TEXT, drafting)
        assert world.drafts(drafting, TEXT, [])

    def test_the_text_is_that_of_plain_decoding(self, files: tuple[Path, Path]) -> None:
        def answer(draft: Path | None, **settings: Any) -> list[int]:
            with paceline.load(files[0], draft, threads=1, n_ctx=96, **settings) as llm:
                done = [llm.generate(TEXT, max_tokens=24, ignore_eos=True) for _ in range(2)][-1]
                assert (done.stats.drafted > 0) == ("policy" in settings)
                return list(done.tokens)

        plain = answer(None, drafters="none")
        for width in (1, 3):
            assert answer(files[1], drafters="mtp", policy="fixed", n_draft=3, width=width) == plain
        assert answer(files[1], policy="fixed") == plain

    def test_each_of_the_two_says_that_the_other_is_needed(self, files: tuple[Path, Path]) -> None:
        with pytest.raises(UsageError, match="give their model"):
            paceline.load(files[1], threads=1)
        with pytest.raises(UsageError, match="are in a file of their own"):
            paceline.load(files[0], None, "mtp", threads=1)

    def test_the_check_opens_both(self, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
        done = command(capsys, "check", *files)
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("mtp head: it fits: gemma4")
        assert command(capsys, "check", zoo.target_path(), files[1]).code == 3
