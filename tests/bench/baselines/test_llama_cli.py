"""llama.cpp's programs: flags, and recordings of a build of 2026 (tests/data/llama_cpp)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.baselines.llama_cli import LlamaProgram, greedy_arguments
from paceline.bench.system import BenchAnswer, BenchRequest
from paceline.models import zoo
from paceline.speculative.errors import BaselineError, UsageError
from paceline.speculative.sampling import Sampling

DATA = Path(__file__).parents[2] / "data" / "llama_cpp" / "0.3.36"
LOOKUP, SIMPLE = "llama-lookup", "llama-speculative-simple"
PROMPT = "import os\n\n\ndef main("
ESCAPES = 'print("a\\n\\t")  # ünï\n'
ASK = BenchRequest(PROMPT, tuple(range(7)), 32)
TEXT = (
    "self, filename, filename, filename, filename, filename, lineno, lineno, lineno, lineno"
    '):\n    """Return the parent of the parent of the parent of'
)


def unknown(program: str, *arguments: str) -> list[str]:
    """Return the flags that are not in the program's --help."""
    known = (DATA / f"{program}-help.out.txt").read_text().replace(",", " ").split()
    return [word for word in arguments if word[:1] == "-" and word not in known]


def script(path: Path, *lines: str) -> str:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return str(path)


def recorded(folder: Path, name: str, old: str = "", new: str = "") -> str:
    """Write a program that repeats a recording and stores its arguments."""
    run = json.loads((DATA / "runs.json").read_text())["runs"][name]
    out, err = (DATA / f"{name}.out.txt", DATA / f"{name}.err.txt")
    changed = folder / "err"
    changed.write_text(err.read_text().replace(old, new, 1) if err.exists() else "")
    return script(
        folder / run["command"][0],
        f"printf '%s\\0' \"$@\" > {folder}/arguments",
        f'while [ $# -gt 0 ]; do if [ "$1" = -f ]; then cp "$2" {folder}/prompt; fi; shift; done',
        f"cat {out if out.exists() else os.devnull}",
        f"cat {changed} >&2",
        f"exit {run['exit']}" if run["exit"] >= 0 else f"kill {run['exit']} $$",
    )


def system(path: str, **settings: Any) -> LlamaProgram:
    name = Path(path).name
    draft = None if name == LOOKUP else zoo.draft_path()
    known: dict[str, Any] = {"n_draft": 4, "n_ctx": 256, "threads": 1, "name": name}
    return LlamaProgram(name, path, zoo.target_path(), draft, **known | settings)


def replay(folder: Path, name: str, ask: BenchRequest = ASK) -> BenchAnswer:
    return system(recorded(folder, name)).answer(ask)


@pytest.mark.parametrize(
    ("name", "n_tokens", "drafted", "accepted", "speed", "text"),
    [
        ("llama-speculative", 32, 48, 19, 1003.764, TEXT),
        (SIMPLE, 32, 47, 19, 1032.058, TEXT),
        (LOOKUP, 34, 20, 12, 2298.851, f"{TEXT} the parent"),
    ],
)
def test_recorded_figures_and_text_are_read(
    tmp_path: Path, name: str, n_tokens: int, drafted: int, accepted: int, speed: float, text: str
) -> None:
    answer = replay(tmp_path, name)
    assert (answer.tokens, answer.text) == (None, text)
    assert (answer.n_prompt, answer.n_tokens, answer.first) == (7, n_tokens, 0.003)
    assert (answer.drafted, answer.accepted, answer.steps) == (drafted, accepted, answer.decoded - accepted)
    assert answer.n_tokens / answer.decoding == pytest.approx(speed)
    # The simple one reads the prompt's last token on its decoding clock.
    assert n_tokens - answer.decoded == (0 if name == SIMPLE else 1)
    assert unknown(name, *(tmp_path / "arguments").read_text().split("\0")) == []


def test_escapes_and_last_newline_reach_the_model(tmp_path: Path) -> None:
    answer = replay(tmp_path, "escapes", BenchRequest(ESCAPES, tuple(range(17)), 32))
    assert (tmp_path / "prompt").read_bytes() == ESCAPES.encode() + b"\n"
    assert answer.n_prompt == 17
    assert answer.text.startswith("\ndef _get_get")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "vocabulary",
            "ended with exit status 1; its log: .* .* must closely match .* see `paceline check`",
        ),
        ("vocabulary-simple", "was ended by SIGABRT; its log: .* draft model vocab type must match"),
        ("other-flag", 'error while handling argument "--draft-max"'),
        ("no-draft", "was ended by SIGSEGV; its log: .* failed to open GGUF file 'none.gguf'"),
        ("no-target", "llama-lookup was ended by SIGSEGV; its log: empty"),
    ],
)
def test_failure_quotes_the_log(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(BaselineError, match=words):
        replay(tmp_path, name)


def test_a_request_becomes_a_command_line(tmp_path: Path) -> None:
    program = system(recorded(tmp_path, SIMPLE), p_min=0.5, n_ctx=4096)
    ask = BenchRequest(PROMPT, tuple(range(3000)), 32, 3)
    program.answer(ask)
    given = (tmp_path / "arguments").read_text()
    flags = ("--spec-draft-n-max 4", "--spec-draft-p-min 0.5", "-n 31", "-b 3000", "--seed 3", "--temp 0")
    for words in flags:
        assert words.replace(" ", "\0") in given


def test_unsupported_settings_are_refused_before_the_start(tmp_path: Path) -> None:
    path = recorded(tmp_path, LOOKUP)
    with pytest.raises(BaselineError, match=r"needs 261 cells of context, and has 256"):
        system(path).answer(BenchRequest(PROMPT, ASK.tokens, 246))
    with pytest.raises(UsageError, match="knows no p_min"):
        system(path, p_min=0.5)
    with pytest.raises(BaselineError, match=r"no program .*llama-lookup: name it as in --baseline NAME=PATH"):
        system(str(tmp_path / "none" / LOOKUP))
    assert not (tmp_path / "arguments").exists()


@pytest.mark.parametrize(
    ("figure", "lie"),
    [
        ("0.003 seconds, speed", "-1.0 seconds, speed"),
        ("decoded   34", f"decoded   {'9' * 5000}"),
        ("decoded   34", "decoded   ٣"),
        ("decoded   34", "decoded   0"),
        ("2298.851", "nan"),
        ("n_accept     = ", "n_accept     = 9999"),
    ],
)
def test_impossible_figures_are_refused(tmp_path: Path, figure: str, lie: str) -> None:
    with pytest.raises(BaselineError, match=r"its output cannot be read \(.*\); its log") as caught:
        system(recorded(tmp_path, LOOKUP, figure, lie)).answer(ASK)
    assert len(str(caught.value)) < 2500


def test_figures_in_the_prompt_are_not_read(tmp_path: Path) -> None:
    program = system(
        recorded(tmp_path, LOOKUP, "encoded", "decoded 1 tokens in " * 200_000 + "n_accept = 99\nencoded")
    )
    assert program.answer(ASK).accepted == 12
    with pytest.raises(BaselineError, match="the prompt before the answer is missing"):
        program.answer(BenchRequest("another prompt", ASK.tokens, 32))


def test_flags_of_penalties_are_in_the_help() -> None:
    given = greedy_arguments(Sampling(repeat_penalty=1.1, logit_bias={5: -1.5}))
    assert " ".join(given) == (
        "--temp 0 --repeat-last-n 64 --repeat-penalty 1.1 --presence-penalty 0 --frequency-penalty 0 -l 5-1.5"
    )
    assert unknown("llama-lookup", *given) == []
    assert greedy_arguments(Sampling()) == ["--temp", "0"]
