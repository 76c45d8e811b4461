"""Requests from items: templates, sessions, and the context limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import paceline
from gguf_files import write_llama
from paceline.api import LLM
from paceline.bench.prompts import RequestBuilder
from paceline.bench.suites.workload import Item
from paceline.speculative.errors import UsageError
from paceline.speculative.sampling import Sampling

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
PLAIN = Item("p", "one", prompt="hello there", max_tokens=9, seed=3)
FIRST = Item("s.1", "one", messages=(("system", "be brief"), ("user", "hi")), session="s")
OPEN = (*FIRST.messages, ("assistant", None), ("user", "and?"))
SECOND = Item("s.2", "one", messages=OPEN, session="s", earlier=("s.1",))


@pytest.fixture(scope="module")
def base(models: Path) -> Iterator[LLM]:
    with paceline.load(models / "target.gguf", drafters="none", threads=1, n_ctx=256) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_llama(tmp_path_factory.mktemp("chat") / "chat.gguf", chat_template=TEMPLATE)
    with paceline.load(path, drafters="none", threads=1, n_ctx=256) as loaded:
        yield loaded


def prompts(llm: LLM, **settings: Any) -> RequestBuilder:
    defaults: dict[str, Any] = {"n": None, "sampling": Sampling(), "seed": 0}
    return RequestBuilder(llm, **defaults | settings)


def test_prompt_is_unchanged_with_its_own_length_and_seed(base: LLM) -> None:
    ask = prompts(base, seed=4).request(PLAIN, {})
    assert (ask.prompt, ask.tokens) == ("hello there", tuple(base.tokens("hello there")))
    assert (ask.max_tokens, ask.seed) == (9, 7)
    sampling = Sampling(temperature=0.5)
    ask = prompts(base, n=5, sampling=sampling).request(PLAIN, {})
    assert (ask.max_tokens, ask.sampling) == (5, sampling)


def test_messages_with_earlier_answers_go_through_the_chat_template(chat: LLM, base: LLM) -> None:
    messages = (*SECOND.messages, ("assistant", None), ("user", "so?"))
    third = replace(SECOND, id="s.3", earlier=("s.1", "s.2"), messages=messages)
    ask = prompts(chat).request(third, {"s.1": "one", "s.2": "two"})
    assert ask.prompt == "[system]be brief[user]hi[assistant]one[user]and?[assistant]two[user]so?[assistant]"
    with pytest.raises(UsageError, match=r"the answer to s\.1, which was not asked"):
        prompts(chat).request(third, {"s.2": "two"})
    # A base model has no template.
    ask = prompts(base).request(SECOND, {"s.1": "hello"})
    assert ask.prompt == "System: be brief\n\nUser: hi\n\nAssistant: hello\n\nUser: and?\n\nAssistant:"


def test_item_longer_than_the_context_is_refused(base: LLM) -> None:
    fits = replace(PLAIN, prompt="x" * 247)
    assert len(prompts(base).request(fits, {}).tokens) == 247
    with pytest.raises(UsageError, match=r"item p: its 248 tokens and 9 more .* context of 256: .*\(-c\)"):
        prompts(base).request(replace(PLAIN, prompt="x" * 248), {})
