"""Draft heads in GGUF files in a llama.cpp context, as beside a target on a GPU, compute what ours do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gguf_files import write_llama
from head_sidecars import VOCAB, WIDTH, random_head, write_sidecar
from paceline.backends.llama_cpp import LlamaTarget, binding, mtp_sidecar
from paceline.drafts import open_head
from paceline.heads.draft_base import MAX_BRANCHES
from paceline.speculative.interfaces import NO_OUTPUTS
from paceline.speculative.tree import EMPTY, ROOT, DraftTree
from rows import rows_of, table

N_CTX, CLOSE = 1024, 1e-3
TREE = DraftTree((5, 31, 63, 64, 65), (ROOT, 0, ROOT, 2, 0), (0.5,) * 5, ("test",) * 5)
STATES = np.random.default_rng(1).normal(size=(N_CTX, 3, WIDTH)).astype(np.float32)
TOKENS = np.random.default_rng(2).integers(0, VOCAB, N_CTX).tolist()


@pytest.fixture(scope="module", params=[("eagle3", []), ("block", []), ("block", [12, 0, 0, 0])], ids=str)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A head that we compute, and the same in a context of llama.cpp."""
    folder = tmp_path_factory.mktemp("sidecar")
    kind, sections = request.param
    fields: dict[str, Any] = {"rope__dimension_sections": sections or None}
    file = write_sidecar(folder / "h.gguf", *random_head(kind, drafts_all=False, lends=True), **fields)
    exact: dict[str, Any] = {"kernels": False, "cache_type": "f32", "flash_attention": False}
    path = write_llama(folder / "m.gguf", width=WIDTH, layers=3)
    with closing(LlamaTarget(path, n_ctx=N_CTX, sessions=3, **exact)) as target:
        head = open_head(file, target)
        draft: Any = mtp_sidecar.kind_of_draft(head)
        with closing(draft(target, head)) as moved:
            yield head, moved


def observe(session: Any, start: int = 0) -> None:
    session.observe(start, STATES[start : len(session.tokens) - 1])


def session_of(head: Any, n: int) -> Any:
    session = head.open()
    session.extend(TOKENS[:n])
    observe(session)
    return session


def tree_rows(head: Any, session: Any) -> np.ndarray:
    session.discard_tree()
    return rows_of(head, session, TREE)


def require_close(ours: np.ndarray, theirs: np.ndarray) -> None:
    finite = np.isfinite(ours)
    assert (finite == np.isfinite(theirs)).all()
    assert np.abs(ours[finite] - theirs[finite]).max() < CLOSE


@pytest.mark.parametrize("seed", range(3))
def test_rows_are_ours_whatever_is_drafted_accepted_and_rewound(pair: Any, seed: int) -> None:
    random, sessions = Random(seed), [session_of(head, 20) for head in pair]
    for _ in range(20):
        path = random.choice([[], [0], [0, 1], [2, 3]])
        step, size = random.choice(["commit", "extend", "prefill", "rewind"]), random.randrange(1, 5)
        for head, session in zip(pair, sessions, strict=True):
            if step == "commit":
                tree_rows(head, session)
                session.commit(path, 77)
            elif step == "rewind":
                text = [*session.tokens[: 5 * size], 9, 8]
                session.close()
                session.rewind(5 * size)
                session.extend(text)
            else:
                session.extend(TOKENS[:size])
            observe(session)
            if step == "prefill":
                head.forward([(session, session.pending_tokens)], NO_OUTPUTS)
        require_close(*(tree_rows(head, session) for head, session in zip(pair, sessions, strict=True)))


def test_long_texts_and_sessions_together_have_the_rows_of_each_alone(pair: Any) -> None:
    texts = ((700, TREE), (3, EMPTY), (90, TREE))
    outs = [head.forward([(session_of(head, n), tree) for n, tree in texts], NO_OUTPUTS) for head in pair]
    for our, other, (_, tree) in zip(*outs, texts, strict=True):
        require_close(table(our, tree), table(other, tree))
        assert our.computed == other.computed


@pytest.mark.parametrize("at", range(4))
def test_an_interrupt_leaves_the_rows_of_the_text(
    pair: Any, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    (ours, moved), calls, session = pair, count(), session_of(pair[1], 300)

    def interrupted(*args: Any, real: Any) -> Any:
        if next(calls) == at:
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        for name in ("llama_encode", "llama_decode"):
            real = getattr(binding.llama_cpp(), name)
            patch.setattr(binding.llama_cpp(), name, partial(interrupted, real=real))
        moved.forward([(session, TREE)], NO_OUTPUTS)
    require_close(rows_of(ours, session_of(ours, 300), TREE), tree_rows(moved, session))
    assert next(calls) >= min(at, 2)  # the text takes two passes
    assert len(moved._free_branches) == MAX_BRANCHES - len(session._branches)


def test_a_new_context_of_the_target_begins_a_new_one(pair: Any) -> None:
    ours, moved = pair
    session = session_of(moved, 20)
    rows_of(moved, session, TREE)
    moved.inner.renew_context()
    session.extend([5, 77])
    observe(session, 19)
    late = ours.open()
    late.extend(session.tokens)
    observe(late, 19)
    require_close(rows_of(ours, late, TREE), rows_of(moved, session, TREE))


def test_only_a_target_with_layers_on_a_gpu_computes_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_gpu in (False, True):
        monkeypatch.setattr(binding.llama_cpp(), "llama_supports_gpu_offload", lambda: has_gpu)  # noqa: B023
        for gpu_layers in (0, 9):
            settings: Any = SimpleNamespace(gpu_layers=gpu_layers)
            assert mtp_sidecar.offloads(settings) == (has_gpu and gpu_layers > 0)
