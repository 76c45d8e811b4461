"""The extension point of passes: a further kind of hidden state in one class.

The example shows what heads in the target's own file (MTP) read, with their second context."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp_ext

from gguf_architectures import write_architecture
from paceline.backends.llama_cpp import LlamaTarget
from paceline.backends.llama_cpp.batch import Batch
from paceline.backends.llama_cpp.binding import llama_cpp
from paceline.backends.llama_cpp.extras import Hidden, PassExtra
from paceline.speculative.interfaces import NO_OUTPUTS, RequiredOutputs
from paceline.speculative.tree import EMPTY, chain

LAYERS = 2
STATES = RequiredOutputs(layers=(LAYERS + 1,))
TEXTS = [list(range(5, 30)), list(range(60, 20, -2))]


class NextTokenHeads(PassExtra):
    context: Any = None
    in_use = False

    def on_load(self, params: Any) -> None:
        params.load_mtp = True

    def attach(self, target: LlamaTarget) -> None:
        self.target, self.layers = target, range(target.layers + 1, target.layers + 2)
        if self.in_use:
            self._open()

    def _open(self) -> None:
        llama_cpp_ext.llama_set_embeddings_nextn(self.target.context, True, False)
        params = llama_cpp().llama_context_default_params()
        params.ctx_type = llama_cpp().LLAMA_CONTEXT_TYPE_MTP
        params.ctx_other = ctypes.cast(self.target.context, ctypes.c_void_p)
        params.n_ctx = 64
        self.context = llama_cpp().llama_init_from_model(self.target.model.pointer, params)
        assert self.context

    def detach(self) -> None:
        if self.context is not None:
            llama_cpp().llama_free(self.context)
            self.context = None

    def prepare(self, target: LlamaTarget, sessions: int) -> None:
        if not self.in_use:
            self.in_use = True
            self._open()

    @contextmanager
    def around_pass(self, batch: Batch, layers: Sequence[int], *, prefill: bool) -> Iterator[Hidden]:
        out = np.empty((len(batch), 1, self.target.hidden_size), np.float32)
        yield out
        states = llama_cpp_ext.llama_get_embeddings_nextn(self.target.context)
        out[:, 0] = np.ctypeslib.as_array(states, shape=(len(batch), self.target.hidden_size))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[LlamaTarget]:
    path = write_architecture(tmp_path / "qwen35.gguf", "qwen35", next_token_heads=1)
    with closing(LlamaTarget(path, n_ctx=64, sessions=2, extras=[NextTokenHeads()])) as opened:
        yield opened


def states_of(target: LlamaTarget, text: Sequence[int], want: RequiredOutputs = STATES) -> Hidden:
    target.forget()
    with closing(target.open()) as session:
        session.extend(text)
        hidden: Hidden = target.forward([(session, EMPTY)], want)[0].features.hidden
    target.forget()
    return hidden


def test_rows_of_prompts_and_drafts_of_two_sessions_are_those_of_each_alone(target: LlamaTarget) -> None:
    alone = [states_of(target, text) for text in TEXTS]
    sessions = [target.open(), target.open()]
    for session, text in zip(sessions, TEXTS, strict=True):
        session.extend(text)
    target.forward([(sessions[0], 3)], NO_OUTPUTS)  # which the extra does not join
    read = target.forward([(sessions[0], 4), (sessions[1], 5)], STATES)
    drafted = target.forward([(sessions[0], chain([1, 2], "test")), (sessions[1], EMPTY)], STATES)
    for first, second, start, expected in zip(read, drafted, (3, 0), alone, strict=True):
        both = np.concatenate([first.features.hidden, second.features.hidden])
        assert (first.features.start, len(both) >= len(expected) - start) == (start, True)
        assert np.allclose(both[: len(expected) - start], expected[start:], atol=1e-4)
    for session in sessions:
        session.close()


def test_another_extra_makes_a_new_context_and_layers_are_in_their_order(target: LlamaTarget) -> None:
    alone = states_of(target, TEXTS[0])
    both = states_of(target, TEXTS[0], RequiredOutputs(layers=(1, LAYERS + 1)))
    assert both.shape == (len(TEXTS[0]), 2, target.hidden_size)
    assert np.allclose(both[:, 1:], alone, atol=1e-4)
    assert np.allclose(both[:, :1], states_of(target, TEXTS[0], RequiredOutputs(layers=(1,))), atol=1e-4)
