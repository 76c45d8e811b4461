"""Reading recorded requests: four forms, one kind of recording, what is wrong with a line told, and the rest
used."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paceline.backends.recorded import Recording
from paceline.backends.registry import open_tokenizer
from paceline.bench.replay import traces
from paceline.bench.replay.traces import Trace
from paceline.models import zoo
from paceline.speculative.errors import ModelError, UsageError
from paceline.text.interface import Tokenizer

DATA = Path(__file__).parents[2] / "data" / "traces"
OURS = {"prompt_tokens": [1, 2], "tokens": [3, 4, 5]}


class Letters:
    """A token a character; a beginning has token 0 before it."""

    def encode(self, text: str, *, special: bool = False, add_bos: bool = True) -> list[int]:
        return [0, *map(ord, text)]

    def encode_within(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def render(self, messages: list[dict[str, str]]) -> str:
        raise ModelError("this model has no chat template")


def spelled(tokens: Sequence[int]) -> str:
    return "".join("^" if token == 0 else chr(token) for token in tokens)


def read(tmp_path: Path, *said: Any, tokenizer: Any = None, **options: Any) -> Trace:
    file = tmp_path / "trace.jsonl"
    file.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in said))
    return traces.read(file, traces.lines(file), tokenizer, **options)


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    with closing(open_tokenizer(zoo.target_path())) as opened:
        yield opened


def test_token_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    told = {**OURS, "top_k": [[3, 9], [4], [6, 5]], "id": "b", "n_vocab": 10, "model": "any"}
    trace = read(tmp_path, {"prompt_tokens": [7], "tokens": [1]}, "", told, n_vocab=None)
    first, second = trace.requests
    assert (first.id, first.line, first.recording) == ("1", 1, Recording((7,), (1,)))
    assert (second.id, second.line) == ("b", 3)
    assert second.recording == Recording((1, 2), (3, 4, 5), ((3, 9), (4,), (6, 5)))
    assert (trace.needed, trace.n_vocab, trace.skipped) == (10, 10, 0)


def test_a_completion_goes_on_from_its_prompt(tmp_path: Path) -> None:
    (one,) = read(tmp_path, {"prompt": "ab", "completion": "c d"}, tokenizer=Letters()).requests
    assert (spelled(one.recording.prompt), spelled(one.recording.tokens)) == ("^ab", "c d")


def test_every_message_of_the_assistant_is_a_request_after_all_before_it(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "U"}, {"type": "text", "text": "V"}]},
        {"role": "assistant", "content": "A"},
        {"role": "tool", "content": "T", "tool_call_id": "1"},
        {"role": "assistant", "content": "B"},
    ]
    trace = read(tmp_path, OURS, {"id": "x", "messages": messages}, tokenizer=Letters())
    first, second = trace.requests[1:]
    start = "^System:\nS\n\nUser:\nUV\n\nAssistant:\n"
    assert (first.id, spelled(first.recording.prompt), spelled(first.recording.tokens)) == ("x.1", start, "A")
    assert spelled(second.recording.prompt) == start + "A\n\nTool:\nT\n\nAssistant:\n"
    assert (second.id, second.line, spelled(second.recording.tokens)) == ("x.2", 2, "B")


@pytest.mark.parametrize(
    ("content", "arguments", "said"),
    [
        (None, '{"a": 1}', '{"name": "f", "arguments": {"a": 1}}'),
        ("", {"a": "é"}, '{"name": "f", "arguments": {"a": "é"}}'),
        ("so:", "", 'so:\n{"name": "f", "arguments": }'),
    ],
)
def test_calls_of_tools_are_part_of_the_answer(
    tmp_path: Path, content: str | None, arguments: Any, said: str
) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    messages = [
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": content, "tool_calls": calls},
    ]
    (one,) = read(tmp_path, {"messages": messages}, tokenizer=Letters()).requests
    assert spelled(one.recording.tokens) == said


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("{", ["no JSON", "one JSON object a line"]),
        ("[" * 100_000, ["no JSON"]),
        ({"text": "x"}, ["no request and answer", "prompt_tokens and tokens"]),
        ({**OURS, "tokens": [1, True]}, ["tokens is no list of token ids"]),
        ({**OURS, "prompt_tokens": [-1]}, ["prompt_tokens is no list of token ids"]),
        ({**OURS, "prompt_tokens": []}, ["prompt_tokens are empty"]),
        ({**OURS, "top_k": [[1]]}, ["top_k is no list with one entry a token"]),
        ({**OURS, "top_k": [[1], [], [2]]}, ["a row of its top_k is empty"]),
        ({**OURS, "n_vocab": "8"}, ["n_vocab is '8'"]),
        ({**OURS, "format": 2}, ["is of format 2", "reads 1", "update Paceline"]),
        ({"prompt": 1, "completion": "x"}, ["prompt is no text"]),
        ({"prompt": "x", "completion": "\ud800"}, ["completion is no UTF-8 text (character 0)"]),
        ({"messages": "x"}, ["messages are no list"]),
        ({"messages": [{"content": "x"}]}, ["role is no text"]),
        ({"messages": [{"role": "user", "content": "x"}]}, ["the assistant says nothing"]),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, ["no text; images"]),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, ["no object with a function"]),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            ["function's name is no text"],
        ),
    ],
)
def test_a_line_that_cannot_be_used_is_told_and_the_others_are_read(
    tmp_path: Path, said: Any, words: list[str]
) -> None:
    trace = read(tmp_path, OURS, said, OURS, tokenizer=Letters())
    assert [one.id for one in trace.requests] == ["1", "3"]
    ((number, why),) = trace.unusable
    assert (number, trace.n_unusable) == (2, 1)
    (told,) = traces.warnings(trace)
    assert told == f"{trace.path}, line 2, left out: {why}"
    assert [word for word in words if word not in why] == []
    with pytest.raises(UsageError) as error:
        read(tmp_path, said, tokenizer=Letters())
    assert [
        word for word in ["trace.jsonl: holds no answer", "line 1", *words] if word not in str(error.value)
    ] == []


def test_text_needs_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"line 2: holds text.*--tokenizer"):
        read(tmp_path, OURS, {"prompt": "a", "completion": "b"})


def test_a_file_is_of_one_vocabulary(tmp_path: Path) -> None:
    assert read(tmp_path, OURS, {**OURS, "n_vocab": 9}, n_vocab=9).n_vocab == 9
    with pytest.raises(UsageError, match=r"line 2: is of another vocabulary, of 9 tokens and not 8"):
        read(tmp_path, {**OURS, "n_vocab": 8}, {**OURS, "n_vocab": 9})
    with pytest.raises(
        UsageError, match=r"line 1: is of another vocabulary: it holds token 5, and there are 5"
    ):
        read(tmp_path, OURS, n_vocab=5)
    with pytest.raises(UsageError, match=r"line 2: is of another vocabulary: a line before it holds token 5"):
        read(tmp_path, OURS, {"prompt_tokens": [1], "tokens": [2], "n_vocab": 4})


def test_a_vocabulary_is_told_by_its_fingerprint(tmp_path: Path) -> None:
    one, other = "a" * 64, "b" * 64
    assert read(tmp_path, OURS, {**OURS, "vocab": one}, OURS).vocab == one
    assert read(tmp_path, {**OURS, "vocab": one}, vocab=one).vocab == one
    # Other programs name theirs.
    assert read(tmp_path, {**OURS, "vocab": "gpt2"}, {**OURS, "vocab": 3}, vocab=one).vocab == one
    for said, known in (([one, other], None), ([other], one)):
        with pytest.raises(UsageError, match=r"fingerprint b{12} and not a{12}; replay it by itself"):
            read(tmp_path, *({**OURS, "vocab": vocab} for vocab in said), vocab=known)


def test_a_file_without_a_request_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    for said in (b"", b"\n \n"):
        file.write_bytes(said)
        with pytest.raises(UsageError, match=r"trace.jsonl: is empty"):
            traces.lines(file)
    file.write_bytes(b"\xff{}")
    with pytest.raises(UsageError, match=r"holds no answer to replay; line 1: is not UTF-8 text \(byte 0\)"):
        traces.read(file, traces.lines(file), None)
    with pytest.raises(UsageError, match=r"missing.jsonl: cannot be read \(No such file"):
        traces.lines(tmp_path / "missing.jsonl")
    with pytest.raises(UsageError, match="holds no answer to replay"):
        read(tmp_path, {**OURS, "tokens": []})


def test_a_line_cut_short_and_garbage_cost_no_more_than_themselves(tmp_path: Path) -> None:
    ours = json.dumps(OURS).encode()
    file = tmp_path / "trace.jsonl"
    parts = [ours, b"\x00\xff\x80" * 9, ours[: len(ours) // 2], b"\xef\xbb\xbf" + ours, ours, ours[:-1]]
    file.write_bytes(b"\xef\xbb\xbf" + b"\r\n".join(parts))
    trace = traces.read(file, traces.lines(file), None)
    assert [one.line for one in trace.requests] == [1, 5]  # a mark of its text stands at a file's start only
    assert [(number, why[:12]) for number, why in trace.unusable] == [
        (2, "is not UTF-8"),
        (3, "is no JSON ("),
        (4, "is no JSON ("),
        (6, "is no JSON ("),
    ]


TIMES = {"prompt": 0.25, "seconds": 1, "steps": 2, "drafted": 4, "accepted": 1}


def test_what_was_measured_stands_beside_the_request(tmp_path: Path) -> None:
    told = {
        **OURS,
        "times": TIMES | {"clock": "ours"},
        "category": "code",
        "session": "s",
        "sampling": {"temperature": 0.5},
        "drafting": {"drafters": ["lookup"]},
    }
    first, second, third = read(tmp_path, told, OURS, {**OURS, "category": 3, "times": {}}).requests
    assert (first.times, first.category, first.session, first.sampled) == (TIMES, "code", "s", True)
    assert first.drafting == {"drafters": ["lookup"]}
    assert (second.times, second.category, second.sampled, second.drafting) == (None, "", False, {})
    assert (third.times, third.category) == ({}, "")


@pytest.mark.parametrize(
    "times",
    [{"seconds": -0.5}, {"prompt": float("nan")}, {"seconds": "1"}, {"seconds": 10**400}, {"steps": 1.0},
     {"steps": 4}, {"drafted": 2, "accepted": 3}],
)  # fmt: skip
def test_times_that_cannot_be_are_left_out_and_the_tokens_used(tmp_path: Path, times: Any) -> None:
    trace = read(tmp_path, {**OURS, "times": TIMES | times}, {**OURS, "times": [1.0]}, OURS)
    assert [one.times for one in trace.requests] == [None] * 3
    assert trace.unusable == ()


def test_a_template_that_is_not_there_is_said_before_anything_is_read(tmp_path: Path) -> None:
    said = {"prompt": "a", "completion": "b"}
    assert read(tmp_path, OURS, template=True).requests  # there is no tokenizer, and no messages
    with pytest.raises(UsageError, match="--chat-template: this model has no chat template; leave it out"):
        read(tmp_path, said, tokenizer=Letters(), template=True)
