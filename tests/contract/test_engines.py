"""Contract of every engine. The tests run over the toy, over llama.cpp with a tiny random model, and over
both through another vocabulary.

Recurrent models draft chains; llama.cpp's are tiny random files of ten architectures.

The toy and our own kernels are exact. llama.cpp computes several rows with other kernels than one, so its
logits change in the last bits with the shape of the batch. Cache and attention are F32 here, because F16
rounds such bits up to visible ones. A cell that is left over, missing or misplaced changes the logits a
thousand times more, as the last test shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gguf_architectures import RECURRENT, write_architecture
from hf_models import DEVICE, folder_of
from paceline.backends.llama_cpp import LlamaTarget, kernels
from paceline.backends.toy import ToyTarget
from paceline.backends.translated import CrossVocabTarget
from paceline.speculative.errors import LogitsError, ModelError, UsageError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.sampling import Sampling
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain
from sum_model import SumTarget
from tongues import speaking, translation

PROMPT = [7, 3, 9, 3, 7, 1, 0, 2, 11, 5]
TREE = DraftTree(
    tokens=(1, 2, 3, 4, 2, 6, 7, 1),
    parents=(ROOT, 0, 0, ROOT, 3, 3, 2, ROOT),
    score=(0.5,) * 8,
    source=("test",) * 8,
)
CHAIN = DraftTree(TREE.tokens, tuple(range(-1, len(TREE) - 1)), TREE.score, TREE.source)
SESSIONS = 3
# What rounding comes to: up to 1.7e-4 in 4,500 random sequences, of logits up to 11; read a token at a time,
# plain text itself is up to 1.1e-4 from the same text read at once.
ROUNDING = 3e-4


@dataclass
class Engine:
    target: Any
    tolerance: float
    tree: DraftTree = TREE

    def part(self, n: int) -> DraftTree:
        return self.tree.subset(range(n), self.tree.reach_probability)

    def rows(self, session: Any, tree: DraftTree = EMPTY) -> list[np.ndarray]:
        """Copies of the root's row and every node's."""
        out = self.target.forward([(session, tree)], RequiredOutputs())[0]
        return [np.array(out.logits(row), dtype=np.float64) for row in range(len(tree) + 1)]

    def fresh(self, tokens: Sequence[int]) -> np.ndarray:
        """The root's row in a session that has seen nothing else."""
        self.target.forget()
        session = self.target.open()
        session.extend(tokens)
        (row,) = self.rows(session)
        session.close()
        return row

    def apart(self, a: np.ndarray, b: np.ndarray) -> float:
        return float(np.abs(a - b).max())

    def same(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Raise AssertionError with the difference if there is one: on a GPU it may be rounding."""
        apart = self.apart(a, b)
        assert apart <= self.tolerance, f"{apart:.2g} apart"
        return True


Make = Callable[[Path], Engine]
EXACT: dict[str, Any] = {"flash_attention": True}
PLAIN: dict[str, Any] = {"cache_type": "f32", "flash_attention": False}


def needs_kernels() -> None:
    if DEVICE != "cpu" or not kernels.load_kernels().path:
        pytest.skip(kernels.load_kernels().reason or "they compute on a processor")


def llama(tolerance: float, **given: Any) -> Make:
    def make(models: Path) -> Engine:
        if tolerance == 0.0:
            needs_kernels()
        path = models / "target.gguf"
        return Engine(LlamaTarget(path, n_ctx=256, threads=1, sessions=SESSIONS, **given), tolerance)

    return make


def llama_recurrent(arch: str, uses: bool) -> Make:
    def make(models: Path) -> Engine:
        if uses:
            needs_kernels()
        path = write_architecture(models / f"{arch}-{uses}.gguf", arch)
        target = LlamaTarget(path, n_ctx=256, sessions=SESSIONS, kernels=uses, **(EXACT if uses else PLAIN))
        assert (target.caps.rollback, target.caps.equal_rows) == ("restore", uses)
        return Engine(target, 0.0 if uses else ROUNDING, CHAIN)

    return make


def transformers(kind: str, tree: DraftTree = TREE) -> Make:
    def make(models: Path) -> Engine:
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
        from paceline.backends.transformers.target import HfTarget

        target = HfTarget(folder_of(kind, models), n_ctx=256, sessions=SESSIONS, device=DEVICE)
        assert (target.caps.rollback == "restore") == (tree is CHAIN)
        # A text at once and token by token differ by 0.002 in transformers' own Qwen3-Next.
        return Engine(target, 10 * ROUNDING if kind == "qwen3_next" else ROUNDING, tree)

    return make


def translated_toy(_: Path) -> Engine:
    """Twelve tokens that say the same under other ids."""
    ours, theirs = speaking(ToyTarget(12), "abcdefghijkl"), speaking(ToyTarget(12, n_ctx=256), "hcfalekbjgid")
    return Engine(CrossVocabTarget(theirs, translation(ours.vocab, theirs.vocab)), 0.0)


ENGINES: dict[str, Make] = {
    "toy": lambda _: Engine(ToyTarget(12, n_ctx=64), 0.0),
    # It cannot rewind. It declares no branches, but computes them.
    "toy_recurrent": lambda _: Engine(ToyTarget(12, n_ctx=64, rollback="restore"), 0.0),
    "toy_early_exit": lambda _: Engine(ToyTarget(12, n_ctx=64, layers=3).view(exits=2), 0.0),
    "documented": lambda _: Engine(SumTarget(12), 0.0),  # the example of docs/architecture.md
    "llama": llama(ROUNDING, kernels=False, **PLAIN),
    "llama_kernels": llama(0.0, **EXACT),  # results do not depend on the shape of a pass
    # Passes of one shape. It declares no branches, but computes them, in cells of another order.
    "llama_exact": llama(ROUNDING, exact_rows=16, **PLAIN),
    **{f"llama_{arch}": llama_recurrent(arch, uses=True) for arch in RECURRENT},
    **{
        f"llama_{arch}_without_kernels": llama_recurrent(arch, uses=False)
        for arch in (["jamba"] if DEVICE == "cpu" else RECURRENT)
    },
    "transformers": transformers("llama"),
    "transformers_windows": transformers("gemma3_text"),  # some layers see the last 12 tokens only
    **{
        f"transformers_{kind}": transformers(kind, CHAIN)
        for kind in ("mamba2", "jamba", "falcon_h1", "lfm2", "qwen3_next")
    },
    "translated_toy": translated_toy,
}


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, models: Path) -> Iterator[Engine]:
    engine = ENGINES[request.param](models)
    yield engine
    engine.target.close()


@pytest.fixture
def session(engine: Engine) -> Iterator[Any]:
    session = engine.target.open()
    session.extend(PROMPT)
    yield session
    session.close()


def path_to(tree: DraftTree, node: int) -> list[int]:
    path = []
    while node != ROOT:
        path.append(node)
        node = tree.parents[node]
    return path[::-1]


def test_every_row_of_a_tree_is_the_row_of_its_own_chain(engine: Engine, session: Any) -> None:
    root, *nodes = engine.rows(session, engine.tree)
    assert engine.same(root, engine.fresh(PROMPT))
    for node, row in enumerate(nodes):
        alone = engine.fresh([*PROMPT, *(engine.tree.tokens[i] for i in path_to(engine.tree, node))])
        assert engine.same(row, alone), node
        assert row.argmax() == alone.argmax()


@pytest.mark.parametrize("node", [ROOT, *range(len(TREE))])
def test_a_session_that_kept_a_path_equals_a_fresh_one(engine: Engine, session: Any, node: int) -> None:
    engine.rows(session, engine.tree)
    path = path_to(engine.tree, node)
    session.commit(path, 8)
    expected = [*PROMPT, *(engine.tree.tokens[i] for i in path), 8]
    assert list(session.tokens) == expected
    assert engine.same(engine.rows(session)[0], engine.fresh(expected))


@given(
    rounds=st.lists(
        st.tuples(st.integers(0, 2**16), st.integers(0, 6), st.integers(0, 11)), min_size=1, max_size=6
    )
)
@example(rounds=[(88, 4, 0), (0, 0, 0), (0, 3, 1), (0, 1, 0), (0, 0, 3)])
@example(rounds=[(0, 0, 11), (2686, 1, 0), (0, 0, 1)])
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_sequence_of_drafts_and_rejections_leaves_the_state_of_the_text(
    engine: Engine, rounds: list[tuple[int, int, int]]
) -> None:
    """Random trees, random paths kept: rolled back, the session is as one that decoded only the text."""
    session = engine.target.open()
    session.extend(PROMPT)
    for seed, size, root in rounds:
        random = np.random.default_rng(seed)
        parents = tuple(int(random.integers(-1, i)) if i else ROOT for i in range(size))
        if engine.tree.is_chain:
            parents = tuple(range(-1, size - 1))
        tokens = tuple(int(t) for t in random.integers(0, 12, size))
        tree = DraftTree(tokens, parents, (0.5,) * size, ("test",) * size)
        engine.rows(session, tree)
        session.commit(path_to(tree, int(random.integers(-1, size))), root)
    last = engine.rows(session)[0]
    text = list(session.tokens)
    session.close()
    assert engine.apart(last, engine.fresh(text)) <= engine.tolerance


def test_hundreds_of_rejections_in_a_row_leave_the_state_of_the_text(engine: Engine) -> None:
    """Two sessions in turns; state that is not restored adds up."""
    random = np.random.default_rng(0)
    sessions = [engine.target.open(), engine.target.open()]
    for session in sessions:
        session.extend(PROMPT)
    n = 40 if engine.target.caps.n_ctx < 200 or "Hf" in type(engine.target).__name__ else 200
    for at in range(n):
        session = sessions[int(random.integers(2))]
        size = int(random.integers(0, 5))
        tree = chain(random.integers(0, 12, size).tolist(), "test")
        rows = engine.rows(session, tree)
        right = int(random.integers(-1, size)) + 1 if random.random() < 0.3 else 0
        text = list(session.tokens)
        session.commit(list(range(right)), int(random.integers(12)))
        if at % 25 == 24:
            assert engine.same(rows[right], engine.fresh([*text, *tree.tokens[:right]])), at
    for session in sessions:
        session.close()


def test_a_tree_that_starts_with_the_last_one_grows_it(engine: Engine, session: Any) -> None:
    whole = engine.rows(session, engine.tree)
    session.extend(())
    for n in (3, 4, len(engine.tree)):
        out = engine.target.forward([(session, engine.part(n))], RequiredOutputs())[0]
        first = {3: 0, 4: 4, len(engine.tree): 5}[n]
        for row in range(first, n + 1):
            assert engine.same(np.array(out.logits(row)), whole[row]), (n, row)
        if first:
            with pytest.raises(AssertionError):
                out.logits(first - 1)
    path = path_to(engine.tree, 6)
    session.commit(path, 8)
    text = [*PROMPT, *(engine.tree.tokens[node] for node in path), 8]
    assert engine.same(engine.rows(session)[0], engine.fresh(text))


@pytest.mark.parametrize("more", [(4, 6, 9), (4, 1), (10,), (1, 3, 7, 2, 2), (2, 2, 2), ()])
def test_what_a_tree_had_right_is_taken_over_and_the_rest_dropped(
    engine: Engine, session: Any, more: tuple[int, ...]
) -> None:
    """Along a branch, along it and off, off at once, beyond a leaf, into no branch; and taken back."""
    engine.rows(session, engine.tree)
    session.extend(more)
    text = [*PROMPT, *more]
    assert list(session.tokens) == text
    assert engine.same(engine.rows(session, chain([1, 2], "test"))[0], engine.fresh(text))
    session.extend([3, 3])
    assert engine.same(engine.rows(session)[0], engine.fresh([*text, 3, 3]))


def test_a_session_that_begins_like_an_earlier_one_answers_as_one_that_does_not(engine: Engine) -> None:
    for text in (PROMPT, [*PROMPT, 4, 6], [*PROMPT[:4], 8, 8], PROMPT[:3], [*PROMPT, *PROMPT]):
        session = engine.target.open()
        session.extend(text)
        row = engine.rows(session, engine.tree)[0]
        session.close()
        assert engine.same(row, engine.fresh(text))


@pytest.mark.parametrize("chunk", [1, 2, 5, 9])
def test_a_prompt_that_is_read_in_chunks_beside_a_tree_is_the_same_prompt(
    engine: Engine, session: Any, chunk: int
) -> None:
    other, text = engine.target.open(), [*PROMPT[::-1], *PROMPT, 3]
    whole = engine.rows(session, engine.tree)
    session.extend(())
    engine.fresh([11])
    other.extend(text)
    assert other.pending_tokens > 0
    while other.pending_tokens:
        before, n = other.pending_tokens, min(chunk, other.pending_tokens)
        session.extend(())
        read, out = engine.target.forward([(other, n), (session, engine.tree)], RequiredOutputs())
        assert read.computed == n
        assert other.pending_tokens == before - n
        for at, expected in enumerate(whole):
            assert engine.same(np.array(out.logits(at)), expected)
        with pytest.raises(AssertionError):
            read.logits(0)
    assert list(other.tokens) == text
    row = engine.rows(other)[0]
    other.close()
    assert engine.same(row, engine.fresh(text))


def test_computed_counts_what_was_read_the_root_and_new_nodes(engine: Engine, session: Any) -> None:
    pending_tokens = session.pending_tokens
    for tree, expected in ((engine.part(3), pending_tokens + 1 + 3), (engine.tree, len(engine.tree) - 3)):
        assert engine.target.forward([(session, tree)], RequiredOutputs())[0].computed == expected
    session.commit([0], 5)
    again = session.pending_tokens
    if engine.target.caps.rollback == "restore":
        assert again >= 2  # the old root and the node that was kept
    else:
        assert again == 0
    assert engine.target.forward([(session, EMPTY)], RequiredOutputs())[0].computed == again + 1


@pytest.fixture
def checkpoints(engine: Engine) -> Engine:
    """Return an engine whose sessions return to checkpoints, which later sessions find."""
    if engine.target.caps.rollback != "restore" or isinstance(engine.target, ToyTarget):
        pytest.skip("this engine has none")
    engine.target.forget()
    return engine


def test_a_rejection_computes_the_tokens_since_the_checkpoint_again(checkpoints: Engine) -> None:
    session = checkpoints.target.open()
    session.extend(PROMPT)

    def computed(*drafted: int) -> int:
        tree = chain(drafted, "test")
        return int(checkpoints.target.forward([(session, tree)], RequiredOutputs())[0].computed)

    assert computed(1, 2, 3) == len(PROMPT) + 3
    session.commit([0], 9)
    assert session.pending_tokens == 2  # the root and the accepted node
    assert computed(4) == 2 + 1 + 1
    session.commit([], 8)  # the checkpoint is still that after the prompt
    assert session.pending_tokens == 3
    assert computed() == 4
    session.commit([], 7)
    assert session.pending_tokens == 0
    assert computed(5, 6) == 3
    session.commit([0, 1], 6)  # the whole draft: the state stays
    assert session.pending_tokens == 0
    session.extend([3, 4])
    assert session.pending_tokens == 2
    assert checkpoints.same(checkpoints.rows(session)[0], checkpoints.fresh(session.tokens))
    session.close()


@pytest.mark.parametrize("grown", [False, True])
def test_a_later_text_goes_on_from_the_checkpoint(checkpoints: Engine, grown: bool) -> None:
    """A draft model grows its draft token by token: its checkpoint includes the root."""
    session = checkpoints.target.open()
    session.extend(PROMPT)
    for n in (0, 1, 2) if grown else (2,):
        checkpoints.target.forward([(session, chain([1, 2][:n], "test"))], RequiredOutputs())
    if not grown:
        session.commit([0, 1], 3)
    session.close()
    text = [*PROMPT, 9, 9, 9]  # other tokens than the drafted ones
    session.extend(text)
    assert session.pending_tokens == 2 + (not grown)
    row = checkpoints.rows(session)[0]
    session.close()
    assert checkpoints.same(row, checkpoints.fresh(text))


def test_a_prompt_goes_on_from_where_an_earlier_one_ended(checkpoints: Engine) -> None:
    """A turn costs a turn: the answer's thoughts are left out of the next prompt, and then a later turn."""
    target, rows = checkpoints.target, []
    control = next(token for token in range(target.vocab.size) if not target.vocab.piece(token))
    first, second = [*PROMPT, control, 5, 3], [*PROMPT, control, 4, 9, control, 5, 6]
    prompts = (first, second, [*second[:-2], 7, 4, control, 5], [*PROMPT, control, 8, 8, control, 2])
    for prompt, reused in zip(prompts, (0, len(PROMPT), len(second) - 3, len(PROMPT)), strict=True):
        session = target.open()
        session.extend(prompt)
        assert session.pending_tokens == len(prompt) - 1 - reused
        rows.append(checkpoints.rows(session, CHAIN))
        session.commit([0], 1)  # thoughts
        checkpoints.rows(session)
        session.close()
    for prompt, row in zip(prompts, rows, strict=True):
        session = target.open()
        session.extend(prompt)
        for a, b in zip(row, checkpoints.rows(session, CHAIN), strict=True):
            assert checkpoints.same(a, b)
        session.close()
        assert checkpoints.same(row[0], checkpoints.fresh(prompt))


def test_sessions_decoded_together_give_what_each_gives_alone(engine: Engine) -> None:
    sessions, trees = [engine.target.open() for _ in range(3)], [engine.tree, EMPTY, chain([1, 2, 3], "test")]
    for session, prompt in zip(sessions, (PROMPT, PROMPT[:4], [5]), strict=True):
        session.extend(prompt)
    together: list[tuple[list[int], DraftTree, list[np.ndarray]]] = []
    for _ in range(2):
        outs = engine.target.forward(list(zip(sessions, trees, strict=True)), RequiredOutputs())
        for out, session, tree in zip(outs, sessions, trees, strict=True):
            rows = [np.array(out.logits(row)) for row in range(len(tree) + 1)]
            together.append((list(session.tokens), tree, rows))
        for session, tree in zip(sessions, trees, strict=True):
            session.commit(range(min(1, len(tree))), 8)
    for session in sessions:
        session.close()
    for text, tree, rows in together:
        alone = engine.target.open()
        alone.extend(text)
        for a, b in zip(rows, engine.rows(alone, tree), strict=True):
            assert engine.same(a, b)
        alone.close()


def test_argmax_is_that_of_the_row_and_features_are_what_was_wanted(engine: Engine, session: Any) -> None:
    out = engine.target.forward([(session, engine.tree)], RequiredOutputs(top_k=3))[0]
    for row in range(len(engine.tree) + 1):
        logits = np.array(out.logits(row))
        assert out.argmax(row) == int(logits.argmax())
        assert out.features.top_k[row].tolist() == np.argsort(-logits, kind="stable")[:3].tolist()


def test_hidden_states_of_a_tree_are_those_of_the_text_up_to_each_row(engine: Engine, session: Any) -> None:
    if not hasattr(engine.target, "layers"):
        pytest.skip("a model in another vocabulary has other tokens")
    if isinstance(engine.target, LlamaTarget) and not kernels.load_kernels().path:
        pytest.skip(kernels.load_kernels().reason)
    want = RequiredOutputs(layers=(0, 1, engine.target.layers))

    def shown(session: Any, tree: DraftTree) -> tuple[Any, np.ndarray]:
        features = engine.target.forward([(session, tree)], want)[0].features
        return features, np.asarray(features.hidden)

    def fresh(text: Sequence[int]) -> np.ndarray:
        engine.target.forget()
        session = engine.target.open()
        session.extend(text)
        features, states = shown(session, EMPTY)
        session.close()
        assert (features.start, features.lead, len(states)) == (0, len(text) - 1, len(text))
        return states

    try:
        features, states = shown(session, engine.tree)
    except ModelError as error:  # llama.cpp names too few tensors of some architectures
        pytest.skip(str(error))
    session.extend(())
    again, part = shown(session, engine.part(3))
    _, grown = shown(session, engine.tree)
    assert (len(part), len(grown)) == (again.lead + 4, len(engine.tree) - 3)
    both = np.concatenate([part[again.lead :], grown])
    assert np.abs(both - states[features.lead :]).max() <= 100 * engine.tolerance
    session.close()  # others would share its cells
    assert features.start + features.lead == len(PROMPT) - 1
    assert len(states) == features.lead + 1 + len(engine.tree)
    tolerance = 100 * engine.tolerance  # states are larger than logits
    assert np.abs(states[: features.lead + 1] - fresh(PROMPT)[features.start :]).max() <= tolerance
    for node, state in enumerate(states[features.lead + 1 :]):
        expected = fresh([*PROMPT, *(engine.tree.tokens[i] for i in path_to(engine.tree, node))])[-1]
        assert np.abs(state - expected).max() <= tolerance, node


def test_an_answer_is_asked_for_before_the_next_forward_or_not_at_all(engine: Engine, session: Any) -> None:
    other = engine.target.open()
    other.extend(PROMPT[:3])
    out = engine.target.forward([(session, engine.tree)], RequiredOutputs())[0]
    out.argmax(0)
    engine.target.forward([(other, EMPTY)], RequiredOutputs())
    other.close()
    late, drawn = "overwritten by the target's next forward", Sampling(temperature=1.0)
    for row in (0, 1):  # that it was told before is no matter
        with pytest.raises(AssertionError, match=late):
            out.logits(row)
        with pytest.raises(AssertionError, match=late):
            out.argmax(row)
        with pytest.raises(AssertionError, match=late):
            out.target_distribution(row, drawn, ())


def test_what_cannot_be_done_is_refused(engine: Engine) -> None:
    session = engine.target.open()
    with pytest.raises(AssertionError, match="before extend"):
        engine.rows(session)
    with pytest.raises(UsageError, match="empty"):
        session.extend([])
    session.extend(PROMPT)
    with pytest.raises(AssertionError, match="before forward"):
        session.commit([], 1)
    with pytest.raises(AssertionError):
        engine.target.forward([(session, session.pending_tokens + 1)], RequiredOutputs())
    engine.rows(session, engine.tree)
    with pytest.raises(AssertionError, match="does not follow"):
        session.commit([0, 3], 1)
    session.close()


def test_closing_twice_is_harmless_and_the_place_is_free_again(engine: Engine) -> None:
    for _ in range(2 * SESSIONS):
        session = engine.target.open()
        session.extend(PROMPT)
        session.close()
        session.close()


def test_the_tolerance_would_notice_any_wrong_cell(engine: Engine) -> None:
    right = engine.fresh(PROMPT)
    for at in range(len(PROMPT)):
        wrong = [*PROMPT[:at], (PROMPT[at] + 1) % 12, *PROMPT[at + 1 :]]
        assert np.abs(engine.fresh(wrong) - right).max() > max(100 * engine.tolerance, 1e-9), at


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_argmax_of_a_row_that_is_not_of_numbers_is_refused(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    session = engine.target.open()
    session.extend(PROMPT)
    out = engine.target.forward([(session, EMPTY)], RequiredOutputs())[0]
    if type(out).__name__ == "HfForward":  # which looks at the tensor on its device
        out._rows = out._rows.new_full((1, 12), value)
    row = np.full(12, value)
    monkeypatch.setattr(type(out), "logits", lambda *_: row)
    with pytest.raises(LogitsError, match="not numbers"):
        out.argmax(0)
    session.close()
