"""llama-server as a System: requests, answers and failures."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import paceline
from fake_llama_server import XLLAMACPP, write_fake_server
from paceline.api import LLM
from paceline.bench.baselines.llama_server import (
    LlamaServer,
    completion_body,
    find_program,
    model_arguments,
    needs_draft,
    spec_types,
    speculation_arguments,
)
from paceline.bench.system import BenchRequest
from paceline.bench.text_comparison import explain
from paceline.models import zoo
from paceline.speculative.errors import BaselineError
from paceline.speculative.interfaces import Budget
from paceline.speculative.sampling import Sampling

has_server = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="needs the package xllamacpp, which has the server"
)
HELP = Path(__file__).parents[2] / "data" / "llama_cpp" / "0.3.36" / "llama-server-help.out.txt"
PROMPT = "def fibonacci(n):\n"
ASK = BenchRequest("ab", (1, 2), 3)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with paceline.load(drafters="none", threads=1, n_ctx=512) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def ask(llm: LLM) -> BenchRequest:
    return BenchRequest(PROMPT, tuple(llm.target.text.encode(PROMPT)), 24)


def started(**settings: Any) -> LlamaServer:
    command = find_program(XLLAMACPP)
    defaults: dict[str, Any] = {"name": "llama-server", "n_ctx": 512, "threads": 1}
    return LlamaServer(command, zoo.target_path(), **{**defaults, **settings})


def fake(folder: Path, mode: str, **settings: Any) -> LlamaServer:
    command = find_program(str(write_fake_server(folder / "llama-server", mode)))
    return LlamaServer(command, zoo.target_path(), name="fake", n_ctx=512, threads=1, **settings)


def require_same(llm: LLM, ask: BenchRequest, tokens: tuple[int, ...] | None, n_draft: int = 4) -> None:
    """Require the tokens of plain greedy decoding, up to a near-tie."""
    assert tokens is not None
    assert len(tokens) == ask.max_tokens
    plain = llm.generate(list(ask.tokens), max_tokens=ask.max_tokens, ignore_eos=True).tokens
    difference = explain(llm.target, ask.tokens, plain, tokens, Budget(n_draft, n_draft))
    assert difference is None or difference.near_tie


@has_server
def test_plain_decoding_equals_ours_and_leaves_no_process(llm: LLM, ask: BenchRequest) -> None:
    server = started()
    try:
        answer = server.answer(ask)
        assert (server.memory() or 0) > zoo.target_path().stat().st_size
        assert server.version().startswith("xllamacpp 2")
        assert server.samples_drafts()
        half = next(t for t in range(llm.target.vocab.size) if llm.target.text.piece(t) == b"\xe2")
        stuck = replace(ask, max_tokens=4, sampling=Sampling(logit_bias={half: 1000.0}))
        unsaid = server.answer(stuck)
    finally:
        server.close()
    assert (unsaid.text, unsaid.tokens, unsaid.n_tokens) == ("", None, 4)
    require_same(llm, ask, answer.tokens)
    assert answer.text == b"".join(map(llm.target.text.piece, answer.tokens or ())).decode()
    assert (answer.n_tokens, answer.n_prompt, answer.decoded) == (24, len(ask.tokens), 23)
    assert (answer.steps, answer.drafted, answer.accepted, answer.rejected) == (23, 0, 0, 0)
    assert answer.own_speed is not None
    assert answer.first > 0
    assert 23 / answer.decoding <= answer.own_speed * 1.001  # never faster than by its own word
    assert not psutil.pid_exists(server.pid)


@has_server
def test_drafts_are_counted_and_refusals_quoted(llm: LLM, ask: BenchRequest) -> None:
    server = started(draft=zoo.draft_path(), method="model", n_draft=4, p_min=0.0, n_ctx=128)
    try:
        answer = server.answer(ask)
        with pytest.raises(BaselineError, match=r"^llama-server refused: .*context size"):
            server.answer(BenchRequest("", (5,) * 300, 1))
        with pytest.raises(BaselineError, match=r"llama-server stopped after \d+ of 300 tokens: does"):
            server.answer(BenchRequest("", ask.tokens, 300))
    finally:
        server.close()
    assert answer.n_tokens == 24
    assert 0 < (answer.accepted or 0) <= (answer.drafted or 0)
    assert answer.steps == 23 - (answer.accepted or 0)
    require_same(llm, ask, answer.tokens)


@has_server
def test_failed_start_quotes_the_log(foreign_draft: Path, tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match=r"^llama-server does not speculate; its log: .*not compatible"):
        started(draft=foreign_draft, method="model")
    broken = tmp_path / "broken.gguf"
    broken.write_text("not a model")
    with pytest.raises(BaselineError, match=r"^llama-server ended with .*invalid magic characters"):
        started(draft=broken, method="model")
    with pytest.raises(BaselineError, match="invalid argument: --frobnicate"):
        started(extra=["--frobnicate", "1"])


@pytest.mark.parametrize(
    "line",
    [
        "E spec common_specu: the target and draft vocabs are not compatible",
        "E srv load_model: failed to initialize speculative decoding context: no memory left",
    ],
)
def test_server_that_went_on_without_drafts_is_refused(tmp_path: Path, line: str) -> None:
    server = write_fake_server(tmp_path / "fake", "works")
    path = tmp_path / "llama-server"
    path.write_text(f"#!/bin/sh\necho '{line}' >&2\nexec {server} \"$@\"\n")
    path.chmod(0o755)
    with pytest.raises(BaselineError, match="does not speculate; its log: E s"):
        LlamaServer(
            [str(path)], zoo.target_path(), zoo.draft_path(), name="fake", method="model", n_ctx=512,
            threads=1,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "complaint"),
    [
        ("hangs", r"^fake gave no response for 0.5 s$"),
        ("dies", r"^fake was ended by SIGSEGV; its log: .*ggml_abort: out of luck$"),
        ("garbage", r"^fake said b'Segmentation fault \(core dumped\)', which is no message of an event"),
        ("stops", r"^fake ended its answer without saying how many tokens it has$"),
    ],
)
def test_server_that_fails_in_an_answer_is_reported(tmp_path: Path, mode: str, complaint: str) -> None:
    server = fake(tmp_path, mode, timeout=0.5)
    try:
        assert server.version() == "9596 (18ef86ece)"
        with pytest.raises(BaselineError, match=complaint):
            server.answer(ASK)
    finally:
        server.close()
    assert not psutil.pid_exists(server.pid)


def test_server_that_does_not_get_ready_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match=r"^fake was not ready within 0.3 s"):
        fake(tmp_path, "loads", start_timeout=0.3)


def test_server_is_found_or_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BaselineError, match=r"there is no program llama-server: name it"):
        find_program()
    path = write_fake_server(tmp_path / "llama-server", "works")
    assert find_program() == find_program(str(path)) == (str(path),)
    with pytest.raises(BaselineError, match="there is no program /no/server"):
        find_program("/no/server")


END = {"stop": True, "tokens_predicted": 3, "tokens_evaluated": 2, "timings": {"predicted_ms": 1.0}}


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"tokens_evaluated": None}, "ended its answer without saying how many tokens"),
        ({"tokens_evaluated": -1}, "tokens_evaluated is -1"),
        ({"timings": {"predicted_n": 1e300}}, "timings.predicted_n is 1e+300"),
        ({"timings": {"draft_n": 3, "draft_n_accepted": 4}}, "4 accepted of 3 drafted tokens"),
        ({"stop": False, "tokens": "12"}, "tokens is '12'"),
        ({"timings": 7}, "timings is 7"),
    ],
)
def test_impossible_answer_is_refused_in_one_line(tmp_path: Path, lie: dict[str, Any], words: str) -> None:
    said = tmp_path / "said"
    said.write_text(f"data: {json.dumps(END | lie)}\n\n")
    server = fake(tmp_path, f"says:{said}")
    try:
        with pytest.raises(BaselineError) as caught:
            server.answer(ASK)
    finally:
        server.close()
    assert words in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_request_has_no_prompt_cache_and_its_own_samplers() -> None:
    body = completion_body(BenchRequest("ab", (1, 2), 3, seed=5))
    assert body["prompt"] == [1, 2]
    assert (body["n_predict"], body["seed"], body["ignore_eos"]) == (3, 5, True)
    assert (body["cache_prompt"], body["return_tokens"], body["stream"]) == (False, True, True)
    # The default chain filters by top-k 40, top-p 0.95 and min-p 0.05 at temperature 0.8.
    assert (body["samplers"], body["top_k"], body["temperature"]) == (["top_k"], 1, 0.0)
    drawn = completion_body(BenchRequest("ab", (1, 2), 3, sampling=Sampling(temperature=0.7)))
    assert (drawn["samplers"], drawn["temperature"]) == (["temperature"], 0.7)
    sampling = Sampling(repeat_penalty=1.1, logit_bias={3: -math.inf, 4: 1.5})
    body = completion_body(BenchRequest("ab", (1, 2), 3, sampling=sampling))
    assert (body["samplers"], body["repeat_penalty"]) == (["penalties", "top_k"], 1.1)
    assert body["logit_bias"] == [[3, False], [4, 1.5]]


def test_flags_of_the_server_are_in_its_help() -> None:
    target, draft = Path("t.gguf"), Path("d.gguf")
    model = model_arguments(target, draft, n_ctx=512, threads=2, flash_attention=False, cache_type="q8_0")
    assert " ".join(model) == (
        "-m t.gguf -c 512 -t 2 -tb 2 -ngl 0 -ctk q8_0 -ctv q8_0 -fa off -md d.gguf --spec-draft-ngl 0 "
        "-ctkd q8_0 -ctvd q8_0 --fit off"
    )
    spec = speculation_arguments(spec_types("model, lookup,ngram-map-k"), 4, 0.5)
    assert " ".join(spec) == (
        "--spec-type draft-simple,ngram-simple,ngram-map-k --spec-draft-p-min 0.5 --spec-draft-n-max 4 "
        "--spec-draft-n-min 0 --spec-ngram-simple-size-m 4 --spec-ngram-map-k-size-m 4"
    )
    known = HELP.read_text().replace(",", " ").split()
    assert [word for word in (*model, *spec) if word[:1] == "-" and word not in known] == []


def test_settings_left_open_have_no_flags() -> None:
    assert speculation_arguments(("draft-mtp",), None, None) == ["--spec-type", "draft-mtp"]
    assert speculation_arguments(("ngram-mod",), 4, 0.5) == ["--spec-type", "ngram-mod"]
    assert speculation_arguments(spec_types("plain"), 4, 0.5) == []
    methods = ("plain", "lookup", "draft-mtp", "lookup,draft-eagle3")
    assert [needs_draft(spec_types(method)) for method in methods] == [False, False, False, True]
