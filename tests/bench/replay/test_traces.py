"""Reading recorded requests: four forms, and unusable lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gguf_files import write_llama
from paceline import load
from paceline.backends.recorded import Recording
from paceline.backends.registry import open_tokenizer
from paceline.bench.replay import traces
from paceline.bench.replay.traces import Trace
from paceline.speculative.errors import UsageError
from paceline.text.interface import Tokenizer

OURS = {"prompt_tokens": [1, 2], "tokens": [3, 4, 5]}
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    "[{{ m.role }}]{{ m.content | replace('hush', '') }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
USER = {"role": "user", "content": "U"}


class Letters:
    """A tokenizer with a token per character, an optional BOS 0, and "^" for BOS in a template."""

    def __init__(self, bos: bool = True, template: str | None = None) -> None:
        self.bos, self.begin, self.has_chat_template = bos, template, template is not None

    def encode(self, text: str, *, special: bool = False, add_bos: bool = True) -> list[int]:
        return [0] * (self.bos and add_bos) + [0 if letter == "^" else ord(letter) for letter in text]

    def encode_continuation(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def render(self, messages: list[dict[str, str]]) -> str:
        return f"{self.begin}" + "".join(message["content"] for message in messages)


def spelled(tokens: Sequence[int]) -> str:
    return "".join("^" if token == 0 else chr(token) for token in tokens)


def read(tmp_path: Path, *lines: Any, tokenizer: Any = None, **options: Any) -> Trace:
    file = tmp_path / "trace.jsonl"
    file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return traces.read(file, tokenizer, **options)


def test_token_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    more = {**OURS, "id": "b", "n_vocab": 10, "model": "any", "category": 3, "session": 4}
    trace = read(tmp_path, {"prompt_tokens": [7], "tokens": [1]}, "", more, n_vocab=None)
    first, second = trace.requests
    assert (first.id, first.line, first.recording) == ("1", 1, Recording((7,), (1,)))
    assert (second.id, second.line, second.category, second.conversation) == ("b", 3, "", 3)
    assert second.recording == Recording((1, 2), (3, 4, 5))
    assert (trace.needed, trace.n_vocab) == (8, 10)


def test_every_answer_of_a_text_is_a_request_after_all_before_it(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "U"}, {"type": "text", "text": "V"}]},
        {"role": "assistant", "content": "A"},
        {"role": "tool", "content": "T", "tool_call_id": "1"},
        {"role": "assistant", "content": "B"},
    ]
    lines = ({"prompt": "ab", "completion": "c d"}, OURS, {"id": "x", "messages": messages})
    text, _, first, second = read(tmp_path, *lines, tokenizer=Letters()).requests
    assert (spelled(text.recording.prompt), spelled(text.recording.tokens)) == ("^ab", "c d")
    start = "^System:\nS\n\nUser:\nUV\n\nAssistant:\n"
    assert (first.id, spelled(first.recording.prompt), spelled(first.recording.tokens)) == ("x.1", start, "A")
    assert spelled(second.recording.prompt) == start + "A\n\nTool:\nT\n\nAssistant:\n"
    assert (second.id, second.conversation, spelled(second.recording.tokens)) == ("x.2", 3, "B")


OLD = {"role": "assistant", "content": "old"}
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "A"}}]}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "is no JSON"),
        ({"text": "x"}, "has no request and answer; write prompt_tokens and tokens"),
        ({"custom_id": "c", "response": {"body": ANSWER}}, "has no request and answer"),
        ({**OURS, "tokens": [1, True]}, "its tokens is no list of token ids"),
        ({**OURS, "prompt_tokens": [-1]}, "its prompt_tokens is no list of token ids"),
        ({**OURS, "prompt_tokens": []}, "a recording without a prompt"),
        ({**OURS, "format": 2}, "is of format 2, and this Paceline reads 1; update Paceline"),
        ({"messages": [USER]}, "has no request and answer"),
        ({"messages": [OLD]}, "has no request and answer"),
        ({"request": {"messages": [USER, OLD]}, "response": {"error": "busy"}}, "has no request and answer"),
        ({"request": "x", "response": ANSWER}, "has no request and answer"),
        ({"request": {"prompt": ["P"]}, "response": {"choices": [{"text": "A"}]}}, "has no request and"),
    ],
)
def test_unusable_line_is_reported_and_the_others_are_read(tmp_path: Path, line: Any, words: str) -> None:
    trace = read(tmp_path, OURS, line, OURS, tokenizer=Letters())
    assert [request.id for request in trace.requests] == ["1", "3"]
    ((number, why),) = trace.unusable
    assert (number, trace.n_unusable) == (2, 1)
    assert why.startswith(words)
    assert traces.warnings(trace) == [f"{trace.path}, line 2, left out: {why}"]


def test_a_file_without_a_request_and_text_without_a_tokenizer_are_refused(tmp_path: Path) -> None:
    text = {"prompt": "a", "completion": "b"}
    for lines, options, words in (
        (["\xff{}"], {}, "holds no answer to replay"),
        ([{**OURS, "tokens": []}], {}, "holds no answer to replay"),
        ([OURS, text], {}, r"line 2: holds text.*-m FILE"),
        ([text], {"tokenizer": Letters(), "template": True}, "this model has no chat template"),
    ):
        with pytest.raises(UsageError, match=words):
            read(tmp_path, *lines, **options)
    with pytest.raises(UsageError, match=r"missing.jsonl: cannot be read"):
        traces.count_lines(tmp_path / "missing.jsonl")


def test_a_file_is_of_one_vocabulary(tmp_path: Path) -> None:
    one, other = "a" * 64, "b" * 64
    assert read(tmp_path, OURS, {**OURS, "n_vocab": 9, "vocab": one}, OURS, n_vocab=9).vocab == one
    foreign = ({**OURS, "vocab": "gpt2"}, {**OURS, "vocab": 3, "n_vocab": "8"})  # other programs' names
    assert read(tmp_path, *foreign, vocab=one).vocab == one
    for lines, known, words in (
        ([{"n_vocab": 8}, {"n_vocab": 9}], {}, r"line 2: .* \(n_vocab 9 and not 8\)"),
        ([{"vocab": one}, {"vocab": other}], {}, r"line 2: .* \(vocab b{12} and not a"),
        ([{"vocab": other}], {"vocab": one}, r"line 1: .* \(vocab b{12} and not a{12}\)"),
        ([{}], {"n_vocab": 5}, r"line 1: .* \(token 5 was recorded, and there are 5\)"),
        ([{}, {"n_vocab": 4}], {}, r"line 2: .* \(token 5 was recorded, and there are 4\)"),
    ):
        with pytest.raises(UsageError, match=words):
            read(tmp_path, *(OURS | line for line in lines), **known)


def test_a_line_cut_short_and_garbage_cost_no_more_than_themselves(tmp_path: Path) -> None:
    ours = json.dumps(OURS).encode()
    file = tmp_path / "trace.jsonl"
    parts = [ours, b"\x00\xff\x80" * 9, ours[: len(ours) // 2], b"\xef\xbb\xbf" + ours, ours, ours[:-1]]
    file.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(parts))
    trace = traces.read(file, None)
    # A byte order mark stands at a file's start only.
    assert [request.line for request in trace.requests] == [1, 5]
    assert [number for number, _ in trace.unusable] == [2, 3, 4, 6]


# Chat templates, and the logs of proxies.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("chat") / "chat.gguf", chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Iterator[Tokenizer]:
    with closing(open_tokenizer(model)) as opened:
        yield opened


def texts(tokenizer: Tokenizer, recording: Recording) -> tuple[str, str]:
    prompt, answer = (
        b"".join(map(tokenizer.vocab.piece, tokens)).decode()
        for tokens in (recording.prompt, recording.tokens)
    )
    return prompt, answer


def test_template_renders_each_prompt_as_a_server_does(
    tmp_path: Path, tokenizer: Tokenizer, model: Path
) -> None:
    first_answer, second_answer = ({"role": "assistant", "content": text} for text in ("hush A", "B"))
    messages = [USER, first_answer, {"role": "user", "content": "V"}, second_answer]
    refused = [USER, first_answer, {"role": "tool", "content": "T"}, second_answer]
    lines = ({"messages": messages}, {"messages": refused}, {"messages": [USER], "completion": ""})
    trace = read(tmp_path, *lines, tokenizer=tokenizer.text, template=True)
    first, second = trace.requests
    assert texts(tokenizer, first.recording) == ("[user]U[assistant]", "hush A")
    # The template leaves out of an earlier answer what it hushes.
    assert texts(tokenizer, second.recording) == ("[user]U[assistant] A[user]V[assistant]", "B")
    with load(model, threads=1, drafters="none") as llm:
        assert list(first.recording.prompt) == llm.chat_tokens("U")
    (number, why), (empty, _) = trace.unusable
    assert (number, empty, "no tools" in why) == (2, 3, True)
    line = {"messages": [USER], "completion": "A"}
    for add_bos, begin in product((False, True), ("", "^")):
        (one,) = read(tmp_path, line, tokenizer=Letters(add_bos, begin), template=True).requests
        assert one.recording.prompt == (0,) * (add_bos or bool(begin)) + (ord("U"),)


HISTORY = [USER, OLD, {"role": "user", "content": "V"}]


@pytest.mark.parametrize(
    "line",
    [
        {"request": {"messages": HISTORY}, "response": ANSWER},
        {"request": {"url": "x", "body": {"messages": HISTORY}}, "response": {"status": 200, "body": ANSWER}},
        {"body": {"messages": HISTORY}, "response": {"status_code": 200, "body": ANSWER}},
    ],
)
def test_only_the_response_of_a_logged_request_is_an_answer(
    tmp_path: Path, tokenizer: Tokenizer, line: dict[str, Any]
) -> None:
    (one,) = read(tmp_path, {"custom_id": "c", **line}, tokenizer=tokenizer.text).requests
    assert one.id == "c"
    prompt = "User:\nU\n\nAssistant:\nold\n\nUser:\nV\n\nAssistant:\n"
    assert texts(tokenizer, one.recording) == (prompt, "A")
    (one,) = read(tmp_path, line, tokenizer=tokenizer.text, template=True).requests
    assert texts(tokenizer, one.recording)[0] == "[user]U[assistant]old[user]V[assistant]"


def test_each_choice_is_a_request(tmp_path: Path) -> None:
    choices: list[Any] = [{"message": {"content": text}} for text in ("A", None, "B")]
    line = {"request": {"messages": [USER]}, "response": {"choices": choices}}
    trace = read(tmp_path, {"id": "x", **line}, tokenizer=Letters())
    assert [request.id for request in trace.requests] == ["x.1", "x.2"]
    completion = {"request": {"prompt": "P"}, "response": {"choices": [{"text": "A"}]}}
    (one,) = read(tmp_path, completion, tokenizer=Letters()).requests
    assert (spelled(one.recording.prompt), spelled(one.recording.tokens)) == ("^P", "A")
