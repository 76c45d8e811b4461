"""The page's accessibility: dark and light, narrow and wide, by keyboard, by axe-core's rules."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from page_browser import PHONE, answered, ask, visiting
from stand_in import Answer, Part, StandIn, refusal

pytestmark = pytest.mark.slow

DRAFTERS = ("lookup", "suffix", "draft", "ngram", "corpus", "views", "lookahead", "later")
PARTS: list[Part] = [(f"Drafted by {name}. ", name) for name in DRAFTERS]
PARTS.insert(0, ("Said by the target. ", "target"))
LINES = "x = 1  # a line that is wider than any window\n" * 2 + "y" * 300
CODE: Part = (f"\n## Head\n```python\n{LINES}\n```\n|a|b|\n|-|-|\n|[x](https://x.org)|`2`|\n", "target")
WIDE = {"width": 1280, "height": 800}
OUT_OF_SIGHT = ("partially ", "exceeds the grid bounds")  # axe-core's words
SUMMARY = "1.4 times as fast as without drafts; lookahead guessed 13% and lookup 11% of this answer"
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


def assert_accessible(page: Page) -> None:
    """Check axe-core's rules. Undecided contrast fails too, except of text that is partly out of sight:
    other text has the same colours."""
    found: dict[str, Any] = Axe().run(page, options=RULES).response
    undecided = [one for one in found["incomplete"] if one["id"] == "color-contrast"]
    problems = [
        (one["id"], node["html"][:120], [check["message"] for check in node["any"]])
        for one in found["violations"] + undecided
        for node in one["nodes"]
        if not (one in undecided and any(reason in str(node) for reason in OUT_OF_SIGHT))
    ]
    assert problems == []
    assert len(found["passes"]) > 20


@pytest.mark.parametrize(("scheme", "size"), [("light", WIDE), ("dark", PHONE)], ids=["light", "dark"])
def test_every_state_is_accessible_and_fits_the_window(
    browser: Browser, size: dict[str, int], scheme: str
) -> None:
    answers: list[Any] = [Answer([*PARTS, CODE], thoughts="Hm."), refusal(429, "The queue is full.")]
    answers += [Answer(PARTS, holds_after=2)]
    stand_in = StandIn(answers, key="k")

    def look() -> None:
        assert_accessible(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    with visiting(browser, stand_in, refused=3, viewport=size, color_scheme=scheme) as page:
        look()  # asks for a key
        page.fill("#key", "k")
        page.press("#key", "Enter")
        expect(page.locator("#live-state")).to_have_text("Live")
        look()  # without a conversation
        ask(page, "Count")
        answered(page)
        page.click(".thoughts summary")
        page.click(".figures summary")
        look()  # with an answer, and all of it
        ask(page, "Count")
        answered(page, 2)
        page.set_input_files("#file", {"name": "a.txt", "mimeType": "", "buffer": b"text"})
        look()  # with an error and a file
        page.get_by_role("button", name="Edit message").click()
        look()  # while a question is edited
        page.get_by_role("button", name="Cancel").click()
        page.keyboard.press("Control+/")
        expect(page.locator("#settings-dialog")).to_be_visible()
        look()
        page.keyboard.press("Escape")
        for panel in ("library", "live"):
            if page.get_attribute(f"#{panel}-button", "aria-expanded") == "false":
                page.click(f"#{panel}-button")
            look()
            page.locator(f"#{panel} .close").press("Escape" if size == PHONE else "Enter")
            expect(page.locator(f"#{panel}-button")).to_be_focused()
        ask(page, "Count")
        expect(page.locator(".answer").nth(2)).to_contain_text("lookup")
        look()  # while an answer comes


def test_the_theme_follows_the_system_until_one_is_chosen(browser: Browser) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    with visiting(browser, StandIn(), color_scheme="dark") as page:
        dark = page.evaluate(ground)
        page.emulate_media(color_scheme="light")
        light = page.evaluate(ground)
        assert dark != light
        page.click("#settings-button")
        page.select_option("#theme", "dark")
        assert page.evaluate(ground) == dark
        page.reload()
        assert page.evaluate(ground) == dark
        page.click("#settings-button")
        page.select_option("#theme", "")
        assert page.evaluate(ground) == light


def test_the_keyboard_reaches_everything_in_order_and_shows_where_it_is(browser: Browser) -> None:
    where = """() => {
        const at = document.activeElement;
        const name = at.id || (at === document.body ? "BODY" : at.ariaLabel || at.textContent.trim());
        const ring = getComputedStyle(at.id === "message" ? at.form : at);
        return [name, ring.outlineStyle === "solid" && parseFloat(ring.outlineWidth) > 0];
    }"""
    reached = []
    with visiting(browser, StandIn([Answer(PARTS), refusal(400, "No.")]), refused=1) as page:
        ask(page, "Count")
        answered(page)
        ask(page, "Count")
        answered(page, 2)
        page.locator(".skip").focus()
        while (at := page.evaluate(where))[0] != "BODY":
            reached.append(at)
            page.keyboard.press("Tab")
        names, ringed = zip(*reached, strict=True)
        assert all(ringed), reached
        assert list(names) == [
            "Skip to the message", "Close the chats", "search", "Count", "Delete Count", "export", "import",
            "library-button", "new", "title", "live-button", "settings-button", "turns", "Copy message",
            "Edit", SUMMARY, "Copy", "Answer again", "Copy message", "Edit", "Try again", "Edit message",
            "message", "attach", "send", "live", "Close the live view", "Figures for experts",
        ]  # fmt: skip
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#message")).to_be_focused()
        page.keyboard.press("Control+k")
        expect(page.locator("#search")).to_be_focused()
        page.keyboard.press("Control+Shift+O")
        expect(page.locator("article")).to_have_count(0)
        expect(page.locator("#message")).to_be_focused()
