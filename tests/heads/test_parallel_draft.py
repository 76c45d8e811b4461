"""A parallel draft: one pass of the draft model for all depths, and exact output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from decoding import decoded
from paceline.backends.toy import ToyTarget
from paceline.drafters.head import DraftVocabDrafter
from paceline.heads.parallel_draft import ParallelDraft
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import Budget, RequiredOutputs
from paceline.speculative.tree import DraftTree, chain

V, MASK, DEPTH = 6, 5, 3


def parallel(n_vocab: int = V, depth: int = DEPTH, **draft: Any) -> ParallelDraft:
    return ParallelDraft(Path("pard"), ToyTarget(n_vocab, seed=1, **draft), min(MASK, n_vocab - 1), depth)


def rows_of(text: Sequence[int]) -> list[Any]:
    """The rows of the draft model behind a text and masks."""
    model = ToyTarget(V, seed=1)
    session = model.open()
    session.extend(text)
    (out,) = model.forward([(session, chain([MASK] * (DEPTH - 1), "mask"))], RequiredOutputs())
    return [out.logits(row) for row in range(DEPTH)]


def test_a_nodes_row_is_that_of_its_depth() -> None:
    draft = parallel()
    session = draft.open()
    session.extend([1, 2, 3])
    tree = DraftTree((1, 2, 3, 4), (-1, -1, 0, 2), (0.5,) * 4, ("x",) * 4)
    (out,) = draft.forward([(session, tree)], RequiredOutputs())
    expected = rows_of([1, 2, 3])
    for row, depth in enumerate((0, 1, 1, 2, 2)):  # the last one is deeper than a pass
        assert np.array_equal(out.logits(row), expected[depth])
    session.commit([0, 2], 5)
    (out,) = draft.forward([(session, chain([], "x"))], RequiredOutputs())
    assert np.array_equal(out.logits(0), rows_of([1, 2, 3, 1, 3, 5])[0])


def test_a_draft_takes_one_pass_of_the_draft_model() -> None:
    draft, passes = parallel(), list[int]()
    draft.inner.on_forward = lambda rows, *_: passes.append(rows)
    _, steps = decoded(ToyTarget(V), DraftVocabDrafter(draft), (1, 2, 3), 30, Budget(9, 9))
    drafted = [step for step in steps if step.tree.tokens]
    assert max(len(step.tree) for step in drafted) == DEPTH  # no longer than a pass
    assert len(passes) <= len(steps)


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    target = {"name": "another", "model": "", "layers": 1, "hidden": 8, "vocab": 99}
    config = {"paceline_head": "pard", "version": 1, "draft": "d", "mask_token_id": 3, "depth": 4}
    config |= {"target": target}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="is a draft for another"):
        paceline.load("toy:", tmp_path, "pard")
    (tmp_path / "config.json").write_text(json.dumps(config | {"mask_token_id": 99}))
    with pytest.raises(ModelError, match="incomplete"):
        paceline.load("toy:", tmp_path, "pard")
