"""What a request may ask for, and how a chat becomes tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.core.errors import ModelError, UsageError
from paceline.core.ports import Want
from paceline.core.settings import Drafting
from paceline.core.tree import EMPTY
from paceline.core.vocab import Vocab
from paceline.drafters.none import NoDrafter
from paceline.llm import LLM


class Text:
    def __init__(self, rendered: list[int]) -> None:
        self._rendered = rendered

    def render(self, messages: list[dict[str, str]]) -> str:
        assert messages == [{"role": "user", "content": "hi"}]
        return "rendered"

    def encode(self, text: str, *, special: bool, add_bos: bool) -> list[int]:
        assert (text, special, add_bos) == ("rendered", True, False)
        return list(self._rendered)


class FakeTarget:
    def __init__(self, add_bos: bool, rendered: list[int]) -> None:
        self.vocab = Vocab(10, "BPE", 1, frozenset(), add_bos, False, b"%d".__mod__, b"%d".__mod__)
        self.text = Text(rendered)


@pytest.mark.parametrize(
    ("add_bos", "rendered", "tokens"),
    [(True, [5, 6], [1, 5, 6]), (True, [1, 5, 6], [1, 5, 6]), (False, [5, 6], [5, 6])],
)
def test_a_chat_begins_with_one_bos_where_the_model_wants_it(
    add_bos: bool, rendered: list[int], tokens: list[int]
) -> None:
    target: Any = FakeTarget(add_bos, rendered)
    assert LLM(target, NoDrafter(), Drafting()).chat_tokens("hi") == tokens


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        ({"seed": -1}, "seed -1: must be at least 0"),
        ({"logit_bias": {258: 1.0}}, "logit bias for token 258: the model's tokens are 0 to 257"),
        ({"warmth": 1}, "unknown setting warmth"),
        ({"stop": [""]}, "an empty stop string"),
        ({"max_tokens": 0}, "max_tokens 0: must be at least 1"),
        ({"logprobs": -1}, "logprobs -1: must be between 0 and the model's 258 tokens"),
        ({"logprobs": 259}, "logprobs 259: must be between 0 and the model's 258 tokens"),
        ({"json_schema": {}, "regex": "a"}, "a text can follow only one of them"),
        ({"json_schema": {"type": "text"}}, "the JSON schema cannot be used: Invalid type: text"),
        ({"regex": "a", "ignore_eos": True}, "a grammar says where the text ends"),
    ],
)
def test_a_request_that_cannot_work_is_refused(
    models: Path, request_: dict[str, Any], complaint: str
) -> None:
    with (
        paceline.load(models / "target.gguf", threads=1) as llm,
        pytest.raises(UsageError, match=complaint),
    ):
        llm.generate([1, 2], **request_)


def test_an_engine_that_fails_in_mid_stream_leaves_the_session_free(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise ModelError("llama_decode failed")

    with paceline.load(models / "target.gguf", threads=1) as llm:
        stream = llm.stream([1, 2], max_tokens=8, ignore_eos=True)
        next(stream)
        with monkeypatch.context() as patch:
            patch.setattr(llm.target, "forward", failing)
            with pytest.raises(ModelError):
                next(stream)
        assert stream.result().n_tokens >= 1
        assert llm.generate([1, 2], max_tokens=8, ignore_eos=True).n_tokens == 8


def test_a_refused_grammar_leaves_no_session_open(models: Path) -> None:
    with paceline.load(models / "target.gguf", threads=1) as llm:
        with pytest.raises(UsageError):
            llm.generate([1, 2], regex="[^\\s\\S]")
        assert llm.generate([1, 2], regex="ab?", max_tokens=9).text in ("a", "ab")


def row_after(llm: LLM, tokens: list[int]) -> np.ndarray:
    session = llm.target.open()
    session.prefill(tokens)
    row = llm.target.forward([(session, EMPTY)], Want())[0].logits(0).astype(np.float64)
    session.close()
    return row


WAYS: list[dict[str, Any]] = [
    {"drafters": "none"},
    {"drafters": "lookup", "ngram_min": 1},
    {"drafters": "model", "width": 3, "p_split": 0.01, "p_min": 0.0},
    {"drafters": "model", "temperature": 1.0, "p_min": 0.0},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_log_probabilities_are_the_rows_own_whoever_drafted_the_token(
    models: Path, way: dict[str, Any]
) -> None:
    draft = models / "draft.gguf" if way["drafters"] == "model" else None
    exact: dict[str, Any] = {"threads": 1, "flash_attention": False, "cache_type": "f32"}
    request: dict[str, Any] = {"max_tokens": 20, "temperature": 0.7, "top_k": 5, "logprobs": 4}
    prompt = [65, 66, 65, 66, 65]
    with paceline.load(models / "target.gguf", draft, n_ctx=128, **exact, **way) as llm:
        with llm.stream(prompt, ignore_eos=True, **request) as stream:
            pieces = list(stream)
        done = stream.result()
        rows = [row_after(llm, [*prompt, *done.tokens[:n]]) for n in range(len(done.tokens))]
    assert [one for piece in pieces for one in piece.logprobs] == list(done.logprobs)
    assert [len(piece.logprobs) for piece in pieces] == [len(piece.tokens) for piece in pieces]
    for row, token, said in zip(rows, done.tokens, done.logprobs, strict=True):
        right = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert said.logprob == pytest.approx(right[token], abs=1e-4)
        assert [x for _, x in said.top] == pytest.approx(sorted(right)[::-1][:4], abs=1e-4)
        assert [right[t] for t, _ in said.top] == pytest.approx([x for _, x in said.top], abs=1e-4)


def test_log_probabilities_end_where_a_stop_string_cut_the_text(models: Path) -> None:
    with paceline.load(models / "target.gguf", models / "draft.gguf", threads=1, p_min=0.0) as llm:
        whole = llm.generate([65, 66], max_tokens=24, ignore_eos=True, logprobs=0)
        stop = whole.text[5:7]
        done = llm.generate([65, 66], max_tokens=24, ignore_eos=True, logprobs=0, stop=stop)
    assert done.stop_reason == "stop"
    assert len(done.logprobs) == len(done.tokens) < 24
    assert done.tokens == whole.tokens[: len(done.tokens)]


def test_a_stop_string_that_the_last_token_allowed_completes_is_cut_off(models: Path) -> None:
    """Whoever drafted it: "stop" is the reason, and not max_tokens."""
    with paceline.load(models / "target.gguf", models / "draft.gguf", threads=1, p_min=0.0) as llm:
        for plain in (True, False):
            request: dict[str, Any] = {"max_tokens": 9, "ignore_eos": True, "plain": plain}
            whole = llm.generate([65, 66], **request)
            stop = whole.text[-4:]
            assert whole.text.count(stop) == 1
            done = llm.generate([65, 66], stop=stop, **request)
            assert (whole.stop_reason, done.stop_reason) == ("length", "stop")
            assert (done.text, done.tokens) == (whole.text[:-4], whole.tokens)
