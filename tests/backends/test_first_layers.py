"""The first layers of a model, run by themselves: their hidden states are those of the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_files import write_llama
from paceline.backends.toy import ToyTarget
from paceline.heads.arrays import to_numpy
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import ROOT, DraftTree, chain

PROMPT = [3, 4, 5, 1, 0, 2]
TREE = DraftTree((1, 2, 3, 4), (ROOT, 0, 0, ROOT), (0.5,) * 4, ("x",) * 4)
ROUNDING = 1e-3


def toy(_: Path) -> Any:
    return ToyTarget(8, seed=1, layers=4)


def llama_cpp(folder: Path) -> Any:
    from paceline.backends.llama_cpp import LlamaTarget, kernels

    if not kernels.load_kernels().path:
        pytest.skip(kernels.load_kernels().reason)
    return LlamaTarget(write_llama(folder / "llama.gguf", layers=3, width=64), n_ctx=64, sessions=2)


def transformers(kind: str) -> Callable[[Path], Any]:
    def make(_: Path) -> Any:
        pytest.importorskip("torch")
        from hf_models import model_of
        from paceline.backends.transformers.target import HfTarget

        return HfTarget.around(model_of(kind), sessions=2)

    return make


MAKERS = {
    "toy": toy,
    "llama.cpp": llama_cpp,
    **{kind: transformers(kind) for kind in ("llama", "qwen3", "gemma3_text", "gpt2", "olmo2")},
}


@pytest.fixture(params=MAKERS, scope="module")
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with closing(MAKERS[request.param](tmp_path_factory.mktemp("first"))) as target:
        yield target


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize("n", [1, 2])
def test_the_hidden_states_are_those_of_the_whole_model(target: Any, n: int, beside: bool) -> None:
    want = RequiredOutputs(layers=(n,))
    target.forget()
    whole = target.open()
    whole.extend(PROMPT)
    expected = to_numpy(target.forward([(whole, TREE)], want)[0].features.hidden)[-1 - len(TREE) :]
    whole.extend([])  # the model drops its tree
    with closing(target.first_layers(n)) as first:
        session = first.open(whole if beside else None)
        session.extend(PROMPT)
        for tree in (chain(TREE.tokens[:2], "x"), TREE):  # grows
            features = first.forward([(session, tree)], want)[0].features
            found = to_numpy(features.hidden)[features.lead :]
            rows = expected[1 + len(tree) - len(found) : 1 + len(tree)]
            assert found.shape == (len(rows), 1, target.hidden_size)
            assert np.abs(found - rows).max() <= ROUNDING * max(1.0, np.abs(rows).max())
        session.commit([0, 1], 7)
        features = first.forward([(session, chain([5], "x"))], want)[0].features
        session.close()
    whole.extend([1, 2, 7])
    again = to_numpy(target.forward([(whole, chain([5], "x"))], want)[0].features.hidden)[-2:]
    found = to_numpy(features.hidden)[-2:]
    assert np.abs(found - again).max() <= ROUNDING * max(1.0, np.abs(again).max())
    whole.close()


def test_the_model_computes_the_same_while_its_first_layers_draft(target: Any) -> None:
    def rows(draft: Any) -> list[Any]:
        target.forget()
        out, session = [], target.open()
        session.extend(PROMPT)
        small = None if draft is None else draft.open(session)
        for token in (1, 2, 3):
            if small is not None:
                small.extend(list(session.tokens)[len(small.tokens) :])
                draft.forward([(small, chain([4, 5], "x"))], RequiredOutputs(layers=(1,)))
            (found,) = target.forward([(session, chain([6, 7], "x"))], RequiredOutputs())
            out.append(np.array(found.logits(1)))
            session.commit([], token)
        session.close()
        return out

    with closing(target.first_layers(1)) as draft:
        for a, b in zip(rows(None), rows(draft), strict=True):
            assert np.abs(a - b).max() <= ROUNDING * max(1.0, np.abs(a).max())


@pytest.mark.parametrize("n", [0, 99])
def test_a_number_of_layers_that_is_no_part_is_refused(target: Any, n: int) -> None:
    with pytest.raises(UsageError, match=f"first {n} layers"):
        target.first_layers(n)
