"""The server's page in a real browser: a headless Chromium of this machine, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from stand_in import StandIn, serving

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PHONE = {"width": 360, "height": 740}
# What Chromium itself says about a response that is none, which a test may have asked for.
REFUSED = "Failed to load resource"


def chromium() -> Iterator[Browser]:
    """Start Chromium; skip the test if it is not installed."""
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path  # where "playwright install chromium" puts one
        found = own if Path(own).exists() else next(filter(None, map(shutil.which, NAMES)), None)
        if found is None:
            pytest.skip('no Chromium: "apt install chromium" or "playwright install chromium" brings one')
        browser = playwright.chromium.launch(executable_path=found)
        yield browser
        browser.close()


@contextmanager
def visiting(browser: Browser, stand_in: StandIn, *, refused: int = 0, **options: Any) -> Iterator[Page]:
    """The page, opened, in a browser without a past. At the end the browser may have complained about nothing
    but as many requests as the server `refused`, and may have asked nobody else. options: of the browser's
    context."""
    complaints: list[str] = []
    with serving(stand_in):
        context = browser.new_context(**options)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on(
            "console",
            lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: elsewhere(request.url, stand_in, complaints))
        page.goto(stand_in.url)
        page.locator("#model-name, #key-form").filter(visible=True).first.wait_for()
        yield page
        context.close()
    assert len([complaint for complaint in complaints if complaint.startswith(REFUSED)]) == refused
    assert [complaint for complaint in complaints if not complaint.startswith(REFUSED)] == []


def elsewhere(url: str, stand_in: StandIn, complaints: list[str]) -> None:
    if not url.startswith(stand_in.url):
        complaints.append(f"asked {url}")


def ask(page: Page, text: str) -> None:
    page.fill("#message", text)
    page.press("#message", "Enter")


def answered(page: Page, n: int = 1) -> str:
    """Wait for the n-th answer's end, and return its text."""
    turn = page.locator("article.reply").nth(n - 1)
    turn.locator(".below .figures, .below .error").first.wait_for()
    return turn.locator(".answer").inner_text()


def aloud(page: Page) -> str:
    return page.locator("#status").inner_text()
