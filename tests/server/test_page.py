"""The page's conversation and live view, in a real browser."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, FilePayload, Page, expect

from page_browser import aloud, answered, ask, visiting
from stand_in import LIVE, Answer, Part, StandIn, refusal, serving
from tools.vendor_page import FOLDERS, PACKAGES

pytestmark = pytest.mark.slow

PARTS: list[Part] = [("One two", "target"), (" three four", "lookup"), (" five", "target")]
PARTS += [(" six", "suffix")]
CODE = "Look:\n\n```python\nif x:\n\n    y = `1`\n```\n\nAnd ```inline``` text.\n````\n```\n````\nEnd ``"
MARKDOWN = (
    CODE + "\n\n# Head\n- [x] one **two**\n\n  more\n- $x_1^2$\n\n| a | b |\n|---|--:|\n| 1 | *2* |\n\n"
    "$$\n\\frac{a}{b}\n$$\n\n<b>no</b> [ok](https://x.org) [bad](javascript:1) ![i](https://x.org/i.png)\n"
)


def file_of(name: str, text: str) -> FilePayload:
    return {"name": name, "mimeType": "", "buffer": text.encode()}


def marks(page: Page) -> list[tuple[str, str]]:
    found = page.locator(".answer .mark").all()
    return [(one.inner_text(), one.get_attribute("title") or "") for one in found]


def test_an_answer_is_marked_by_who_drafted_it_and_its_figures_stand_below(browser: Browser) -> None:
    with visiting(browser, StandIn([Answer([PARTS[:2], *PARTS[2:]])])) as page:
        ask(page, "Count")
        assert answered(page) == "One two three four five six"
        assert marks(page) == [(" three four", "drafted by lookup"), (" six", "drafted by suffix")]
        said = "1.4 times as fast as without drafts; lookup guessed 41% and suffix 15% of this answer"
        assert page.locator(".figures").inner_text() == said
        line = "getComputedStyle(document.querySelector('.answer .mark')).textDecorationLine"
        assert page.evaluate(line) == "none"
        page.click(".figures summary")
        page.wait_for_function(f"{line} === 'underline'")
        legend = page.locator(".legend li").all_inner_texts()
        assert legend == ["target 44%", "lookup 41%", "suffix 15%"]
        assert page.locator(".figures p").inner_text() == (
            "128 tokens · 31.3 tokens/s · 1.42 × plain decoding · 71 of 96 draft tokens accepted"
            " · prompt of 34 in 0.2 s"
        )
        assert page.locator("#context-text").inner_text() == "162 of 4,096 tokens"


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
        page.fill("#preset-name", "Short")
        page.press("#preset-name", "Enter")
        page.select_option("#preset", "Precise")
        assert page.input_value("#temperature") == "0"
        assert page.input_value("#system") == ""
        page.select_option("#preset", "Short")
        page.keyboard.press("Escape")
        page.set_input_files("#file", [file_of("a.txt", "One\n```\n"), file_of("b.bin", "\0")])
        expect(page.locator("#toast")).to_have_text("b.bin is no text in UTF-8: only text can be sent.")
        assert page.locator(".chip").all_inner_texts() == ["a.txt"]
        ask(page, "Again")
        answered(page, 2)
    first, second = stand_in.asked
    how = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
    assert first == how | {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Count"}],
        "speculative": {"enabled": True, "report": True},
    }
    whole = "One two three four five six"
    turns = [("system", "Be short."), ("user", "Count"), ("assistant", whole)]
    turns.append(("user", "a.txt:\n````\nOne\n```\n````\n\nAgain"))
    assert second == how | {
        "model": "other",
        "messages": [{"role": role, "content": content} for role, content in turns],
        "speculative": {"enabled": False, "report": True},
        **{"temperature": 0.7, "max_tokens": 200},
    }


def test_text_is_shown_while_it_comes_and_is_said_aloud_once_it_is_whole(browser: Browser) -> None:
    stand_in = StandIn([Answer(PARTS, holds_after=0), Answer(PARTS, holds_after=2)])
    with visiting(browser, stand_in, viewport={"width": 900, "height": 400}) as page:
        ask(page, "Count\n" * 20)
        expect(page.locator(".waiting")).to_have_text("Reading the prompt: 1,200 of 3,000 tokens")
        assert page.locator("progress").get_attribute("value") == "0.4"
        stand_in.gate.set()
        answered(page)
        expect(page.locator("#to-end")).to_be_hidden()  # the end is in sight
        expect(page.locator(".reply .actions")).to_be_in_viewport(ratio=1)
        page.get_by_role("button", name="New chat").click()
        stand_in.gate.clear()
        ask(page, "Count")
        expect(page.locator(".answer")).to_have_text("One two three four")
        assert page.locator("#turns").get_attribute("aria-busy") == "true"
        assert aloud(page) == "New conversation."
        stand_in.gate.set()
        answered(page)
        assert aloud(page) == "Answer: One two three four five six"
        assert page.locator("#turns").get_attribute("aria-busy") == "false"
        # Nothing else that grows with an answer is a live region.
        assert page.locator("#turns [aria-live], #turns [role=log], #turns [role=status]").count() == 0


def test_markdown_is_the_same_wherever_the_stream_is_cut(browser: Browser) -> None:
    cut = [
        [(MARKDOWN[i : i + size], "target") for i in range(0, len(MARKDOWN), size)] for size in (1, 7, 999)
    ]
    with visiting(browser, StandIn([Answer(parts) for parts in cut])) as page:
        for n in range(1, 4):
            ask(page, "Code")
            answered(page, n)
        first, second, whole = page.locator(".answer").evaluate_all("all => all.map(one => one.innerHTML)")
        assert first == second == whole
        answer = page.locator(".answer").last
        assert answer.locator("pre").all_inner_texts() == ["if x:\n\n    y = `1`", "```"]
        labels = answer.locator("pre").evaluate_all("all => all.map(pre => pre.getAttribute('aria-label'))")
        assert labels == ["Code, python", "Code"]
        assert answer.locator(".hljs-keyword").inner_text() == "if"
        assert answer.locator(":not(pre) > code").all_inner_texts() == ["inline"]
        assert answer.locator(".math").all_inner_texts() == ["x₁²", "a/b"]
        assert answer.locator("th, td").all_inner_texts() == ["a", "b", "1", "2"]
        assert answer.locator("h3, li").all_inner_texts() == ["Head", "☑ one two\n\nmore", "x₁²"]
        assert answer.locator("a").all_inner_texts() == ["ok"]
        last = "<b>no</b> ok [bad](javascript:1) ![i](https://x.org/i.png)"
        assert answer.locator("p").last.inner_text() == last


def test_thoughts_are_folded_and_not_sent_again(browser: Browser) -> None:
    inside: list[Part] = [
        ("<th", "target"),
        ("ink>Hm", "lookup"),
        ("m</thi", "target"),
        ("nk>\n\nYes", "lookup"),
    ]
    answers = [Answer([("Yes", "target")], thoughts="Hm"), Answer(inside), Answer(PARTS)]
    with visiting(browser, stand_in := StandIn([*answers])) as page:
        for n, thought in ((1, "Hm"), (2, "Hmm")):
            ask(page, "Think")
            assert answered(page, n) == "Yes"
            thoughts = page.locator(".thoughts").nth(n - 1)
            assert thoughts.locator("summary").inner_text() == "Thought for 1 s"
            assert not thoughts.locator(".prose").is_visible()
            assert thoughts.locator("p").text_content() == thought
        ask(page, "Count")
        answered(page, 3)
    assert [said["content"] for said in stand_in.asked[2]["messages"]] == ["Think", "Yes"] * 2 + ["Count"]


def test_questions_and_answers_have_versions_and_an_answer_goes_on(browser: Browser) -> None:
    texts = ["One", "Two", "Three", "Four", "five"]
    answers: list[Any] = [Answer([(text, "target")], finish="length") for text in texts]
    answers.insert(4, refusal(400, "continue_final_message: unknown"))
    with visiting(browser, stand_in := StandIn(answers), refused=1) as page:
        ask(page, "First")
        answered(page)
        page.get_by_role("button", name="Answer again").click()
        expect(page.locator(".answer")).to_have_text("Two")
        ask(page, "Second")
        answered(page, 2)
        page.locator(".question").first.get_by_role("button", name="Edit").click()
        page.get_by_label("Your message").fill("Other")
        page.keyboard.press("Enter")
        expect(page.locator(".answer")).to_have_text(["Four"])
        page.get_by_role("button", name="Continue").click()
        expect(page.locator(".answer")).to_have_text(["Fourfive"])
        answered(page)
        assert page.locator(".versions").text_content() == "Version 2/2"
        page.get_by_role("button", name="Earlier version").click()
        expect(page.locator(".answer")).to_have_text(["Two", "Three"])
        assert page.evaluate("document.activeElement.ariaLabel") == "Later version"
        page.locator(".reply").get_by_role("button", name="Earlier version").click()
        expect(page.locator(".answer")).to_have_text(["One"])
        page.reload()
        expect(page.locator(".answer")).to_have_text(["One"])
    said = [[message["content"] for message in body["messages"]] for body in stand_in.asked]
    assert said[:5] == [["First"], ["First"], ["First", "Two", "Second"], ["Other"], ["Other", "Four"]]
    assert said[5][:2] == ["Other", "Four"]
    assert stand_in.asked[4]["continue_final_message"] is True


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


def test_chats_are_kept_found_deleted_exported_and_imported(browser: Browser, tmp_path: Path) -> None:
    stand_in = StandIn([Answer(PARTS), Answer([("Fresh", "target")])])
    with visiting(browser, stand_in, viewport={"width": 1280, "height": 800}) as page:
        titles = page.locator("#chats .open")
        ask(page, "Count\nto six")
        answered(page)
        before = page.locator("#turns").inner_html()
        page.reload()
        expect(page.locator("article")).to_have_count(2)
        assert page.locator("#turns").inner_html() == before
        page.get_by_role("button", name="New chat").click()
        assert page.locator("article").count() == 0
        expect(page.locator("#message")).to_be_focused()
        ask(page, "Start")
        assert answered(page) == "Fresh"
        page.fill("#title", "Renamed")
        page.press("#title", "Enter")
        expect(titles).to_have_text(["Renamed", "Count"])
        page.fill("#search", "two three")
        expect(titles).to_have_text(["Count"])
        with page.expect_download() as download:
            page.click("#export")
        download.value.save_as(tmp_path / "chats.json")
        page.get_by_role("button", name="Delete Count").click()
        expect(titles).to_have_count(0)
        page.get_by_role("button", name="Undo").click()
        expect(page.locator(".answer")).to_have_text("One two three four five six")
        page.get_by_role("button", name="Delete Count").click()
        page.fill("#search", "")
        page.set_input_files("#import-file", tmp_path / "chats.json")
        expect(page.locator("#toast")).to_have_text("1 of 1 chats are here now.")
        page.reload()
        expect(titles).to_have_text(["Renamed", "Count"])
        titles.nth(1).click()
        assert page.locator("#turns").inner_html() == before
    assert stand_in.asked[1]["messages"] == [{"role": "user", "content": "Start"}]


def test_the_live_view_tells_what_the_server_tells(browser: Browser) -> None:
    stand_in = StandIn()
    with visiting(browser, stand_in) as page:
        live = page.locator("#live")
        expect(page.locator("#live-state")).to_have_text("Live")
        assert page.locator("#model-name").inner_text() == "smollm2"
        assert page.locator("#speed").inner_text() == "31.2"
        assert page.locator("#compared").inner_text() == "1.4 times as fast as without drafts."
        guesses = "lookup helps most: 72% of its guesses are right."
        assert page.locator("#guesses").inner_text() == guesses
        page.click("#expert summary")
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
        assert live.get_by_text("llama.cpp. Up for 2 h 3 min.").is_visible()
        stand_in.live = {**LIVE, "running": 0, "tokens_per_second": 3.0}
        expect(page.locator("#against-plain")).to_have_text("Plain decoding: 22 tokens/s.")
        assert page.locator("#compared").inner_text() == "Nobody is being answered."
        few = {"drafted": {"suffix": 1, "new": 4}, "accepted": {"new": 3}, "acceptance": [0.004]}
        stand_in.live = {**LIVE, **few}
        expect(page.locator("#drafters tbody")).to_have_text("suffix10 (0%)new43 (75%)")
        expect(page.locator("#acceptance")).to_have_text("Position 1<1%")


def test_every_file_comes_with_a_policy_that_forbids_what_is_inline(browser: Browser) -> None:
    vendored = {name: sha for files in PACKAGES.values() for name, sha in files.values()}
    found = [path for folder in FOLDERS for path in folder.iterdir()]
    assert {path.name: sha256(path.read_bytes()).hexdigest() for path in found} == vendored
    library = next(f"vendor/{name}" for name in vendored if name.endswith(".js"))
    with serving(StandIn()) as stand_in:
        context = browser.new_context()
        kinds = {
            "": "text/html",
            "page.js": "text/javascript",
            "page.css": "text/css",
            library: "text/javascript",
        }
        for path, kind in kinds.items():
            response = context.request.get(stand_in.url + path)
            assert response.headers["content-security-policy"].startswith("default-src 'self';")
            assert response.headers["content-type"] == f"{kind}; charset=utf-8"
            assert ("immutable" in response.headers["cache-control"]) == (path == library)
        context.close()
