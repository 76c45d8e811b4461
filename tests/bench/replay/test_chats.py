"""Conversations through a model's own template, and the logs of proxies and batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gguf_files import write_llama
from paceline import load
from paceline.backends.recorded import Recording
from paceline.backends.registry import open_tokenizer
from paceline.bench.replay import traces
from paceline.bench.replay.traces import Trace
from paceline.text.interface import Tokenizer

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "[{{ m.role }}]{{ m.content | replace('hush', '') }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
USER = {"role": "user", "content": "U"}
DATA = Path(__file__).parents[2] / "data" / "traces"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("chat") / "chat.gguf", chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Iterator[Tokenizer]:
    with closing(open_tokenizer(model)) as opened:
        yield opened


def read(folder: Path, tokenizer: Tokenizer, *said: Any, template: bool = True) -> Trace:
    file = folder / "trace.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in said))
    return traces.read(file, traces.lines(file), tokenizer.text, template=template)


def spelled(tokenizer: Tokenizer, recording: Recording) -> tuple[str, str]:
    prompt, answer = (
        b"".join(map(tokenizer.vocab.piece, tokens)).decode()
        for tokens in (recording.prompt, recording.tokens)
    )
    return prompt, answer


def test_a_template_spells_each_prompt_as_the_server_read_it(
    tmp_path: Path, tokenizer: Tokenizer, model: Path
) -> None:
    messages = [
        USER,
        {"role": "assistant", "content": "hush A"},
        {"role": "user", "content": [{"type": "text", "text": "V"}]},
        {"role": "assistant", "content": "B"},
    ]
    first, second = read(tmp_path, tokenizer, {"messages": messages}).requests
    assert (first.id, second.id) == ("1.1", "1.2")
    assert spelled(tokenizer, first.recording) == ("[user]U[assistant]", "hush A")
    # The template leaves out of an earlier answer what it hushes.
    assert spelled(tokenizer, second.recording) == ("[user]U[assistant] A[user]V[assistant]", "B")
    with load(model, threads=1, drafters="none") as llm:
        assert list(first.recording.prompt) == llm.chat_tokens("U")


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("spells_bos", [False, True])
def test_a_prompt_begins_as_the_model_wants_whatever_its_template_spells(
    tmp_path: Path, add_bos: bool, spells_bos: bool
) -> None:
    class Letters:
        def encode(self, text: str, *, special: bool = False, add_bos: bool = add_bos) -> list[int]:
            return [0] * add_bos + [0 if letter == "^" else ord(letter) for letter in text]

        def encode_within(self, text: str) -> list[int]:
            return [ord(letter) for letter in text]

        def render(self, messages: list[dict[str, str]]) -> str:
            return "^" * spells_bos + "".join(one["content"] for one in messages)

    file = tmp_path / "trace.jsonl"
    file.write_text(json.dumps({"messages": [USER], "completion": "A"}))
    (one,) = traces.read(file, traces.lines(file), Letters(), template=True).requests
    assert one.recording.prompt == (0,) * (add_bos or spells_bos) + (ord("U"),)


def test_what_a_template_refuses_is_told_and_the_rest_is_read(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tools = [USER, {"role": "assistant", "content": "A"}, {"role": "tool", "content": "T"}]
    trace = read(
        tmp_path,
        tokenizer,
        {"messages": [*tools, {"role": "assistant", "content": "B"}]},  # its first answer could be rendered
        {"messages": [USER], "completion": "C"},
        {"messages": [USER], "completion": ""},
    )
    assert [one.line for one in trace.requests] == [2]
    assert trace.skipped == 1
    ((number, why),) = trace.unusable
    assert number == 1
    assert "answer 2 cannot be replayed" in why
    assert "no tools" in why


ANSWER = {"choices": [{"message": {"role": "assistant", "content": "A"}}]}
HISTORY = [USER, {"role": "assistant", "content": "old"}, {"role": "user", "content": "V"}]
PROMPT = "User:\nU\n\nAssistant:\nold\n\nUser:\nV\n\nAssistant:\n"


@pytest.mark.parametrize(
    "said",
    [
        {"request": {"messages": HISTORY}, "response": ANSWER},
        {"request": {"url": "x", "body": {"messages": HISTORY}}, "response": {"status": 200, "body": ANSWER}},
        {"body": {"messages": HISTORY}, "response": {"status_code": 200, "body": ANSWER}},
    ],
)
def test_only_the_response_of_a_logged_request_is_an_answer(
    tmp_path: Path, tokenizer: Tokenizer, said: dict[str, Any]
) -> None:
    (one,) = read(tmp_path, tokenizer, {"custom_id": "c", **said}, template=False).requests
    assert (one.id, one.sampled) == ("c", False)
    assert spelled(tokenizer, one.recording) == (PROMPT, "A")
    (one,) = read(tmp_path, tokenizer, said).requests
    assert spelled(tokenizer, one.recording)[0] == "[user]U[assistant]old[user]V[assistant]"


def test_each_choice_is_a_request_and_a_temperature_is_told(tmp_path: Path, tokenizer: Tokenizer) -> None:
    choices = [{"message": {"content": text}} for text in ("A", None, "B")]
    said = {"request": {"messages": [USER], "temperature": 0.7}, "response": {"choices": choices}}
    trace = read(tmp_path, tokenizer, {"id": "x", **said})
    assert [(one.id, one.sampled) for one in trace.requests] == [("x.1", True), ("x.3", True)]
    assert trace.skipped == 1


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"request": {"messages": [USER]}, "response": {"error": "busy"}}, "its response holds no choices"),
        ({"request": "x", "response": ANSWER}, "its response holds no choices"),
        (
            {"request": {"messages": [USER]}, "response": {"choices": ["x"]}},
            "a choice of its response is no obj",
        ),
        (
            {"request": {"messages": [USER]}, "response": {"choices": [{"delta": {"content": "A"}}]}},
            "a choice of its response has no message; log the whole answer",
        ),
        ({"request": {"prompt": ["P"]}, "response": {"choices": [{"text": "A"}]}}, "its prompt is no text"),
        ({"custom_id": "c", "response": {"body": ANSWER}}, "has no request and answer"),
    ],
)
def test_a_logged_request_without_an_answer_is_told(
    tmp_path: Path, tokenizer: Tokenizer, said: dict[str, Any], why: str
) -> None:
    trace = read(tmp_path, tokenizer, said, {"prompt": "P", "completion": "A"})
    ((number, told),) = trace.unusable
    assert number == 1
    assert told.startswith(why)
