"""`paceline launch`: tools that find the server by their environment and arguments."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import paceline
from command_line import command
from paceline.integrations.tools import TOOLS, configured
from real_model import smollm2
from serving import Served, serving

TOOL = """#!{python}
import json, os, sys, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
body = {{"model": os.environ["OPENAI_MODEL"], "max_tokens": 2}}
body["messages"] = [{{"role": "user", "content": "Hi"}}]
headers = {{"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}}
sent = urllib.request.Request(url, json.dumps(body).encode(), headers)
answer = json.load(urllib.request.urlopen(sent))
open(os.environ["OUT"], "w").write(json.dumps([sys.argv[1:], answer["usage"]["completion_tokens"]]))
sys.exit(3)
"""


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with paceline.load(smollm2(), None, "lookup", n_ctx=256, threads=1) as llm, serving(llm) as up:
        yield up


@pytest.fixture
def qwen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "qwen"
    program.write_text(TOOL.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    return tmp_path / "out"


def test_a_tool_talks_to_the_server_that_runs(
    capsys: pytest.CaptureFixture[str], served: Served, qwen: Path
) -> None:
    done = command(capsys, "launch", "qwen", "--port", str(served.port), "--", "-p", "x y")
    assert done.code == 3  # the tool's
    assert json.loads(qwen.read_text()) == [["-p", "x y"], 2]


def test_a_server_that_is_started_ends_with_the_tool(
    capsys: pytest.CaptureFixture[str], qwen: Path, tmp_path: Path
) -> None:
    home = str(tmp_path / "home")
    port = 18000 + os.getpid() % 1000
    done = command(
        capsys, "launch", "qwen", "-m", smollm2(), "-c", "256", "--port", str(port), PACELINE_HOME=home
    )
    assert (done.code, json.loads(qwen.read_text())[1]) == (3, 2)
    failed = command(
        capsys, "launch", "qwen", "-m", tmp_path / "none.gguf", "--port", str(port), PACELINE_HOME=home
    )
    assert (failed.code, "the server has ended" in failed.err, "none.gguf" in failed.err) == (1, True, True)


def test_what_cannot_be_launched(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    command(capsys, "launch", "qwem").refused(2, "did you mean qwen")
    monkeypatch.setenv("PATH", "/nowhere")
    command(capsys, "launch", "codex").refused(1, "npm install -g @openai/codex")


@pytest.mark.parametrize("name", TOOLS)
def test_every_place_is_filled(name: str) -> None:
    words, environment = configured(TOOLS[name], "http://127.0.0.1:1", "small", "sesame")
    everything = " ".join([*words, *environment.values()])
    assert "127.0.0.1:1" in everything
    assert "{url}" not in everything
    assert "sesame" in everything
    if name == "opencode":
        config = json.loads(environment["OPENCODE_CONFIG_CONTENT"])
        assert config["provider"]["paceline"]["options"]["baseURL"] == "http://127.0.0.1:1/v1"
