"""Hidden states out of llama.cpp: no row is left out or misplaced, and no logits change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from architectures import write_gemma2
from gguf_architectures import write_architecture
from gguf_files import write_llama
from hf_models import DEVICE
from paceline.backends.llama_cpp import LlamaTarget, kernels
from paceline.backends.llama_cpp.kernels import build
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY, ROOT, DraftTree, chain
from rows import table

LAYERS, WIDTH = 3, 64
INPUTS = RequiredOutputs(layers=(0, 1, 2))
ALL = RequiredOutputs(top_k=2, layers=(0, 1, 2, LAYERS))
PROMPT = [7, 3, 9, 3, 7, 1, 0, 2, 11, 5]
TREE = DraftTree((1, 2, 3, 4, 2, 6), (ROOT, 0, 0, ROOT, 3, 2), (0.5,) * 6, ("test",) * 6)
# Of values as large as 300, which a wrong row changes by more than 1: llama.cpp's own kernels sum in another
# order for each shape of a pass.
ROUNDING = 3e-2
N_CTX = 256


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("hidden") / "llama.gguf", layers=LAYERS, width=WIDTH)


def needs_library() -> None:
    if not kernels.load_kernels().path:
        pytest.skip(kernels.load_kernels().reason)


WAYS: dict[str, dict[str, Any]] = {
    "kernels": {"flash_attention": True},
    "llama.cpp": {"flash_attention": False, "cache_type": "f32", "kernels": False},
    "exact rows": {"flash_attention": False, "cache_type": "f32", "kernels": False, "exact_rows": 16},
}


@pytest.fixture(scope="module", params=WAYS)
def target(request: pytest.FixtureRequest, file: Path) -> Iterator[LlamaTarget]:
    needs_library()
    with closing(LlamaTarget(file, n_ctx=N_CTX, sessions=2, **WAYS[request.param])) as target:
        assert target.caps.equal_rows is (request.param == "kernels" and DEVICE == "cpu")
        yield target


def whole(target: LlamaTarget, text: Sequence[int], want: RequiredOutputs = ALL) -> Any:
    """[tokens, layers, width] of one pass over all of the text."""
    target.forget()
    session = target.open()
    session.extend(text)
    features = target.forward([(session, EMPTY)], want)[0].features
    session.close()
    assert (features.start, features.lead) == (0, len(text) - 1)
    assert features.hidden.shape == (len(text), len(want.layers), WIDTH)
    assert features.hidden.dtype == np.float32
    return features.hidden


def assert_same(target: LlamaTarget, ours: Any, expected: Any) -> None:
    if target.caps.equal_rows:
        assert np.array_equal(ours, expected)
    else:
        assert np.abs(ours - expected).max() < ROUNDING


@given(
    prompts=st.tuples(*[st.lists(st.integers(0, 20), min_size=1, max_size=9)] * 2),
    chunk=st.integers(1, 5),
    rounds=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4),
    want=st.sampled_from([INPUTS, ALL, RequiredOutputs(layers=(2,)), RequiredOutputs(layers=(LAYERS,))]),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_features_cover_two_texts_without_a_gap_however_they_are_read_and_rolled_back(
    target: LlamaTarget,
    prompts: tuple[list[int], list[int]],
    chunk: int,
    rounds: list[tuple[int, int]],
    want: RequiredOutputs,
) -> None:
    """The second text is read in chunks beside the drafts of the first."""
    target.forget()
    known: tuple[dict[int, Any], dict[int, Any]] = ({}, {})
    sessions = (target.open(), target.open())
    try:
        for session, prompt in zip(sessions, prompts, strict=True):
            session.extend(prompt)

        def note(at: int, features: Any, rows: Sequence[int]) -> None:
            if features.hidden is not None:
                assert features.start <= len(known[at])
                for place, row in enumerate([*range(features.lead), *rows], features.start):
                    known[at][place] = features.hidden[row]

        for drafted, kept in rounds:
            n = min(chunk, sessions[1].pending_tokens)
            tree = chain([1, 2, 3][:drafted], "test")
            mine, other = target.forward([(sessions[0], tree), (sessions[1], n)], want)
            assert other.features.lead == other.computed == n
            assert mine.features.lead + drafted + 1 == mine.computed == len(mine.features.hidden)
            path = range(min(kept, drafted))
            lead = mine.features.lead
            note(0, mine.features, [lead + row for row in (0, *(node + 1 for node in path))])
            note(1, other.features, ())
            sessions[0].commit(path, 5)
        for at, out in enumerate(target.forward([(session, EMPTY) for session in sessions], want)):
            note(at, out.features, [out.features.lead])
        texts = [list(session.tokens) for session in sessions]
    finally:
        for session in sessions:
            session.close()
    for text, rows in zip(texts, known, strict=True):
        assert sorted(rows) == list(range(len(text)))
        assert_same(target, np.stack([rows[at] for at in range(len(text))]), whole(target, text, want))


def test_a_prefix_of_another_session_is_not_shown_again(target: LlamaTarget) -> None:
    if target.settings["exact_rows"]:
        pytest.skip("only whole prompts are reused for equal bits")
    expected = whole(target, [*PROMPT, 8, 9])
    session = target.open()
    session.extend([*PROMPT, 4, 4, 4])
    features = target.forward([(session, EMPTY)], ALL)[0].features
    session.close()
    assert (features.start, features.lead) == (len(PROMPT), 2)
    assert len(features.hidden) == 3
    session = target.open()
    session.extend([*PROMPT, 8, 9])
    features = target.forward([(session, EMPTY)], ALL)[0].features
    session.close()
    assert features.start == len(PROMPT)
    assert_same(target, features.hidden, expected[len(PROMPT) :])


@pytest.mark.parametrize("want", [RequiredOutputs(), RequiredOutputs(top_k=1), INPUTS, ALL])
def test_logits_have_the_same_bits_whatever_is_wanted(target: LlamaTarget, want: RequiredOutputs) -> None:
    """The final norm of prompt rows makes the output layer compute these, too: only equal rows keep bits."""
    outs = []
    for wanted in (RequiredOutputs(), want):
        target.forget()
        session = target.open()
        session.extend(PROMPT * 4)
        target.forward([(session, 7)], wanted)
        rows = [table(target.forward([(session, TREE)], wanted)[0], TREE)]
        session.commit([0, 2], 3)
        rows.append(table(target.forward([(session, EMPTY)], wanted)[0]))
        session.close()
        outs.append(np.concatenate(rows))
    if want is ALL and not target.caps.equal_rows and not target.settings["exact_rows"]:
        assert np.abs(outs[0] - outs[1]).max() < ROUNDING
    else:
        assert np.array_equal(outs[0], outs[1])


@pytest.mark.skipif(DEVICE != "cpu", reason="rows are equal with kernels only, which compute on a processor")
def test_a_long_prompt_is_shown_in_one_piece(file: Path) -> None:
    """Beyond one pass of llama.cpp, and beyond one batch with outputs."""
    needs_library()
    text = np.random.default_rng(0).integers(0, 250, 3000).tolist()
    with closing(LlamaTarget(file, n_ctx=4096, flash_attention=True)) as target:
        shown = whole(target, text)
        assert target.caps.equal_rows
        assert np.array_equal(whole(target, text, INPUTS), shown[:, :3])
        session = target.open()
        target.forget()
        session.extend(text)
        chunks = []
        while session.pending_tokens > 700:
            chunks.append(target.forward([(session, 700)], ALL)[0].features.hidden)
        chunks.append(target.forward([(session, EMPTY)], ALL)[0].features.hidden)
        assert np.array_equal(np.concatenate(chunks), shown)


def test_sessions_that_are_open_when_hidden_states_are_first_wanted_start_again(file: Path) -> None:
    needs_library()
    with closing(LlamaTarget(file, n_ctx=N_CTX, sessions=2)) as target:
        expected = whole(target, [*PROMPT, 1, 2, 5])
    with closing(LlamaTarget(file, n_ctx=N_CTX, sessions=2)) as target:
        sessions = [target.open(), target.open()]
        for session in sessions:
            session.extend(PROMPT)
        outs = target.forward([(session, TREE) for session in sessions], RequiredOutputs())
        before = [table(out, TREE) for out in outs]
        assert all(out.features.hidden is None for out in outs)
        sessions[0].commit([0, 1], 5)
        features = target.forward([(sessions[0], EMPTY)], ALL)[0].features
        assert (features.start, features.lead) == (0, len(PROMPT) + 2)
        assert np.array_equal(features.hidden, expected)
        after = target.forward([(sessions[1], TREE)], RequiredOutputs())[0]
        assert after.computed == len(PROMPT) + len(TREE)
        assert np.array_equal(table(after, TREE), before[1])


def test_the_embeddings_and_the_output_layer_are_those_of_the_pass(target: LlamaTarget) -> None:
    text = PROMPT
    states = whole(target, text)
    assert (target.layers, target.hidden_size) == (LAYERS, WIDTH)
    assert_same(target, target.token_embeddings(text), states[:, 0])
    head = target.output_head()
    session = target.open()
    session.extend(text)
    logits = table(target.forward([(session, EMPTY)], RequiredOutputs())[0])[0]
    session.close()
    assert np.abs(head.weight @ states[-1, LAYERS] - logits).max() < 1e-2
    assert head.norm is not None
    assert head.norm.shape == (WIDTH,)


def test_scaled_embeddings_are_those_that_the_first_layer_gets(tmp_path: Path) -> None:
    needs_library()
    with closing(LlamaTarget(write_gemma2(tmp_path / "gemma.gguf"), n_ctx=64)) as target:
        states = whole(target, PROMPT, RequiredOutputs(layers=(0, 1, 2)))
        raw = target.token_embeddings(PROMPT)
        assert np.allclose(states[:, 0], raw * WIDTH**0.5, rtol=1e-6)
        head = target.output_head()  # tied
        assert np.array_equal(head.weight[PROMPT], raw)


def test_without_the_compiled_library_the_reason_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(LlamaTarget(file, n_ctx=64, kernels=False)) as target:
        monkeypatch.setattr(build, "find_compiler", lambda: ())
        monkeypatch.setattr(build, "caches", lambda: ())
        session = target.open()
        session.extend(PROMPT)
        with pytest.raises(ModelError, match=r"need Paceline's compiled library: no C\+\+ compiler"):
            target.forward([(session, EMPTY)], INPUTS)
        assert target.forward([(session, EMPTY)], RequiredOutputs())[0].computed == len(PROMPT)
        session.close()


def test_layers_that_the_graph_does_not_name_are_told_with_the_architecture(file: Path) -> None:
    needs_library()
    with closing(LlamaTarget(file, n_ctx=64)) as target:
        target.layers = LAYERS + 2  # there is no fourth output
        target.renew_context()
        session = target.open()
        session.extend(PROMPT)
        words = "architecture llama shows no tensor that is the output of layer 3"
        with pytest.raises(ModelError, match=words):
            target.forward([(session, EMPTY)], RequiredOutputs(layers=(1, 4)))
        shown = target.forward([(session, EMPTY)], RequiredOutputs(layers=(1,)))[0].features
        assert len(shown.hidden) == len(PROMPT)  # the failed pass left nothing in the cache
        session.close()
        target.forget()
        session.extend(PROMPT)  # the last layer computes the rows that have logits
        with pytest.raises(ModelError, match="shows 1 of 10 rows of the output of layer 2"):
            target.forward([(session, EMPTY)], RequiredOutputs(layers=(3,)))
        session.close()


def test_a_model_with_a_state_shows_one_session_at_a_time(tmp_path: Path) -> None:
    needs_library()
    with closing(
        LlamaTarget(write_architecture(tmp_path / "mamba.gguf", "mamba"), n_ctx=64, sessions=2)
    ) as target:
        sessions = [target.open(), target.open()]
        for session in sessions:
            session.extend(PROMPT)
        want = RequiredOutputs(layers=(0, 1, 2))
        with pytest.raises(ModelError, match="one session at a time"):
            target.forward([(session, EMPTY) for session in sessions], want)
        features = target.forward([(sessions[0], EMPTY)], want)[0].features
        assert np.array_equal(features.hidden[:, 0], target.token_embeddings(PROMPT))
