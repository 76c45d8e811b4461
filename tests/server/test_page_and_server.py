"""The page as the server serves it: a real model, a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

import paceline
from page_browser import answered, ask
from real_model import smollm2
from serving import LONG, serving

pytestmark = pytest.mark.slow

COPY = "Say this again, word for word: red green blue red green blue red green blue red green blue"


def test_conversation_on_the_page_shows_what_the_library_generates(browser: Browser) -> None:
    complaints: list[str] = []
    with (
        paceline.load(smollm2(), None, "lookup", sessions=2, n_ctx=768, threads=1, ngram_min=1) as llm,
        serving(llm) as served,
    ):
        page = browser.new_page()
        page.set_default_timeout(1000 * LONG)
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
        assert told == " ".join(alone.text.split())
        assert "of this answer" in page.locator(".figures").inner_text()
        assert page.locator(".answer .mark").count() > 0  # a copy is drafted by lookup
        expect(page.locator("#live")).to_contain_text("lookup")
        page.close()
        assert complaints == []
        served.rest()
