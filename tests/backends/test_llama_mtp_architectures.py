"""The rows of a model's layers for multi-token prediction are those of llama.cpp's own driver, in every
architecture that has a graph for them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as cpp
from llama_cpp import llama_cpp_ext as ext

from gguf_architectures import write_architecture
from paceline.backends.llama_cpp import LlamaTarget, gate
from paceline.backends.llama_cpp.mtp import NARROW_OUTPUTS, MtpDraft, MtpSession
from paceline.models.headers.facts import MTP_ARCHS
from paceline.speculative.interfaces import NO_OUTPUTS, RequiredOutputs
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain
from rows import begun, table

SEVERAL = ("hy_v3", "mimo2", "step35")  # draft with each of several layers
TEXT = [7, 3, 9, 3, 7, 1, 0, 2, 11, 5, 40, 41]
OTHER = [5, 11, 2, 0, 90, 91, 92]
DRAFTED, BONUS = [60, 61], 62
TREE = DraftTree((60, 61, 63, 64, 65), (ROOT, 0, ROOT, 2, 0), (0.5,) * 5, ("test",) * 5)
ROUNDING = 3e-4  # passes of other shapes; a wrong row moves logits by far more
MAX_ROWS = 32
States = Sequence[np.ndarray] | np.ndarray


class Context:
    """A context of llama.cpp, decoded by its own functions. Every row has outputs, unless they are masked."""

    def __init__(self, target: LlamaTarget, *, mtp: bool, masked: bool = False) -> None:
        params = cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 128, MAX_ROWS, MAX_ROWS, 1
        params.n_threads = params.n_threads_batch = 1
        params.kv_unified = params.swa_full = True
        params.type_k = params.type_v = cpp.GGML_TYPE_F32
        params.flash_attn_type = 0
        if mtp:
            params.ctx_type = cpp.LLAMA_CONTEXT_TYPE_MTP
        model = target.model.pointer
        self._shapes = target.vocab.size, int(cpp.llama_model_n_embd_out(model))
        self._context: Any = cpp.llama_init_from_model(model, params)
        self.memory = cpp.llama_get_memory(self._context)
        ext.llama_set_embeddings_nextn(self._context, True, masked)
        self._masked = masked

    def close(self) -> None:
        cpp.llama_free(self._context)

    def select(self, layer: int) -> None:
        ext.llama_set_nextn_layer_offset(self._context, layer)

    def remove(self, start: int) -> None:
        cpp.llama_memory_seq_rm(self.memory, 0, start, -1)

    def decode(
        self, tokens: Sequence[int], states: States | None = None, start: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The logits and the hidden states of rows from `start` on; of the last row, if they are masked."""
        n, zero = len(tokens), (ctypes.c_int32 * 1)(0)
        inputs = None if states is None else np.ascontiguousarray(states, np.float32)
        batch = cpp.llama_batch(
            n_tokens=n,
            token=(ctypes.c_int32 * n)(*tokens),
            embd=None if inputs is None else inputs.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=(ctypes.c_int32 * n)(*range(start, start + n)),
            n_seq_id=(ctypes.c_int32 * n)(*[1] * n),
            seq_id=(ctypes.POINTER(ctypes.c_int32) * n)(
                *[ctypes.cast(zero, ctypes.POINTER(ctypes.c_int32))] * n
            ),
            logits=(ctypes.c_int8 * n)(*[not self._masked] * (n - 1), 1),
        )
        assert cpp.llama_decode(self._context, batch) == 0
        rows = [n - 1] if self._masked else range(n)
        vocab, width = self._shapes

        def read(pointer: Any, size: int) -> np.ndarray:
            return np.ctypeslib.as_array(pointer, (size,)).copy()

        return (
            np.stack([read(cpp.llama_get_logits_ith(self._context, i), vocab) for i in rows]),
            np.stack([read(ext.llama_get_embeddings_nextn_ith(self._context, i), width) for i in rows]),
        )


class Driver:
    """One text in the layers, as llama.cpp's common_speculative_impl_draft_mtp (common/speculative.cpp) has
    it, but for the row of the first token, which no hidden state precedes: rows begin with the second."""

    def __init__(self, target: LlamaTarget, layers: int) -> None:
        self.context, self.layers = Context(target, mtp=True), layers

    def process(self, tokens: Sequence[int], states: States, start: int) -> None:
        """Every layer computes the text."""
        for layer in range(self.layers):
            self.context.remove(start)
            self.context.select(layer)
            self.context.decode(tokens, states, start)

    def draft(self, root: int, state: np.ndarray, start: int, drafted: Sequence[int]) -> np.ndarray:
        """The rows of the root and of drafted tokens: the layers' output is their next input."""
        tokens, states, rows = [root, *drafted], [state], list[np.ndarray]()
        for i in range(len(tokens)):
            if self.layers > 1:  # one after another, which computes the tokens before its own again
                self.context.remove(start)
                self.context.select(i)
                logits, outputs = self.context.decode(tokens[: i + 1], states, start)
            else:
                logits, outputs = self.context.decode(tokens[i : i + 1], states[-1:], start + i)
            rows.append(logits[-1])
            states.append(outputs[-1])
        self.context.remove(start)
        return np.stack(rows)


class World:
    """A target with its layers, and the states of llama.cpp's own target context."""

    def __init__(self, path: Path, layers: int) -> None:
        self.path, self.layers = path, layers
        self.target = self.load(mtp=True)
        self.draft: MtpDraft = self.target.open_mtp()

    def load(self, *, mtp: bool) -> LlamaTarget:
        return LlamaTarget(
            self.path, n_ctx=64, threads=1, sessions=2, cache_type="f32", flash_attention=False,
            kernels=False, mtp=mtp,
        )  # fmt: skip

    def close(self) -> None:
        self.draft.close()
        self.target.close()

    def states(self, text: Sequence[int]) -> np.ndarray:
        with closing(Context(self.target, mtp=False)) as context:
            return context.decode(text)[1]

    def driver(self, text: Sequence[int], states: np.ndarray) -> Driver:
        """The driver of a text whose root is its last token."""
        driver = Driver(self.target, self.layers)
        driver.process(text[1:-1], states[: len(text) - 2], 0)
        return driver

    def session(self, text: Sequence[int], states: np.ndarray) -> MtpSession:
        session = self.draft.open()
        session.extend(text)
        session.observe(0, states[: len(text) - 1, None])
        return session

    def rows(self, session: MtpSession, tree: DraftTree) -> np.ndarray:
        return table(self.draft.forward([(session, tree)], NO_OUTPUTS)[0], tree)


@pytest.fixture(
    scope="module", params=[*((arch, 1) for arch in sorted(MTP_ARCHS)), *((arch, 3) for arch in SEVERAL)],
    ids=lambda param: f"{param[0]}-{param[1]}",
)  # fmt: skip
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    arch, layers = request.param
    folder = tmp_path_factory.mktemp(arch)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("PACELINE_HOME", str(folder / "home"))
        patch.setattr(gate, "in_load_subprocess", False)
        path = write_architecture(folder / "model.gguf", arch, next_token_heads=layers)
        opened = World(path, layers)  # it was tried in a subprocess
        stack.callback(opened.close)
        yield opened


def close(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.abs(one - other).max() < ROUNDING


def test_a_target_that_shows_states_has_the_rows_of_one_without_the_layers(world: World) -> None:
    tree = EMPTY if world.target.caps.rollback == "none" else chain(DRAFTED, "test")
    want = RequiredOutputs(layers=world.draft.config.layer_ids)

    def out(target: LlamaTarget, want: RequiredOutputs = NO_OUTPUTS) -> tuple[np.ndarray, Any]:
        target.forget()
        with closing(target.open()) as session:
            session.extend(TEXT)
            forward = target.forward([(session, tree)], want)[0]
            return table(forward, tree), forward.features.hidden

    with closing(world.load(mtp=False)) as target:
        plain = out(target)[0]
    assert np.array_equal(out(world.target)[0], plain)
    shown, hidden = out(world.target, want)
    assert np.array_equal(shown, plain)
    assert close(hidden[:, 0], world.states([*TEXT, *tree.tokens]))
    world.target.forget()
    sessions = [begun(world.target, text) for text in (TEXT, OTHER)]
    outs = world.target.forward([(session, EMPTY) for session in sessions], want)
    for session, text, forward in zip(sessions, (TEXT, OTHER), outs, strict=True):
        assert close(forward.features.hidden[:, 0], world.states(text))
        session.close()


def test_a_chain_of_drafts_is_the_drivers(world: World) -> None:
    states, drafted = world.states(TEXT), DRAFTED[: world.draft.max_depth - 1]
    expected = world.driver(TEXT, states).draft(TEXT[-1], states[-2], len(TEXT) - 2, drafted)
    session = world.session(TEXT, states)
    assert close(world.rows(session, chain(drafted, "test")), expected)
    for n in range(len(drafted) + 1):  # a token at a time
        session.discard_tree()
        part = chain(drafted[:n], "test")
        assert close(world.rows(session, part), expected[: n + 1])
    session.close()


def test_accepted_tokens_are_computed_again_with_the_targets_states(world: World) -> None:
    text = [*TEXT, *DRAFTED, BONUS]
    states, root = world.states(text), len(TEXT) - 2
    driver = world.driver(TEXT, states)
    session = world.session(TEXT, states)
    world.rows(session, chain(DRAFTED[: world.draft.max_depth - 1], "test"))
    driver.draft(TEXT[-1], states[root], root, DRAFTED[: world.layers])
    session.extend([*DRAFTED, BONUS])
    session.observe(len(TEXT) - 1, states[len(TEXT) - 1 : -1, None])
    driver.process(text[len(TEXT) - 1 : -1], states[root : len(text) - 2], root)
    expected = driver.draft(BONUS, states[-2], len(text) - 2, DRAFTED[:1])
    assert close(world.rows(session, chain(DRAFTED[:1], "test")), expected)
    session.close()


def test_two_sessions_together_have_the_rows_of_each_alone(world: World) -> None:
    texts, drafts = (TEXT, OTHER), (chain(DRAFTED[:1], "test"), EMPTY)
    states = [world.states(text) for text in texts]
    sessions = [world.session(text, own) for text, own in zip(texts, states, strict=True)]
    outs = world.draft.forward(list(zip(sessions, drafts, strict=True)), NO_OUTPUTS)
    for text, own, tree, out in zip(texts, states, drafts, outs, strict=True):
        driver = world.driver(text, own)
        assert close(table(out, tree), driver.draft(text[-1], own[-2], len(text) - 2, tree.tokens))
    for session in sessions:
        session.close()


def test_branches_of_a_tree_are_the_chains_of_their_nodes(world: World) -> None:
    if world.draft.caps.max_branches == 1:
        pytest.skip("several layers draft chains")
    states = world.states(TEXT)
    session = world.session(TEXT, states)
    rows = world.rows(session, TREE)
    for node in range(len(TREE)):
        driver = world.driver(TEXT, states)
        expected = driver.draft(TEXT[-1], states[-2], len(TEXT) - 2, TREE.path_tokens(node))
        assert close(rows[node + 1], expected[-1])
    session.close()


def test_narrow_outputs_are_those_of_graphs_that_leave_out_rows_without_logits(world: World) -> None:
    states = world.states(TEXT)
    with closing(Context(world.target, mtp=True)) as context:
        every = context.decode(TEXT[1:], states[:-1])[1]
    with closing(Context(world.target, mtp=True, masked=True)) as context:
        only = context.decode(TEXT[1:], states[:-1])[1][0]
    is_narrow = world.target.model.architecture in NARROW_OUTPUTS
    assert close(only, every[-1 if is_narrow else 0])
    assert not close(every[0], every[-1])
