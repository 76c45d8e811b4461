"""Several processes at one file of remembered outputs, and processes that are killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from paceline.storage.remembered import AnswerHistory
from remembering import kept, vocab

START = """
import os, signal, sys
from pathlib import Path
from paceline.speculative.vocabulary import Vocab
from paceline.storage import remembered
from paceline.storage.remembered import AnswerHistory, forget
spelled = b"%d".__mod__
vocab = Vocab(int(sys.argv[2]), "BPE", None, frozenset(), False, False, spelled, spelled)
project = Path(sys.argv[1])
"""
WRITER = """
print("ready", flush=True)
sys.stdin.readline()
store = AnswerHistory.open(vocab, project)
for i in range(40):
    store.add([int(sys.argv[3]), i, *range(100)])
"""
ENDLESS = """
store = AnswerHistory.open(vocab, project)
for i in range(10**6):
    store.add([int(sys.argv[3]), i % 200, i // 200, *[7] * 3000])
    print(i, flush=True)
"""


def started(script: str, project: Path, who: int = 0, size: int = 300) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    arguments = [sys.executable, "-c", START + script, str(project), str(size), str(who)]
    return subprocess.Popen(arguments, text=True, **pipes)


def together(processes: list[subprocess.Popen[str]]) -> None:
    """Let them all begin, and see them end well."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [(p.communicate()[1], p.returncode) for p in processes] == [("", 0)] * len(processes)


def test_processes_that_make_and_fill_one_file_at_once_lose_nothing(project: Path) -> None:
    together([started(WRITER, project, who) for who in range(3)])
    outputs = kept(project)
    assert sorted(output[:2] for output in outputs) == [[who, i] for who in range(3) for i in range(40)]
    assert all(output[2:] == list(range(100)) for output in outputs)
    for who in range(3):
        mine = [output[1] for output in outputs if output[0] == who]
        assert mine == sorted(mine)


def test_whatever_the_moment_a_writer_is_killed_at_what_it_had_added_is_there(project: Path) -> None:
    acknowledged: dict[int, int] = {}
    for who in range(6):
        process = started(ENDLESS, project, who)
        assert process.stdout is not None
        for _ in range(3 + 2 * who):
            acknowledged[who] = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate()
        acknowledged[who] = max([acknowledged[who], *map(int, rest.split())])
    store = AnswerHistory.open(vocab(), project)
    for who, last in acknowledged.items():
        mine = [output for output in store.outputs() if output[0] == who]
        assert mine == [[who, i % 200, i // 200, *[7] * 3000] for i in range(len(mine))]
        assert len(mine) >= last + 1
