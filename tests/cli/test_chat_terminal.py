"""`paceline chat` at a terminal, with a real model."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import pytest

from command_line import PROGRAM, environment
from real_model import smollm2
from terminal import CTRL_C, CTRL_D, ENTER, Terminal

pytestmark = pytest.mark.slow

READY = r"\n>>>|^>>>"


def chat(home: Path, *args: str) -> Terminal:
    # Drafters whose passes need not be measured first.
    plain = ("-m", str(smollm2()), "-t", "1", "-c", "1024", "--draft", "suffix,lookup", "--temp", "0")
    return Terminal([*PROGRAM, "chat", *plain, *args], environment(PACELINE_HOME=str(home)))


def at_prompt(terminal: Terminal, keys: str) -> None:
    """Press keys once the prompt is there; before that, Ctrl-D ends nothing."""
    terminal.expect(READY)
    terminal.write(keys)


def test_an_answer_is_stopped_and_the_conversation_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "said.json"
    with chat(tmp_path / "home", "--system", "You like to talk.") as terminal:
        at_prompt(terminal, "Tell me a long story about a ship." + ENTER)
        terminal.expect(r"ship\.\r+\n\w+ \w+ \w+")
        terminal.write(CTRL_C)
        at_prompt(terminal, "/stats" + ENTER)
        assert "turns: 1, " in terminal.expect("tokens of context")
        at_prompt(terminal, f"/save {file}{ENTER}")
        terminal.expect(r"3 messages\s+written")
        at_prompt(terminal, CTRL_D)
        assert terminal.ended() == 0
    system, user, assistant = json.loads(file.read_text())
    assert (system["role"], user["content"]) == ("system", "Tell me a long story about a ship.")
    assert 3 <= len(assistant["content"].split()) < 400


def test_lines_are_edited_quoted_cleared_and_kept_for_the_user_alone(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "said.json"
    with chat(home, "-n", "4") as terminal:
        at_prompt(terminal, f'"""one{ENTER}two"""{ENTER}')
        terminal.expect(r"cut after 4 tokens")
        at_prompt(terminal, "never said")
        terminal.expect("never said")
        time.sleep(0.5)  # Python's readline loses a signal that comes between the echo and its select
        terminal.write(CTRL_C)
        terminal.expect("Ctrl-D or /bye ends the chat")
        terminal.expect(READY)
        terminal.write(f"ax\x7fb{ENTER}")  # a key deletes
        terminal.expect(r"cut after 4 tokens")
        at_prompt(terminal, f"/save {file}{ENTER}")
        terminal.expect(r"4 messages\s+written")
        at_prompt(terminal, "/clear" + ENTER)
        terminal.expect("history cleared")
        terminal.expect(READY)
        terminal.write("\x1b[A" * 3 + ENTER)  # three lines up: what was said before /save
        terminal.expect(r"cut after 4 tokens")
        at_prompt(terminal, "/stats" + ENTER)
        terminal.expect("turns: 1, ")
        at_prompt(terminal, "/bye" + ENTER)
        assert terminal.ended() == 0
    assert [load["content"] for load in json.loads(file.read_text())[::2]] == ["one\ntwo", "ab"]
    history = home / "chat_history"
    assert "never said" not in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_ctrl_c_while_the_prompt_is_read_takes_the_message_back(tmp_path: Path) -> None:
    with chat(tmp_path / "home") as terminal:
        at_prompt(terminal, '"""' + "".join(f"line {n} of many{ENTER}" for n in range(60)) + f'"""{ENTER}')
        terminal.expect("reading the prompt: 0 of ")
        terminal.write(CTRL_C)
        terminal.expect("stopped before the first word: your message was removed")
        at_prompt(terminal, "/stats" + ENTER)
        terminal.expect("turns: 0, 0 of 1,024 tokens of context")
        at_prompt(terminal, CTRL_D)
        assert terminal.ended() == 0
