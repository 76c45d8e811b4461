"""Sessions of llama.cpp share one pool of cells: texts are those of each alone; prefixes are found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from architectures import write_gemma2
from paceline.backends.llama_cpp.session import LlamaSession
from paceline.backends.llama_cpp.target import LlamaTarget
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import chain
from rows import rows_of

HEADER, LONG = list(range(50, 60)), list(range(100, 180))


@pytest.fixture
def target(unrounded: Path) -> Iterator[LlamaTarget]:
    opened = LlamaTarget(unrounded, n_ctx=256, sessions=3)
    yield opened
    opened.close()


def read(target: LlamaTarget, tokens: list[int]) -> tuple[LlamaSession, int]:
    """A session that has prefilled them, and how many of them were in the cache already."""
    session = target.open()
    session.extend(tokens)
    cached = len(tokens) - 1 - session.pending_tokens
    target.forward([(session, session.pending_tokens)], RequiredOutputs())
    return session, cached


def test_what_shares_a_header_takes_it_along_and_leaves_the_long_text_where_it_is(
    target: LlamaTarget,
) -> None:
    long_text, cached = read(target, [*HEADER, *LONG, 1])
    long_text.close()
    assert cached == 0
    short, cached = read(target, [*HEADER, 7, 8, 9, 1])
    short.close()
    assert cached == len(HEADER)
    again, cached = read(target, [*HEADER, *LONG, 2, 3])
    again.close()
    assert cached == len(HEADER) + len(LONG)


def test_a_prefix_is_shared_with_a_session_in_use_whatever_becomes_of_that(target: LlamaTarget) -> None:
    first, _ = read(target, [*HEADER, *LONG, 1])
    said = rows_of(target, first)
    target.forward([(first, chain([4, 5, 6], "test"))], RequiredOutputs())  # drafted cells are not part of it
    second, cached = read(target, [*HEADER, *LONG, 1])
    assert cached == len(HEADER) + len(LONG)
    first.commit((0,), 9)
    first.close()
    target.forget()
    third, cached = read(target, [*HEADER, 3, 4])
    assert cached == len(HEADER)
    assert (rows_of(target, second) == said).all()
    third.close()
    second.close()


def fresh_row(path: Path, tokens: list[int]) -> np.ndarray:
    with closing(LlamaTarget(path, n_ctx=256, threads=1)) as target:
        return np.array(rows_of(target, read(target, tokens)[0])[0])


def test_a_prefix_is_taken_whole_so_that_its_cells_are_in_the_order_of_the_text(unrounded: Path) -> None:
    """Two texts with one prefix are computed together; a third has that prefix and goes on as the first."""
    with closing(LlamaTarget(unrounded, n_ctx=256, sessions=3)) as target:
        first, second = target.open(), target.open()
        first.extend([*HEADER, *LONG, 1])
        second.extend([*HEADER, 7, 8, 1])
        target.forward([(first, first.pending_tokens), (second, second.pending_tokens)], RequiredOutputs())
        second.close()
        third, cached = read(target, [*HEADER, *LONG, 5, 6])
        assert cached == len(HEADER) + len(LONG)
        row = rows_of(target, third)[0]
        first.close()
        third.close()
    if target.caps.equal_rows:
        assert (row == fresh_row(unrounded, [*HEADER, *LONG, 5, 6])).all()


def test_cells_that_a_window_left_behind_and_others_took_are_computed_again(tmp_path: Path) -> None:
    path = write_gemma2(tmp_path / "windowed.gguf")
    with closing(LlamaTarget(path, n_ctx=64, sessions=2)) as target:
        begin = [3 + at % 90 for at in range(60)]
        short, _ = read(target, [9 + at % 50 for at in range(40)])
        long_text, _ = read(target, begin)
        short.close()
        other, _ = read(target, [70 - at % 60 for at in range(60)])  # of which some must go elsewhere
        other.close()
        long_text.close()
        again, cached = read(target, [*begin[:30], 8])
        assert cached == 0
        row = rows_of(target, again)[0]
        again.close()
    assert row == pytest.approx(fresh_row(path, [*begin[:30], 8]), abs=1e-3)
