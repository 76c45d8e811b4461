"""`paceline run` on instruct models: the template by default, system prompts, messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import command, run
from gguf_files import write_llama

Capture = pytest.CaptureFixture[str]
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}[assistant]"
FEW = ("-n", "4", "--draft", "none")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("instruct") / "chat.gguf", chat_template=TEMPLATE)


def test_a_template_is_used_by_default_and_verbose_tells(capsys: Capture, model: Path) -> None:
    default = run(capsys, model, "hi", *FEW, "--json")
    asked = run(capsys, model, "hi", *FEW, "--json", "--chat")
    plain = run(capsys, model, "hi", *FEW, "--json", "--no-chat")
    assert (default.err, asked.err, plain.err) == ("", "", "")
    assert "chat template" in run(capsys, model, "hi", *FEW, "--json", "--verbose").err
    assert default.json["tokens"] == asked.json["tokens"]
    assert (default.json["n_prompt"], plain.json["n_prompt"]) == (len("[user]hi[assistant]"), len("hi"))
    assert run(capsys, model, "hi", *FEW, "--json", PACELINE_CHAT="0").err == ""
    assert run(capsys, model, "hi", *FEW).err.endswith("; cut after 4 tokens (-n N for more)\n")


def test_system_prompt_and_messages_precede_the_prompt(capsys: Capture, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "said.json"
    file.write_text(json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]))
    done = run(capsys, model, "c", "--system", "s", "--messages", file, *FEW, "--json")
    whole = "[system]s[user]a[assistant]b[user]c[assistant]"
    assert (done.err, done.json["n_prompt"]) == ("", len(whole))
    assert done.json["tokens"] == run(capsys, model, "--no-chat", whole, *FEW, "--json").json["tokens"]
    alone = run(capsys, model, "--messages", file, *FEW, "--json")  # stdin is not waited for
    assert alone.json["n_prompt"] == len("[user]a[assistant]b[assistant]")


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["--system", "s"], 1, "is a base model, without a chat template: use an instruct model"),
        (["--chat"], 1, "is a base model, without a chat template"),
        (["--system", "s", "--no-chat"], 2, "--no-chat with --system or --messages"),
        (["--messages", "none.json"], 2, "none.json: cannot be read"),
    ],
)
def test_what_needs_a_template_is_refused_without_one(
    capsys: Capture, target: Path, args: list[str], code: int, words: str
) -> None:
    run(capsys, target, "hi", *args).refused(code, words)
    command(capsys, "run", "hi", *args).refused(code, words)  # the embedded model


def test_a_broken_template_can_be_left_out(capsys: Capture, tmp_path: Path) -> None:
    broken = write_llama(tmp_path / "broken.gguf", chat_template="{% if %}")
    done = run(capsys, broken, "hi", *FEW)
    assert done.code == 1
    assert done.err.splitlines()[-1].endswith("(--no-chat does without)")
    assert run(capsys, broken, "hi", *FEW, "--no-chat").code == 0


def test_an_answer_that_is_empty_is_said_to_be(capsys: Capture, target: Path) -> None:
    done = run(capsys, target, "hi", *FEW, "--logit-bias", "256=1e15")  # the end
    assert (done.code, done.out) == (0, "\n")
    assert done.err.startswith("the text is empty: the model ended it at once (--ignore-eos goes on)")
