"""The page's conversation and live view, in a real browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from page_browser import aloud, answered, ask, visiting
from stand_in import LIVE, Answer, Part, StandIn, serving

pytestmark = pytest.mark.slow

PARTS: list[Part] = [("One two", "target"), (" three four", "lookup"), (" five", "target")]
PARTS += [(" six", "suffix")]
CODE = "Look:\n\n```python\nif x:\n\n    y = `1`\n```\n\nAnd ```inline``` text.\n````\n```\n````\nEnd ``"


def marks(page: Page) -> list[tuple[str, str]]:
    found = page.locator(".answer .mark").all()
    return [(one.inner_text(), one.get_attribute("title") or "") for one in found]


def test_an_answer_is_marked_by_who_drafted_it_and_its_figures_stand_below(browser: Browser) -> None:
    with visiting(browser, StandIn([Answer([PARTS[:2], *PARTS[2:]])])) as page:
        ask(page, "Count")
        assert answered(page) == "One two three four five six"
        assert marks(page) == [(" three four", "drafted by lookup"), (" six", "drafted by suffix")]
        legend = page.locator(".legend li").all_inner_texts()
        assert legend == ["target 44%", "lookup 41%", "suffix 15%"]
        assert page.locator(".figures").inner_text() == (
            "128 tokens · 31.3 tokens/s · 1.42 × plain decoding · 71 of 96 draft tokens accepted"
            " · prompt of 34 in 0.2 s"
        )


def test_a_request_holds_the_conversation_and_the_settings(browser: Browser) -> None:
    stand_in = StandIn([Answer(PARTS), Answer(PARTS)], models=("smollm2", "other"))
    with visiting(browser, stand_in) as page:
        ask(page, "Count")
        answered(page)
        page.click("#settings-button")
        page.select_option("#model", "other")
        page.fill("#system", "Be short.")
        page.fill("#temperature", "0.7")
        page.fill("#longest", "200")
        page.uncheck("#drafting")
        ask(page, "Again")
        answered(page, 2)
    first, second = stand_in.asked
    how = {"stream": True, "stream_options": {"include_usage": True}}
    assert first == how | {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Count"}],
        "speculative": {"enabled": True, "report": True},
    }
    whole = "One two three four five six"
    turns = [("system", "Be short."), ("user", "Count"), ("assistant", whole), ("user", "Again")]
    assert second == how | {
        "model": "other",
        "messages": [{"role": role, "content": content} for role, content in turns],
        "speculative": {"enabled": False, "report": True},
        **{"temperature": 0.7, "max_tokens": 200},
    }


def test_text_is_shown_while_it_comes_and_is_said_aloud_once_it_is_whole(browser: Browser) -> None:
    stand_in = StandIn([Answer(PARTS, holds_after=2)])
    with visiting(browser, stand_in) as page:
        ask(page, "Count")
        expect(page.locator(".answer")).to_have_text("One two three four")
        assert page.locator("#turns").get_attribute("aria-busy") == "true"
        assert aloud(page) == ""
        stand_in.gate.set()
        answered(page)
        assert aloud(page) == "Answer: One two three four five six"
        assert page.locator("#turns").get_attribute("aria-busy") == "false"
        # Nothing else that grows with an answer is a live region.
        assert page.locator("#turns [aria-live], #turns [role=log], #turns [role=status]").count() == 0


@pytest.mark.parametrize("size", [1, 7])
def test_blocks_of_code_are_the_same_wherever_the_stream_is_cut(browser: Browser, size: int) -> None:
    parts = [(CODE[i : i + size], "target") for i in range(0, len(CODE), size)]
    with visiting(browser, StandIn([Answer(parts)])) as page:
        ask(page, "Code")
        answered(page)
        blocks = page.locator(".answer > *")
        texts = page.evaluate(
            "[...document.querySelectorAll('.answer .prose, .answer pre')].map(n => n.textContent)"
        )
        assert texts == ["Look:", "if x:\n\n    y = `1`", "And ```inline``` text.", "```", "End ``"]
        assert blocks.locator("pre").count() == 2
        labels = page.locator("pre").evaluate_all("all => all.map(pre => pre.getAttribute('aria-label'))")
        assert labels == ["Code, python", "Code"]


def test_copying_gives_the_text_as_the_model_wrote_it(browser: Browser) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    parts = [(CODE, "target"), ("\x1b[0m", "lookup")]
    with visiting(browser, StandIn([Answer(parts)]), permissions=permissions) as page:
        ask(page, "Code")
        answered(page)
        page.get_by_role("button", name="Copy", exact=True).click()
        expect(page.locator("#status")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == CODE + "\x1b[0m"
        page.get_by_role("button", name="Copy code").first.click()
        page.wait_for_function(
            "navigator.clipboard.readText().then(text => text === 'if x:\\n\\n    y = `1`')"
        )


def test_a_conversation_outlives_a_reload_and_ends_with_a_new_one(browser: Browser) -> None:
    stand_in = StandIn([Answer(PARTS), Answer([("Fresh", "target")])])
    with visiting(browser, stand_in) as page:
        ask(page, "Count")
        answered(page)
        before = page.locator("#turns").inner_html()
        page.reload()
        assert page.locator("#turns").inner_html() == before
        page.get_by_role("button", name="New chat").click()
        assert page.locator("article").count() == 0
        expect(page.locator("#message")).to_be_focused()
        ask(page, "Start")
        assert answered(page) == "Fresh"
    assert stand_in.asked[1]["messages"] == [{"role": "user", "content": "Start"}]


def test_the_live_view_tells_what_the_server_tells(browser: Browser) -> None:
    stand_in = StandIn()
    with visiting(browser, stand_in) as page:
        live = page.locator("#live")
        expect(page.locator("#live-state")).to_have_text("Live")
        assert page.locator("#model-name").inner_text() == "smollm2, llama.cpp"
        assert page.locator("#speed").inner_text() == "31.2"
        assert page.locator("#against-plain").inner_text() == "Plain decoding: 22 tokens/s. Now 1.42 × that."
        assert page.locator("#decision").inner_text() == LIVE["decision"]
        positions = page.locator("#acceptance li").evaluate_all("all => all.map(li => li.textContent)")
        assert positions == ["Position 181%", "Position 266%", "Position 352%", "Position 440%"]
        heights = page.locator(".column span").evaluate_all("all => all.map(bar => bar.style.blockSize)")
        assert heights == ["81%", "66%", "52%", "40%"]
        rows = page.locator("#drafters tbody tr").evaluate_all(
            "all => all.map(r => [...r.cells].map(c => c.textContent))"
        )
        lookup, suffix = ["lookup", "1,230", "880 (72%)"], ["suffix", "410", "205 (50%)"]
        assert rows == [lookup, suffix, ["draft", "96", "71 (74%)"]]
        assert page.locator("#times li").all_inner_texts() == [
            "draft 10%", "forward 80%", "verify 5%", "commit 1%", "other 4%",
        ]  # fmt: skip
        assert live.get_by_text("2 of 8 slots").is_visible()
        assert live.get_by_text("3 of 64 places").is_visible()
        assert live.get_by_text("Up for 2 h 3 min.").is_visible()
        stand_in.live = {**LIVE, "running": 0, "tokens_per_second": 3.0}
        expect(page.locator("#against-plain")).to_have_text("Plain decoding: 22 tokens/s.")
        few = {"drafted": {"suffix": 1, "new": 4}, "accepted": {"new": 3}, "acceptance": [0.004]}
        stand_in.live = {**LIVE, **few}
        expect(page.locator("#drafters tbody")).to_have_text("suffix10 (0%)new43 (75%)")
        expect(page.locator("#acceptance")).to_have_text("Position 1<1%")


def test_every_file_comes_with_a_policy_that_forbids_what_is_inline(browser: Browser) -> None:
    with serving(StandIn()) as stand_in:
        context = browser.new_context()
        for path, kind in (("", "text/html"), ("page.js", "text/javascript"), ("page.css", "text/css")):
            response = context.request.get(stand_in.url + path)
            assert response.headers["content-security-policy"].startswith("default-src 'self';")
            assert response.headers["content-type"] == f"{kind}; charset=utf-8"
        context.close()
