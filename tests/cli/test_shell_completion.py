"""Completion in a shell, by the protocol of typer's scripts, and in a real bash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import environment, program
from model_stores import ollama_model
from paceline.cli.app import app
from paceline.cli.help import print_completions
from paceline.models import zoo
from paceline.settings import POLICIES

ZOO = {f"zoo:{entry.name}" for entry in zoo.ZOO_ENTRIES}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and a store of Ollama's with a model."""
    ollama_model(tmp_path / "ollama", "registry.ollama.ai/library/llama3.2/3b", zoo.draft_path())
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["ru"], {"run"}),
        (["run", "-m", "zo"], ZOO),
        (["run", "-md", "oll"], {"ollama:llama3.2:3b"}),
        (["run", "-m", "ollama", ":", "lla"], {"llama3.2:3b"}),  # as bash splits it, which replaces the last
        (["run", "-m", "ollama", ":", "llama3.2", ":"], {"3b"}),
        (["run", "--model", "=", "zoo", ":", "ta"], {"target"}),
        (["run", "--model", "="], {*ZOO, "ollama:llama3.2:3b"}),
        (["run", "-m", "min"], set()),  # the shell completes files itself
        (["check", "zoo", ":", "ta"], {"target"}),
        (["run", "--draft", "suffix,look"], {"suffix,lookup", "suffix,lookahead"}),
        (["bench", "--methods", "plain,suffix+looku"], {"plain,suffix+lookup"}),
        (["bench", "--suite", "real-c"], {"real-chat", "real-code"}),
        (["run", "--policy", ""], {*POLICIES}),
        (["run", "--role", "s"], {"speed"}),
        (["run", "--draft-t"], {"--draft-temp", "--draft-top-k"}),
        (["pairs", "--task", "co"], {"code"}),
    ],
)
def test_bash_completes_names(
    words: list[str],
    completions: set[str],
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_PACELINE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(["paceline", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    print_completions(app)
    assert {*capsys.readouterr().out.split()} == completions


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_the_shown_script_completes_in_bash(here: Path) -> None:
    script = program("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1").out
    (here / "paceline").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m paceline "$@"\n')
    (here / "paceline").chmod(0o755)
    tab = "COMP_WORDS=(paceline run -m ollama : llama); COMP_CWORD=5; _paceline_completion ./paceline"
    bash = ["bash", "--norc", "-c", f"{script}\n{tab}; echo ${{COMPREPLY[@]}}"]
    done = subprocess.run(bash, capture_output=True, text=True, env=environment(), check=True)
    assert (done.stdout, done.stderr) == ("llama3.2:3b\n", "")


def test_completion_imports_no_engine() -> None:
    code = "import sys; from paceline.cli.app import app; from paceline.cli.help import *\n"
    code += "print_completions(app); print(*sys.modules, file=sys.stderr)"
    asked = {"_PACELINE_COMPLETE": "complete_bash", "COMP_WORDS": "paceline\nrun\n-m\n", "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(**asked), check=True
    )
    assert {*done.stdout.split()} >= ZOO
    assert {"torch", "llama_cpp", "transformers", "numba", "fastapi"} & {*done.stderr.split()} == set()
