"""A trunk of llama.cpp's cache holds the text that it says it holds, whatever became of who had it before."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.backends.llama_cpp.session import LlamaSession
from paceline.backends.llama_cpp.target import LlamaTarget
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import ROOT, DraftTree, chain
from rows import begun, rows_of, text_rows

TEXT = [7, 3, 9, 3, 7, 1, 0, 2, 11, 5]
TREE = DraftTree((1, 2, 3, 4, 2), (ROOT, 0, 0, ROOT, 3), (0.5,) * 5, ("test",) * 5)
# llama.cpp rounds passes of other shapes otherwise (tests/contract); a wrong cell moves rows by far more.
ROUNDING = 3e-4


@pytest.fixture(scope="module", params=[False, True], ids=["any shape", "one shape"])
def target(request: pytest.FixtureRequest, models: Path) -> Iterator[LlamaTarget]:
    opened = LlamaTarget(
        models / "target.gguf",
        n_ctx=128,
        threads=1,
        sessions=2,
        cache_type="f32",
        flash_attention=False,
        kernels=False,
        exact_rows=16 if request.param else 0,
    )
    yield opened
    opened.close()


def fresh(target: LlamaTarget, text: Sequence[int]) -> np.ndarray:
    target.forget()
    return np.array(text_rows(target, text)[0])


def cells(target: LlamaTarget, sequence: int) -> int:
    """The last position that the sequence has a cell at."""
    return int(target.cache._cpp.llama_memory_seq_pos_max(target.cache._memory, sequence))


def holds_only_what_it_says(target: LlamaTarget) -> None:
    for slot in target.cache.slots:
        assert cells(target, slot.sequence) == len(slot.cached) - 1
    assert target.cache.branches == [None] * len(target.cache.branches)
    for branch in range(len(target.cache.branches)):
        assert cells(target, len(target.cache.slots) + branch) == -1


def abandoned(target: LlamaTarget, text: Sequence[int], tree: DraftTree) -> None:
    """A session that is gone before it could give anything back."""
    session = begun(target, text)
    rows_of(target, session, tree)
    del session
    gc.collect()


@pytest.mark.parametrize("tree", [TREE, chain([4, 4, 4], "test")])
@pytest.mark.parametrize("text", [TEXT, [*TEXT, 6, 8], TEXT[:6], [5, 5, 5], [8, 8, 8, 4, 5]])
def test_a_trunk_that_was_abandoned_is_taken_without_drafted_cells(
    target: LlamaTarget, tree: DraftTree, text: list[int]
) -> None:
    expected = fresh(target, text)
    target.forget()
    other = begun(target, [8, 8])  # so that the abandoned one is all that is free; it lends its beginning
    rows_of(target, other)
    other.commit([], 8)
    abandoned(target, TEXT, tree)
    session = begun(target, text)
    holds_only_what_it_says(target)
    assert np.abs(rows_of(target, session)[0] - expected).max() < ROUNDING
    session.close()
    other.close()


def test_a_pass_that_is_interrupted_is_put_back(target: LlamaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = begun(target, TEXT), begun(target, TEXT[::-1])
    rows_of(target, first)
    first.commit([], 6)
    decode = target._decoder.batch.decode

    def interrupted(context: Any) -> int:
        decode(context)
        raise KeyboardInterrupt

    batches: list[list[tuple[LlamaSession, DraftTree | int]]] = [
        [(first, TREE), (second, 4)],
        [(second, TREE)],
    ]
    for batch in batches:
        monkeypatch.setattr(target._decoder.batch, "decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            target.forward(batch, RequiredOutputs())
        monkeypatch.undo()
        holds_only_what_it_says(target)
    assert (first.tokens, second.tokens) == ([*TEXT, 6], TEXT[::-1])
    with pytest.raises(AssertionError, match="before forward"):
        first.commit([0], 1)
    said = [rows_of(target, session)[0] for session in (first, second)]
    first.close()
    second.close()
    for row, text in zip(said, ([*TEXT, 6], TEXT[::-1]), strict=True):
        assert np.abs(row - fresh(target, text)).max() < ROUNDING
