"""`paceline chat` over a pipe: each line a turn, commands, files of messages, a full context."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import paceline
from command_line import Done, command, run
from gguf_files import write_llama
from paceline.cli.texts import Conversation
from paceline.engine import Stream
from paceline.request_handle import StepOutput
from real_model import smollm2

Capture = pytest.CaptureFixture[str]
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("chat") / "chat.gguf", chat_template=TEMPLATE)


def chat(capsys: Capture, model: Path, typed: str, *args: str | Path) -> Done:
    rest = ("-t", "1", "--draft", "lookup", "-n", "6", "--temp", "0", *args)
    return command(capsys, "chat", "-m", model, *rest, stdin=typed.encode())


def saved(file: Path) -> list[dict[str, str]]:
    messages: list[dict[str, str]] = json.loads(file.read_text())
    return messages


def test_each_line_is_a_turn_and_stdout_has_answers(capsys: Capture, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "said.json"
    done = chat(capsys, model, f"one\n\ntwo\n/save {file}\n", "--system", "be kind")
    assert done.code == 0
    messages = saved(file)
    said = [message["content"] for message in messages]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert (said[0], said[1], said[3]) == ("be kind", "one", "two")
    assert done.out == "".join(text + "\n" * (not text.endswith("\n")) for text in (said[2], said[4]))


def test_second_answer_continues_the_conversation(capsys: Capture, model: Path, tmp_path: Path) -> None:
    chat(capsys, model, f"one\ntwo\n/save {tmp_path / 'said.json'}\n")
    *asked, answer = saved(tmp_path / "said.json")
    (tmp_path / "asked.json").write_text(json.dumps(asked))
    alone = run(capsys, model, "--messages", tmp_path / "asked.json", "-n", "6", "--draft", "none", "--json")
    assert alone.json["text"] == answer["content"]


def test_a_saved_conversation_goes_on(capsys: Capture, model: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    chat(capsys, model, f"one\n/save {first}\n")
    chat(capsys, model, f"two\n/save {second}\n", "--messages", first)
    chat(capsys, model, f"one\ntwo\n/save {first}\n")  # replaces what it can read
    assert saved(second) == saved(first)
    first.write_text("years of work")
    done = chat(capsys, model, f"/save {first}\n/save {tmp_path}/none/a.json\n/save\n")
    assert (done.code, first.read_text()) == (2, "years of work")
    taken, nowhere, nameless = done.err.splitlines()
    assert "first.json exists, and is no conversation: choose another name" in taken
    assert "no folder" in nowhere
    assert "Name a file" in nameless


def test_clear_forgets_all_but_the_system_prompt(capsys: Capture, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "said.json"
    done = chat(capsys, model, f"/system be brief\none\n/clear\n/system\ntwo\n/save {file}\n")
    assert done.code == 0
    assert [one["content"] for one in saved(file)[:2]] == ["be brief", "two"]
    assert len(saved(file)) == 3
    assert done.err.splitlines()[:4] == [
        "system prompt: be brief",
        "(cut after 6 tokens: -n N for longer answers)",
        "history cleared; system prompt kept",
        "system prompt: be brief",
    ]


def test_several_lines_in_quotes_are_one_turn(capsys: Capture, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "said.json"
    chat(capsys, model, f'"""\none\n\n  two\n"""\n"""three"""\n /help is text\n/usr/bin too\n/save {file}\n')
    asked = [one["content"] for one in saved(file)[::2]]
    assert asked == ["one\n\n  two", "three", "/help is text", "/usr/bin too"]


def test_statistics_and_sources_on_request(capsys: Capture, model: Path) -> None:
    done = chat(capsys, model, "/stats\nab ab ab ab\n/stats\n/sources\nab ab ab ab\n/sources\n")
    assert done.code == 0
    assert "turns: 0, 0 of " in done.err
    assert "6 tokens" in done.err
    assert "\ntime of " in done.err
    assert "turns: 1, " in done.err
    assert "sources: target, [lookup:text]\n" in done.err
    assert done.err.endswith("sources: not shown\n")


def test_failed_turn_is_one_line_and_the_next_goes_on(capsys: Capture, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "said.json"
    done = chat(capsys, model, f"/dance\n{'long ' * 40}\nhi\n/save {file}\n/bye\nnever\n", "-c", "96")
    assert done.code == 2
    lines = done.err.splitlines()
    assert lines[0].startswith("paceline: /dance: no such command; /help lists them")
    assert lines[1].startswith("paceline: the prompt has ")
    assert [one["content"] for one in saved(file)][0::2] == ["hi"]
    assert "no longer sees" not in done.err


def test_full_context_drops_the_oldest_turns(capsys: Capture, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "said.json"
    typed = "".join(f"message number {n}\n" for n in range(6))
    done = chat(capsys, model, f"{typed}/save {file}\n", "-c", "160")
    assert done.code == 0
    words = "the context of 160 tokens is full: the model no longer sees the oldest "
    assert words in done.err
    assert len(saved(file)) == 12  # nothing is lost but from the model's sight


def test_ctrl_c_ends_a_piped_chat(capsys: Capture, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    next_piece = Stream.__next__

    def pressing(stream: Stream) -> StepOutput:
        piece = next_piece(stream)
        signal.raise_signal(signal.SIGINT)
        return piece

    monkeypatch.setattr(Stream, "__next__", pressing)
    done = chat(capsys, model, "one\ntwo\n")
    assert (done.code, done.out.count("\n")) == (130, 1)


def test_a_model_without_a_chat_template_is_refused(capsys: Capture, target: Path) -> None:
    words = "is a base model, without a chat template: use an instruct model"
    chat(capsys, target, "hi\n").refused(1, str(target), words)
    command(capsys, "chat", "-m", "toy:", stdin=b"hi\n").refused(1, words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[", "is no JSON"),
        ('["hi"]', "write a list"),
        ('[{"role": "user"}]', "content"),
        ('[{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]', "in the middle"),
    ],
)
def test_a_file_that_is_no_conversation_is_refused(
    capsys: Capture, model: Path, tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "said.json"
    file.write_text(text)
    chat(capsys, model, "hi\n", "--messages", file).refused(2, "said.json", words)


def test_a_turn_starts_from_the_cache_of_the_one_before_and_drafts_from_it() -> None:
    with paceline.load(smollm2(), threads=1, n_ctx=1024, drafters="suffix") as llm:
        talk = Conversation(llm, [{"role": "system", "content": "You answer briefly."}])
        read, texts = [], []
        for question in ("Write one sentence about the sea and its waves.", "Write that sentence again."):
            talk.messages.append({"role": "user", "content": question})
            prompt, dropped = talk.prompt()
            active = llm.stream(prompt, max_tokens=1).handle.scheduled.active
            assert active is not None
            pending_tokens = [active.session.pending_tokens]
            said = llm.generate(prompt, max_tokens=40)
            talk.add_answer(prompt, said)
            read += pending_tokens
            texts.append((said.text, dropped))
        assert read[1] < 20 < len(prompt)
        assert prompt[: len(talk._last_turn[0])] == talk._last_turn[0]
        assert said.stats.by_source["suffix"].accepted > 0
        assert [dropped for _, dropped in texts] == [0, 0]


def test_a_chat_is_sampled_as_the_file_or_the_user_says_and_says_so(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("secrets.randbelow", lambda _: 7)
    metadata = {"general.sampling.temp": 0.5, "general.sampling.top_k": 20}
    file = write_llama(tmp_path / "chat.gguf", chat_template=TEMPLATE, metadata=metadata)
    options = ("-t", "1", "--draft", "lookup", "-n", "6", "--temp", "1.5")
    done = command(capsys, "chat", "-m", file, *options, stdin=b"hi\n")
    assert done.code == 0
    assert done.err.splitlines()[0].startswith("temp 1.5, top-k 20, top-p 0.95, min-p 0.05; seed 7")
