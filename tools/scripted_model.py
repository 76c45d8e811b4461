"""A server whose model answers from a script: for agents whose work is too hard for a small model.

    python -m tools.scripted_model [--port 8080]

It has the tokenizer and the chat template of SmolLM2. In three turns it reads a file that the user names
(`/.../greet.py`), replaces "Hi" by "Hello" in it, and says so, with whichever tools the agent offers.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import paceline
from paceline.api import LLM
from paceline.backends.recorded import Recording, ReplayTarget
from paceline.drafters.none import NoDrafter
from paceline.server import listen
from paceline.server.settings import ServerSettings
from paceline.settings import Drafting

N_CTX = 32768
OLD, NEW = "Hi", "Hello"
# The tools of opencode, qwen-code, Claude Code and Codex that read, and that edit.
SCRIPTS = [
    ("read", {"filePath": "{path}"}, "edit", {"filePath": "{path}", "oldString": OLD, "newString": NEW}),
    (
        "read_file",
        {"file_path": "{path}"},
        "edit",
        {"file_path": "{path}", "old_string": OLD, "new_string": NEW},
    ),
    ("Read", {"file_path": "{path}"}, "Edit", {"file_path": "{path}", "old_string": OLD, "new_string": NEW}),
    ("exec_command", {"cmd": "cat {path}"}, "exec_command", {"cmd": f"sed -i s/{OLD}/{NEW}/ {{path}}"}),
]


def answer(prompt: str) -> str:
    """Return the script's answer to a rendered conversation."""
    if "*file listing*" in prompt:  # aider has no tools
        return f'greet.py\n```\nprint("{NEW}, world")\n```'
    path = re.search(r"/[\w/.-]+/greet\.py", prompt)
    offered = re.findall(r'"name": ?"(\w+)", ?"description"', prompt)
    script = next((row for row in SCRIPTS if row[0] in offered and row[2] in offered), None)
    if script is None or path is None:
        return "A greeting"  # agents ask for a title, too
    done = prompt.count("<tool_response>\n")
    if done > 1:
        return f"It says {NEW} now."
    name, arguments = script[2 * done : 2 * done + 2]
    filled = json.dumps(arguments).replace("{path}", path[0])
    return f'<tool_call>\n{{"name": "{name}", "arguments": {filled}}}\n</tool_call>'


class ScriptedTarget(ReplayTarget):
    """A target that writes `answer` after each prompt. model: its tokenizer and file are shown."""

    def __init__(self, model: Any) -> None:
        super().__init__(model.vocab, (), model.text)
        self.caps = replace(self.caps, n_ctx=N_CTX)
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def recording(self, prompt: Sequence[int]) -> Recording:
        said = answer(b"".join(self.vocab.piece(token) for token in prompt).decode(errors="replace"))
        return Recording(tuple(prompt), (*self.text.encode_continuation(said), min(self.vocab.eos)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, default=8080)
    port = parser.parse_args().port
    with paceline.load("zoo:smollm2", drafters="none", n_ctx=64) as real:
        target = ScriptedTarget(real.target)
        with LLM(target, NoDrafter(), Drafting()) as llm:
            config = ServerSettings(alias=("scripted",), sessions=4)
            service, app = config.server(llm, config.rules())
            listen.run(app, service, listen.bind("127.0.0.1", port), config.shutdown_timeout)


if __name__ == "__main__":
    main()
