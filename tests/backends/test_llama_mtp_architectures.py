"""The rows of a model's layers for multi-token prediction are those of llama.cpp's own driver, in every
architecture that has a graph for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_architectures import write_architecture
from mtp_driver import ROUNDING, Context, Driver
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
        driver.process(text[:-1], [np.zeros_like(states[0]), *states[: len(text) - 2]], 0)
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
    expected = world.driver(TEXT, states).draft(TEXT[-1], states[-2], len(TEXT) - 1, drafted)
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
    driver.draft(TEXT[-1], states[root], root + 1, DRAFTED[: world.layers])
    session.extend([*DRAFTED, BONUS])
    session.observe(len(TEXT) - 1, states[len(TEXT) - 1 : -1, None])
    driver.process(text[len(TEXT) - 1 : -1], states[root : len(text) - 2], root + 1)
    expected = driver.draft(BONUS, states[-2], len(text) - 1, DRAFTED[:1])
    assert close(world.rows(session, chain(DRAFTED[:1], "test")), expected)
    session.close()


def test_two_sessions_together_have_the_rows_of_each_alone(world: World) -> None:
    texts, drafts = (TEXT, OTHER), (chain(DRAFTED[:1], "test"), EMPTY)
    states = [world.states(text) for text in texts]
    sessions = [world.session(text, own) for text, own in zip(texts, states, strict=True)]
    outs = world.draft.forward(list(zip(sessions, drafts, strict=True)), NO_OUTPUTS)
    for text, own, tree, out in zip(texts, states, drafts, outs, strict=True):
        driver = world.driver(text, own)
        assert close(table(out, tree), driver.draft(text[-1], own[-2], len(text) - 1, tree.tokens))
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
        expected = driver.draft(TEXT[-1], states[-2], len(TEXT) - 1, TREE.path_tokens(node))
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
