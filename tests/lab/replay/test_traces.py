"""Reading recorded requests: three forms, one kind of recording, and what is wrong with a file said with its
line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline import zoo
from paceline.core.errors import ModelError, UsageError
from paceline.engines.recorded import Recording
from paceline.lab.replay import traces
from paceline.lab.replay.traces import LINE, Trace
from paceline.lab.tokenizer import Tokenizer

DATA = Path(__file__).parents[2] / "data" / "traces"
OURS = {"prompt_tokens": [1, 2], "tokens": [3, 4, 5]}


class Letters:
    """A token a character; a beginning has token 0 before it."""

    def encode(self, text: str, *, special: bool = False, add_bos: bool = True) -> list[int]:
        return [0, *map(ord, text)]

    def encode_within(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]


def spelled(tokens: Sequence[int]) -> str:
    return "".join("^" if token == 0 else chr(token) for token in tokens)


def read(tmp_path: Path, *said: Any, tokenizer: Any = None, **options: Any) -> Trace:
    file = tmp_path / "trace.jsonl"
    file.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in said))
    return traces.read(file, traces.lines(file), tokenizer, **options)


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    with Tokenizer(zoo.target_path()) as opened:
        yield opened


def test_token_ids_are_taken_as_they_are(tmp_path: Path) -> None:
    told = {**OURS, "top_k": [[3, 9], [4], [6, 5]], "id": "b", "n_vocab": 10, "model": "any"}
    trace = read(tmp_path, {"prompt_tokens": [7], "tokens": [1]}, "", told, n_vocab=None)
    first, second = trace.requests
    assert (first.id, first.line, first.recording) == ("1", 1, Recording((7,), (1,)))
    assert (second.id, second.line) == ("b", 3)
    assert second.recording == Recording((1, 2), (3, 4, 5), ((3, 9), (4,), (6, 5)))
    assert (trace.needed, trace.n_vocab, trace.skipped) == (10, 10, 0)


def test_the_vocabulary_needed_is_that_of_the_largest_token(tmp_path: Path) -> None:
    assert read(tmp_path, OURS, {**OURS, "prompt_tokens": [40]}).needed == 41
    assert read(tmp_path, {**OURS, "top_k": [[50], [1], [1]]}).needed == 51
    assert read(tmp_path, OURS).n_vocab is None


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


def test_what_is_completed_beside_the_messages_is_the_last_answer(tmp_path: Path) -> None:
    said = {"messages": [{"role": "user", "content": "U"}], "completion": "A"}
    (one,) = read(tmp_path, said, tokenizer=Letters()).requests
    assert (spelled(one.recording.prompt), spelled(one.recording.tokens)) == (
        "^User:\nU\n\nAssistant:\n",
        "A",
    )


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


def test_answers_without_a_token_are_left_out_and_counted(tmp_path: Path) -> None:
    silent = [
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "V"},
        {"role": "assistant", "content": "A"},
    ]
    said = [{**OURS, "tokens": []}, OURS, {"messages": silent}]
    trace = read(tmp_path, *said, {"prompt": "U", "completion": ""}, tokenizer=Letters())
    assert ([one.id for one in trace.requests], trace.skipped) == (["2", "3.2"], 3)
    assert spelled(trace.requests[1].recording.prompt) == (
        "^User:\nU\n\nAssistant:\n\n\nUser:\nV\n\nAssistant:\n"
    )


def test_a_limit_counts_requests_and_reads_no_further(tmp_path: Path) -> None:
    turns = [{"role": role, "content": "x"} for role in ("user", "assistant") * 3]
    ticks: list[str] = []
    trace = read(
        tmp_path, OURS, {"messages": turns}, "no JSON", tokenizer=Letters(), limit=2, tick=ticks.append
    )
    assert ([one.id for one in trace.requests], ticks) == (["1", "2.1"], [LINE, LINE])


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("{", ["line 2", "no JSON", "one object a line"]),
        ("[" * 100_000, ["line 2", "no JSON"]),
        ([1], ["line 2", "no JSON object"]),
        ({"text": "x"}, ["line 2", "no request and answer", "prompt_tokens and tokens"]),
        ({"prompt": "x"}, ["line 2", "no request and answer"]),
        ({**OURS, "tokens": "345"}, ["line 2", "tokens is no list of token ids"]),
        ({**OURS, "tokens": [1, True]}, ["line 2", "tokens is no list of token ids"]),
        ({**OURS, "tokens": [1.0]}, ["line 2", "tokens is no list of token ids"]),
        ({**OURS, "prompt_tokens": [-1]}, ["line 2", "prompt_tokens is no list of token ids"]),
        ({**OURS, "prompt_tokens": []}, ["line 2", "prompt_tokens are empty"]),
        ({**OURS, "top_k": [[1]]}, ["line 2", "top_k is no list with one entry a token"]),
        ({**OURS, "top_k": {"1": 2}}, ["line 2", "top_k is no list"]),
        ({**OURS, "top_k": [[1], [], [2]]}, ["line 2", "a row of its top_k is empty"]),
        ({**OURS, "n_vocab": "8"}, ["line 2", "n_vocab is '8'"]),
        ({**OURS, "n_vocab": 5}, ["line 2", "another vocabulary", "it holds token 5, and there are 5"]),
        ({"prompt": 1, "completion": "x"}, ["line 2", "prompt is no text"]),
        ({"prompt": "x", "completion": "\ud800"}, ["line 2", "completion is no UTF-8 text (character 0)"]),
        ({"messages": "x"}, ["line 2", "messages are no list"]),
        ({"messages": ["x"]}, ["line 2", "messages are no list of objects"]),
        ({"messages": [{"content": "x"}]}, ["line 2", "role is no text"]),
        ({"messages": [{"role": "user"}]}, ["line 2", "content is no text"]),
        ({"messages": [{"role": "user", "content": "x"}]}, ["line 2", "the assistant says nothing"]),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, ["line 2", "no text; images"]),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, ["line 2", "tool_calls are no list"]),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, ["line 2", "no object with a function"]),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            ["line 2", "function's name is no text"],
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, said: Any, words: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        read(tmp_path, OURS, said, tokenizer=Letters())
    assert [word for word in ["trace.jsonl", *words] if word not in str(error.value)] == []


def test_text_needs_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"line 2: holds text.*--tokenizer"):
        read(tmp_path, OURS, {"prompt": "a", "completion": "b"})


def test_a_prompt_that_spells_no_token_is_refused(tmp_path: Path) -> None:
    class Bare(Letters):
        def encode(self, text: str, *, special: bool = False, add_bos: bool = True) -> list[int]:
            return self.encode_within(text)

    with pytest.raises(UsageError, match="line 1: its prompt is empty"):
        read(tmp_path, {"prompt": "", "completion": "b"}, tokenizer=Bare())


def test_a_file_is_of_one_vocabulary(tmp_path: Path) -> None:
    assert read(tmp_path, OURS, {**OURS, "n_vocab": 9}, n_vocab=9).n_vocab == 9
    with pytest.raises(UsageError, match=r"line 2: is of another vocabulary, of 9 tokens and not 8"):
        read(tmp_path, {**OURS, "n_vocab": 8}, {**OURS, "n_vocab": 9})
    with pytest.raises(UsageError, match=r"line 1: is of another vocabulary: it holds token 5"):
        read(tmp_path, OURS, n_vocab=5)


def test_a_file_without_a_request_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    for said in (b"", b"\n \n"):
        file.write_bytes(said)
        with pytest.raises(UsageError, match=r"trace.jsonl: is empty"):
            traces.lines(file)
    file.write_bytes(b"\xff{}")
    with pytest.raises(UsageError, match=r"is not UTF-8 text \(byte 0\)"):
        traces.lines(file)
    with pytest.raises(UsageError, match=r"missing.jsonl: cannot be read \(No such file"):
        traces.lines(tmp_path / "missing.jsonl")
    with pytest.raises(UsageError, match="holds no answer to replay"):
        read(tmp_path, {**OURS, "tokens": []})


def test_line_separators_inside_a_text_do_not_end_a_line(tmp_path: Path) -> None:
    line = json.dumps({"prompt": "a\u2028b\x0c", "completion": "c"}, ensure_ascii=False)
    (one,) = read(tmp_path, line, tokenizer=Letters()).requests
    assert spelled(one.recording.prompt) == "^a\u2028b\x0c"


def test_our_traces_spell_the_texts_they_were_made_of(tokenizer: Tokenizer) -> None:
    def text(tokens: Sequence[int]) -> str:
        return b"".join(map(tokenizer.vocab.piece, tokens)).decode()

    size = tokenizer.vocab.size
    file = DATA / "texts.jsonl"
    for one, (_, line) in zip(
        traces.read(file, traces.lines(file), tokenizer.text, n_vocab=size).requests,
        traces.lines(file),
        strict=True,
    ):
        said = json.loads(line)
        assert text(one.recording.prompt) == said["prompt"]
        assert text(one.recording.tokens) == said["completion"]
    file = DATA / "chats.jsonl"
    chats = traces.read(file, traces.lines(file), tokenizer.text, n_vocab=size)
    by_id = {one.id: one.recording for one in chats.requests}
    assert list(by_id) == ["fix.1", "fix.2", "fix.3", "ask.1", "silent.2"]
    assert text(by_id["fix.1"].tokens) == '{"name": "read", "arguments": {"file": "shapes.py"}}'
    for before, after in (("fix.1", "fix.2"), ("fix.2", "fix.3")):
        whole = by_id[before].prompt + by_id[before].tokens
        assert by_id[after].prompt[: len(whole)] == whole  # what a prefix cache would find again
    trace = traces.read(DATA / "tokens.jsonl", traces.lines(DATA / "tokens.jsonl"), None, n_vocab=size)
    assert all(
        row[0] == token
        for one in trace.requests
        for token, row in zip(one.recording.tokens, one.recording.top_k, strict=True)
    )


def test_a_tokenizer_needs_no_weights(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Everything but the tensors of the embedded target."""
    import gguf

    reader = gguf.GGUFReader(zoo.target_path())
    file = tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind, *inner = field.types
        writer.add_key_value(field.name, field.contents(), kind, inner[0] if inner else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert file.stat().st_size < zoo.target_path().stat().st_size / 10
    with Tokenizer(file) as bare:
        assert bare.vocab.size == tokenizer.vocab.size
        assert bare.text.encode("def f(x):\n") == tokenizer.text.encode("def f(x):\n")
        bare.close()


def test_a_tokenizer_is_a_model_file(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    with pytest.raises(UsageError, match="no such file"):
        Tokenizer(file)
    file.write_text("text")
    with pytest.raises(ModelError, match="not a GGUF file"):
        Tokenizer(file)
