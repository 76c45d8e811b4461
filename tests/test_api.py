"""Requests of the Python API: their options, batches and chats."""

from __future__ import annotations

import pickle
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import paceline
from gguf_files import write_llama
from paceline.api import LLM, RequestOptions
from paceline.speculative.errors import BatchError, UsageError
from paceline.speculative.sampling import Sampling


@pytest.mark.parametrize("template", ["{{ bos_token }}hi", "hi"])
@pytest.mark.parametrize("adds", [True, False])
def test_a_chat_begins_with_one_bos_where_the_model_wants_it(
    adds: bool, template: str, tmp_path: Path
) -> None:
    made = write_llama(tmp_path / "a.gguf", chat_template=template)
    with paceline.load(made, drafters="none", threads=1, n_ctx=64) as llm:
        vocab: Any = replace(llm.target.vocab, add_bos=adds)
        vars(llm.target)["vocab"] = vocab
        assert llm.chat_tokens("hi").count(vocab.bos) == (adds or template != "hi")


def test_more_log_probabilities_than_tokens_are_refused(target: Path) -> None:
    complaint = "logprobs 259: must be between 0 and the model's 258 tokens"
    with paceline.load(target, threads=1) as llm, pytest.raises(UsageError, match=complaint):
        llm.generate([1, 2], logprobs=259)


@pytest.mark.parametrize("sessions", [1, 2, 5])
def test_a_list_of_prompts_is_a_batch_and_each_is_what_it_is_alone(models: Path, sessions: int) -> None:
    prompts = ["one", "two two two", "three", "four four", "five"]
    exact: dict[str, Any] = {"threads": 1, "flash_attention": False, "cache_type": "f32", "n_ctx": 128}
    with paceline.load(
        models / "target.gguf", models / "draft.gguf", "lookup,model", sessions=sessions, p_min=0.0, **exact
    ) as llm:
        alone = [llm.generate(prompt, max_tokens=12, ignore_eos=True, logprobs=1) for prompt in prompts]
        llm.target.forget()
        passes: list[int] = []
        llm.target.on_forward = lambda rows, depth, seconds: passes.append(rows)
        done = llm.generate(prompts, max_tokens=12, ignore_eos=True, logprobs=1)
        assert [one.tokens for one in done] == [one.tokens for one in alone]
        assert [(one.text, one.stop_reason, len(one.logprobs)) for one in done] == [
            (one.text, "length", 12) for one in alone
        ]
        groups = [done[i : i + sessions] for i in range(0, len(done), sessions)]
        assert len(passes) <= sum(max(one.stats.steps for one in group) for group in groups)
        assert all(one.seconds > 0 for one in done)
        assert llm.generate([[1, 2]], max_tokens=2, ignore_eos=True)[0].n_tokens == 2


def test_a_prompt_that_fails_costs_the_others_of_its_batch_nothing(models: Path) -> None:
    with paceline.load(models / "target.gguf", drafters="none", sessions=2, threads=1, n_ctx=32) as llm:
        asked: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True}
        alone = [llm.generate(one, **asked).tokens for one in ("a", "c", "d")]
        with pytest.raises(BatchError) as caught:
            llm.generate(["a", "b" * 40, "c", "", "d"], **asked)
        error = caught.value
        assert [result and result.tokens for result in error.results] == [
            alone[0],
            None,
            alone[1],
            None,
            alone[2],
        ]
        assert list(error.errors) == [1, 3]
        assert error.__cause__ is error.errors[1]
        assert str(error).startswith("prompt [1]: the prompt has 40 tokens, the context 32: ")
        assert str(error).endswith(" (and 1 more failed, see .errors); .results has the 3 other answers")
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        with pytest.raises(UsageError, match="the prompt has 40 tokens"):  # there is no answer to lose
            llm.generate(["b" * 40, "b" * 41], **asked)


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [
        ("ab\ud800", r"the prompt is not UTF-8 text \(character 2\)"),
        (5, "the prompt 5: must be text, or a list of token ids"),
        (b"ab", "the prompt b'ab': must be text, or a list of token ids"),
        ([1, 2.5], "the prompt: token 2.5: must be a whole number"),
        ([1, 1 << 70], "outside the vocabulary"),
    ],
)
def test_a_prompt_that_is_neither_text_nor_tokens_is_refused(
    models: Path, prompt: Any, complaint: str
) -> None:
    with paceline.load(models / "target.gguf", drafters="none", threads=1) as llm:
        with pytest.raises(UsageError, match=complaint):
            llm.generate(prompt)
        assert llm.generate(np.array([1, 2]), max_tokens=np.int64(1)).n_tokens == 1  # type: ignore[call-overload]


def test_numbers_beyond_a_word_are_numbers(models: Path) -> None:
    far = 1 << 70
    with paceline.load(models / "target.gguf", drafters="lookup", threads=1) as llm:
        request: dict[str, Any] = {"seed": far, "temperature": 1.0, "top_k": far, "repeat_last_n": far}
        one, two = (llm.generate([65, 66], max_tokens=6, ignore_eos=True, **request) for _ in range(2))
        assert one.tokens == two.tokens
        assert (
            llm.generate([65, 66], max_tokens=far, stop=one.text[:1], ignore_eos=True, **request).text == ""
        )


def test_a_stop_string_that_the_last_token_allowed_completes_is_cut_off(models: Path) -> None:
    """The reason is "stop", not max_tokens, with and without drafts."""
    with paceline.load(models / "target.gguf", models / "draft.gguf", threads=1, p_min=0.0) as llm:
        for plain in (True, False):
            request: dict[str, Any] = {"max_tokens": 9, "ignore_eos": True, "plain": plain}
            whole = llm.generate([65, 66], **request)
            stop = whole.text[-4:]
            assert whole.text.count(stop) == 1
            done = llm.generate([65, 66], stop=stop, **request)
            assert (whole.stop_reason, done.stop_reason) == ("length", "stop")
            assert (done.text, done.tokens) == (whole.text[:-4], whole.tokens)


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_prompt_of_a_batch_that_cannot_begin_fails_alone(bad: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with paceline.load("toy:", drafters="lookup", sessions=2) as llm:
        open_ = llm.drafter.open

        def opens(prompt: Any, *more: Any) -> Any:
            if list(prompt) == [bad + 1]:
                raise RuntimeError("no room")
            return open_(prompt, *more)

        monkeypatch.setattr(llm.drafter, "open", opens)
        with pytest.raises(BatchError, match="no room") as caught:
            llm.generate([[1], [2], [3]], max_tokens=4)
    assert list(caught.value.errors) == [bad]
    assert [result is None for result in caught.value.results] == [at == bad for at in range(3)]


def test_options_of_requests_have_the_types_of_sampling() -> None:
    options = get_type_hints(RequestOptions)
    fields = {name: kind for name, kind in get_type_hints(Sampling).items() if name != "dry_breakers"}
    # Texts stand for tokens.
    assert {name for name in fields if options.pop(name) != fields[name]} == {
        "dry_sequence_breakers",
        "logit_bias",
    }
    named = {name for name, it in signature(LLM.request).parameters.items() if it.kind == it.KEYWORD_ONLY}
    assert set(options) == named
