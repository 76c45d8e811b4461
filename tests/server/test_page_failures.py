"""The page after a stop, a refusal, a lost connection, and with hostile text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from page_browser import aloud, answered, ask, visiting
from stand_in import Answer, Part, StandIn, refusal, serving

pytestmark = pytest.mark.slow

PARTS: list[Part] = [("One two", "target"), (" three four", "lookup"), (" five", "target")]
WHOLE = "One two three four five"
NO_MODEL = "This server has no model. Start it with one: paceline serve -m MODEL."
LOST = "The connection to the server was lost before the answer was complete."
HOSTILE = [
    "<script>window.owned = 1</script>",
    "<img src=x onerror='window.owned = 1'>",
    "</div></article><iframe srcdoc='<script>parent.owned = 1</script>'>",
    "<svg onload='window.owned = 1'><style>* {display: none}</style>",
    "[link](javascript:owned=1) ${owned=1} {{owned=1}}",
    "> " * 3000, "مرحبا بالعالم, שלום", "👩‍👩‍👧‍👦 🏴󠁧󠁢󠁳󠁣󠁴󠁿 é", "x" * 20_000,
]  # fmt: skip


def error(page: Page) -> str:
    return page.locator(".error").inner_text()


@pytest.mark.parametrize("how", ["the button", "Escape"])
def test_stopping_ends_the_request_and_keeps_what_came(browser: Browser, how: str) -> None:
    stand_in = StandIn([Answer(PARTS, holds_after=2), Answer(PARTS)])
    with visiting(browser, stand_in) as page:
        assert page.locator("#stop").is_hidden()
        ask(page, "Count")
        expect(page.locator(".answer")).to_have_text("One two three four")
        page.keyboard.press("Enter")  # nothing is sent beside it
        if how == "Escape":
            page.keyboard.press("Escape")
        else:
            page.click("#stop")
        assert answered(page) == "One two three four"
        assert stand_in.left.wait(10)
        assert page.locator(".figures").inner_text() == "Stopped"
        assert page.get_by_role("button", name="Continue").is_visible()
        assert aloud(page) == "Stopped."
        assert page.locator("#stop").is_hidden()
        expect(page.locator("#message")).to_be_focused()
        ask(page, "Go on")
        answered(page, 2)
    assert [message["content"] for message in stand_in.asked[1]["messages"]] == [
        "Count", "One two three four", "Go on",
    ]  # fmt: skip


def test_a_full_queue_is_told_with_when_to_try_again_and_the_message_is_kept(browser: Browser) -> None:
    full = refusal(429, "All 64 places of the queue are taken.", Retry_After="7")
    stand_in = StandIn([full, Answer(PARTS)])
    with visiting(browser, stand_in, refused=1) as page:
        ask(page, "Count")
        answered(page)
        assert error(page) == "All 64 places of the queue are taken. Your message is kept: try again in 7 s."
        assert page.locator(".error").get_attribute("role") == "alert"
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".answer")).to_have_text(WHOLE)
        assert page.locator(".error").count() == 0
        assert page.locator("article").count() == 2
    assert stand_in.asked[0] == stand_in.asked[1]


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("v1/models", "<html>", "What answers at v1/models is no server of Paceline."),
        ("v1/models", '{"data": []}', NO_MODEL),
        ("v1/chat/completions", "data: {oops\n\n", "The server sent something that is no JSON."),
        ("v1/chat/completions", ": nothing\r\n\r\n", LOST),
    ],
)
def test_a_server_that_is_none_is_told(browser: Browser, path: str, body: str, message: str) -> None:
    with visiting(browser, StandIn()) as page:
        page.route(f"**/{path}", lambda route: route.fulfill(body=body))
        page.reload()
        ask(page, "Count")
        answered(page)
        assert message in error(page)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(PARTS, error="A token is forbidden by the grammar."), "A token is forbidden by the grammar."),
        (Answer(PARTS, holds_after=3, breaks=True), LOST),
    ],
)
def test_an_answer_that_breaks_off_stays_and_can_be_had_again(
    browser: Browser, answer: Answer, message: str
) -> None:
    lost = 1 if message == LOST else 0  # Chromium's word for a stream that was cut
    stand_in = StandIn([answer, Answer(PARTS)])
    with visiting(browser, stand_in, refused=lost) as page:
        ask(page, "Count")
        # A browser drops what was not read when the stream broke.
        expect(page.locator(".answer")).to_have_text(WHOLE)
        stand_in.gate.set()
        assert answered(page) == WHOLE
        assert message in error(page)
        page.get_by_role("button", name="Try again").click()
        page.locator(".figures").wait_for()
        assert page.locator(".answer").inner_text() == WHOLE
        assert page.locator(".error").count() == 0


def test_a_server_that_goes_away_and_comes_back(browser: Browser) -> None:
    stand_in = StandIn([Answer(PARTS, holds_after=1), Answer(PARTS)])
    context = browser.new_context()
    page = context.new_page()
    with serving(stand_in):
        page.goto(stand_in.url)
        expect(page.locator("#live-state")).to_have_text("Live")
        ask(page, "Count")
        expect(page.locator(".answer")).to_have_text("One two")
    answered(page)
    assert LOST in error(page)
    expect(page.locator("#live-state")).to_have_text("Not connected, trying again")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".error")).to_contain_text("The server does not answer.")
    assert "Check that “paceline serve” is running" in error(page)
    with serving(stand_in):
        expect(page.locator("#live-state")).to_have_text("Live", timeout=20_000)
        page.get_by_role("button", name="Try again").click()
        assert answered(page) == WHOLE
        page.locator(".figures").wait_for()
        context.close()


def test_a_key_is_asked_for_until_it_is_right_and_kept_over_a_reload(browser: Browser) -> None:
    stand_in = StandIn([Answer(PARTS)], key="right")
    # Twice each for the models and the live view: without a key, and with the wrong one.
    with visiting(browser, stand_in, refused=4) as page:
        expect(page.locator("#key")).to_be_focused()
        assert "It is kept in this tab only" in page.locator("#key-hint").inner_text()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        wrong = "The server did not accept that key. Its owner has the right one."
        expect(page.locator("#key-hint")).to_have_text(wrong)
        expect(page.locator("#key")).to_be_focused()
        page.keyboard.type("right")
        page.keyboard.press("Enter")
        expect(page.locator("#live-state")).to_have_text("Live")
        assert page.locator("#key-form").is_hidden()
        assert "right" not in page.evaluate("Object.values(localStorage).join()")
        assert page.evaluate("sessionStorage['paceline.key']") == "right"
        page.reload()
        expect(page.locator("#live-state")).to_have_text("Live")
        ask(page, "Count")
        assert answered(page) == WHOLE


def test_hostile_text_is_text(browser: Browser, tmp_path: Path) -> None:
    parts = [(text + "\n\n", "lookup" if n % 2 else "target") for n, text in enumerate(HOSTILE)]
    code: Part = ("```<b onclick=owned=1>\n" + "\n".join(HOSTILE) + "\n```\n", "suffix")
    answer = Answer([*parts, code], thoughts=HOSTILE[1])
    stand_in = StandIn([answer], models=("<img src=x onerror=owned=1>",))
    stand_in.live["decision"] = stand_in.live["model"] = HOSTILE[1]
    stand_in.live["drafted"] = {HOSTILE[1]: 3}

    def inert() -> None:
        text = answered(page)
        for hostile in map(str.strip, HOSTILE):
            assert text.count(hostile) == 2, hostile
        assert page.locator(".question .plain").inner_text() == HOSTILE[1]
        assert (
            page.locator(".prose :is(script, img, iframe, style, a, b), .prose svg:not(.icon)").count() == 0
        )
        assert page.locator(".thoughts p").text_content() == HOSTILE[1]
        assert page.evaluate("window.owned") is None

    with visiting(browser, stand_in) as page:
        ask(page, HOSTILE[1])
        inert()
        page.click("#expert summary")
        assert page.locator("#decision").inner_text() == HOSTILE[1]
        assert page.locator("#live :is(script, img, iframe)").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.reload()  # what was kept is shown no other way
        inert()
        with page.expect_download() as download:
            page.click("#export")
        chats = json.loads(download.value.path().read_text())
        (chat,) = chats["chats"]
        reply = chat["nodes"][1]
        hostile = {"id": HOSTILE[0], "title": HOSTILE[1], "picks": {"__proto__": 1, "-1": "x", "0": 1e9}}
        extra = {"state": HOSTILE[1], "timings": {"predicted_n": HOSTILE[1]}, "used": HOSTILE[1], "parent": 0}
        chats["chats"] = [{**chat, **hostile, "nodes": [chat["nodes"][0], {**reply, **extra}]}]
        chats["chats"] += [
            None,
            7,
            {"nodes": [{"role": "user", "parent": 0}]},
            {"nodes": [reply]},
            {"nodes": "no"},
        ]
        (tmp_path / "chats.json").write_text(json.dumps(chats))
        page.set_input_files("#import-file", tmp_path / "chats.json")
        expect(page.locator("#toast")).to_have_text("1 of 6 chats are here now.")
        page.locator("#chats .open", has_text=HOSTILE[1]).last.click()
        inert()
        assert page.input_value("#title") == HOSTILE[1]
        page.set_input_files("#import-file", {"name": "x", "mimeType": "", "buffer": b"<html>"})
        expect(page.locator("#toast")).to_have_text("This file has no chats of this page.")


def test_characters_that_show_nothing_or_turn_others_around_are_shown(browser: Browser) -> None:
    parts: list[Part] = [("a\x00b\x1b[31mc\x7f\x85d\u202ee\u2066f\r\n\tg", "target")]
    with visiting(browser, StandIn([Answer(parts)])) as page:
        ask(page, "Show")
        assert answered(page) == "a‹U+0000›b‹U+001B›[31mc‹U+007F›‹U+0085›d‹U+202E›e‹U+2066›f\ng"
