"""The page as the server serves it, and tools through OpenAI's client: a real model, a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from playwright.sync_api import Browser, expect

import paceline
from paceline.api import LLM
from page_browser import answered, ask
from real_model import smollm2
from serving import LONG, Served, serving, until

pytestmark = pytest.mark.slow

COPY = "Say this again, word for word: red green blue red green blue red green blue red green blue"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with paceline.load(smollm2(), None, "lookup", sessions=2, n_ctx=768, threads=1, ngram_min=1) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def served(llm: LLM) -> Iterator[Served]:
    with serving(llm, names=("small",)) as up:
        yield up


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=LONG) as made:
        yield made


def test_a_conversation_on_the_page(browser: Browser, served: Served, llm: LLM) -> None:
    page = browser.new_page()
    page.set_default_timeout(1000 * LONG)
    complaints: list[str] = []
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(served.url)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Longest answer").fill("40")
    page.keyboard.press("Escape")
    ask(page, COPY)
    told = answered(page)
    alone = llm.generate(llm.chat_tokens(COPY), max_tokens=40)
    assert told == alone.text.strip()
    assert "tokens/s" in page.locator(".figures").inner_text()
    assert page.locator(".answer .mark").count() > 0  # a copy is drafted by lookup
    expect(page.locator("#live")).to_contain_text("lookup")
    page.close()
    assert complaints == []
    served.rest()


def test_stop_on_the_page_frees_the_session(browser: Browser, served: Served) -> None:
    page = browser.new_page()
    page.set_default_timeout(1000 * LONG)
    page.goto(served.url)
    ask(page, "Write a very long story about the sea.")
    until(lambda: served.service.running == 1)
    page.get_by_role("button", name="Stop").click()
    served.rest()
    page.close()


def test_a_call_is_forced_and_read(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="small",
        messages=QUESTION,
        tools=[WEATHER],
        tool_choice="required",
        temperature=0,
        max_tokens=64,
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    calls: Any = choice.message.tool_calls
    (call,) = calls
    assert (call.function.name, list(json.loads(call.function.arguments))) == ("get_weather", ["city"])
    # And its result goes back into the conversation.
    said: Any = [
        *QUESTION,
        choice.message,
        {"role": "tool", "tool_call_id": call.id, "content": "19 degrees"},
    ]
    after = client.chat.completions.create(
        model="small", messages=said, tools=[WEATHER], temperature=0, max_tokens=24
    )
    assert after.choices[0].message.content


def test_a_call_in_a_stream_is_the_whole_one(client: OpenAI) -> None:
    asked: Any = {
        "model": "small",
        "messages": QUESTION,
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "temperature": 0,
        "max_tokens": 64,
    }
    whole = client.chat.completions.create(**asked).choices[0]
    arguments, names, reason = "", list[str](), None
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            deltas: Any = choice.delta.tool_calls or ()
            for call in deltas:
                arguments += call.function.arguments or ""
                names += [call.function.name] if call.function.name else []
    calls: Any = whole.message.tool_calls
    (told,) = calls
    assert (arguments, names, reason) == (told.function.arguments, ["get_weather"], "tool_calls")
