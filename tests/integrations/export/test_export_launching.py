"""Starting an engine: the program is found, gets its arguments and signals, and its exit code is ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from command_line import command as run_command
from paceline.integrations.export import EngineRequest, command, launch, redacted_command
from paceline.speculative.errors import MissingExtraError, UsageError

COMMAND = command("vllm", EngineRequest("some/target", api_key="secret", extra_args=("-tp", "2")))
START = f"from paceline.integrations.export import launch; launch({COMMAND!r})"
# Writes its arguments down, then waits for a signal, which it writes down, too.
FAKE = """#!{python}
import json, signal, sys
def note(number, _):
    with open({notes!r}, "w") as file:
        json.dump([sys.argv[1:], number], file)
    sys.exit(40 + number)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, note)
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a fake `vllm` on PATH and return the file of its arguments and signal."""
    notes, program = tmp_path / "notes.json", tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(FAKE.format(python=sys.executable, notes=str(notes)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return notes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_engine_gets_its_arguments_and_signals_and_its_exit_code_is_ours(
    notes: Path, number: signal.Signals
) -> None:
    pipes: Any = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    started = subprocess.Popen([sys.executable, "-c", START], text=True, **pipes)
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    started.send_signal(number)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 40 + number
    assert json.loads(notes.read_text()) == [COMMAND[1:], number]
    assert said == f"{redacted_command(COMMAND)}\n"
    assert said.endswith("--api-key ... -tp 2\n")


def test_an_engine_that_is_not_installed_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(MissingExtraError, match="sglang is not installed: pip install sglang=="):
        launch(command("sglang", EngineRequest("some/target")))


def test_a_program_beside_our_python_is_found_without_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "vllm"
    program.write_text("no program\n")  # without a first line that says what runs it
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(UsageError, match=f"{program}: cannot be started"):
        launch(COMMAND)
    assert capsys.readouterr().err == f"{redacted_command(COMMAND)}\n"


def test_what_only_our_own_server_has_is_refused_beside_another(capsys: pytest.CaptureFixture[str]) -> None:
    for option in (("--temp", "0.5"), ("--quiet",)):
        done = run_command(capsys, "serve", "--engine", "vllm", "-m", "some/target", *option)
        done.refused(2, f"{option[0]} is for Paceline's own server: vllm's arguments go after --")
