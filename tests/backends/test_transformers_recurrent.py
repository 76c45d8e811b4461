"""Models of transformers that hold a state and go back to a checkpoint, row for row as passes over the whole
text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from hf_models import DEVICE, folder_of
from paceline.backends.transformers.opener import open_engine
from paceline.backends.transformers.session import HfSession
from paceline.backends.transformers.target import HfTarget
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY
from rows import begun

TEXT = [(7 * at + 3) % 90 + 2 for at in range(30)]


@pytest.fixture(scope="module", params=["mamba", "mamba2"])  # one token in a pass, and as many as there are
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HfTarget]:
    path = folder_of(request.param, tmp_path_factory.mktemp("recurrent"))
    target = open_engine(path, n_ctx=128, device=DEVICE, sessions=2)
    assert (target.caps.rollback, target.caps.max_sessions) == ("restore", 2)
    yield target
    target.close()


@pytest.fixture(autouse=True)
def _nothing_taken_over(target: HfTarget) -> None:
    target.forget()


def whole(target: HfTarget, tokens: Sequence[int]) -> np.ndarray:
    with torch.inference_mode():
        ids = torch.tensor([list(tokens)], device=DEVICE)
        return np.array(target._model(input_ids=ids, use_cache=False).logits[0, -1].cpu().numpy())


def says(target: HfTarget, session: HfSession) -> int:
    """Check a row against the reference and return how many tokens were computed for it."""
    out = target.forward([(session, EMPTY)], RequiredOutputs())[0]
    assert np.abs(out.logits(0) - whole(target, session.tokens)).max() < 1e-4
    return int(out.computed)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("at", [0, 1])  # before and behind a layer that has taken the tokens into its state
def test_a_pass_that_fails_leaves_nothing_of_itself(target: HfTarget, error: Any, at: int) -> None:
    session, other = begun(target, TEXT[:6]), begun(target, TEXT[10:15])
    says(target, session)
    session.commit([], TEXT[6])

    def stop(*_: Any) -> None:
        raise error("in a layer")

    layer = target._model.get_decoder().layers[at]
    hook = layer.register_forward_pre_hook(stop)
    with pytest.raises(error):
        target.forward([(session, EMPTY), (other, EMPTY)], RequiredOutputs())
    hook.remove()
    assert (session.tokens, other.tokens) == (TEXT[:7], TEXT[10:15])
    assert says(target, session) == 7  # the state is lost, the text is not
    assert says(target, other) == 5
    for one in (session, other):
        one.close()
