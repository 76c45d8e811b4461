"""What a request may ask for, and how a chat becomes tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.core.errors import ModelError, UsageError
from paceline.core.settings import Drafting
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
        self.vocab = Vocab(10, "BPE", 1, frozenset(), add_bos, False, lambda token: b"%d" % token)
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
