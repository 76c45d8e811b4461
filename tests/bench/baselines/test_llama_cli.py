"""llama.cpp's command-line programs: recordings of four versions (tests/data/llama_cpp), and a real build if
there is one."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from paceline.backends.llama_cpp.binding import load_model
from paceline.backends.llama_cpp.text import LlamaText
from paceline.bench.baselines.llama_cli import (
    LlamaLookup,
    LlamaProgram,
    LlamaSpeculative,
    LlamaSpeculativeSimple,
)
from paceline.bench.baselines.llama_flags import Flags
from paceline.bench.baselines.llama_text import failure, read, unreadable
from paceline.bench.system import BenchAnswer, BenchRequest
from paceline.models import zoo
from paceline.speculative.errors import PeerError, UsageError
from paceline.speculative.sampling import Sampling

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "llama_cpp"
VERSIONS = ("0.2.90", "0.3.9", "0.3.16", "0.3.36")
PROGRAMS: dict[str, type[LlamaProgram]] = {
    kind.program: kind for kind in (LlamaSpeculative, LlamaSpeculativeSimple, LlamaLookup)
}
PROMPT = "import os\n\n\ndef main("
ESCAPES = 'print("a\\n\\t")  # ünï\n'
ASK = BenchRequest(PROMPT, tuple(range(7)), 32)
REPEATS = "self, filename, filename, filename, filename, filename, "
PARENT = '):\n    """Return the parent of the parent of the parent of'
TEXT = f"{REPEATS}lineno, lineno, lineno, lineno{PARENT}"


@dataclass(frozen=True)
class Recording:
    version: str
    name: str

    @property
    def run(self) -> dict[str, Any]:
        runs: dict[str, Any] = json.loads((DATA / self.version / "runs.json").read_text())["runs"]
        return runs[self.name]  # type: ignore[no-any-return]

    def path(self, stream: str) -> Path:
        path = DATA / self.version / f"{self.name}.{stream}.txt"
        return path if path.exists() else Path(os.devnull)

    @property
    def err(self) -> str:
        return self.path("err").read_text()

    def write(self, folder: Path) -> Path:
        """A program that says what this recording says, ends as it did, and keeps what it was given."""
        usage = Recording(self.version, f"{self.run['command'][0]}-help")
        code = self.run["exit"]
        return script(
            folder / self.run["command"][0],
            f'if [ "$1" = --help ]; then cat {usage.path("out")}; exit {usage.run["exit"]}; fi',
            f"printf '%s\\0' \"$@\" > {folder}/arguments",
            f'while [ $# -gt 0 ]; do if [ "$1" = -f ]; then cp "$2" {folder}/prompt; fi; shift; done',
            f"cat {self.path('out')}",
            f"cat {self.path('err')} >&2",
            f"exit {code}" if code >= 0 else f"kill {code} $$",
        )


def script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


def system(kind: type[LlamaProgram], path: Path | str | None, **settings: Any) -> LlamaProgram:
    draft = zoo.draft_path() if kind.drafts_with_model else None
    settings = {"n_draft": 4, "n_ctx": 256, "threads": 1} | settings
    return kind(None if path is None else str(path), zoo.target_path(), draft, **settings)


def replay(folder: Path, version: str, name: str, ask: BenchRequest = ASK) -> BenchAnswer:
    recording = Recording(version, name)
    kind = PROGRAMS[recording.run["command"][0]]
    return system(kind, recording.write(folder)).answer(ask)


# Version, program; tokens, drafted, accepted, seconds of the prompt, tokens/s.
SPOKEN = [
    ("0.2.90", "llama-speculative", 35, 36, 25, 0.004, 472.794),
    ("0.3.9", "llama-speculative", 32, 48, 19, 0.004, 467.959),
    ("0.3.16", "llama-speculative", 32, 48, 19, 0.006, 361.88),
    ("0.3.36", "llama-speculative", 32, 48, 19, 0.003, 1003.764),
    ("0.3.9", "llama-speculative-simple", 32, 20, 13, 0.003, 568.172),
    ("0.3.16", "llama-speculative-simple", 32, 20, 13, 0.007, 435.914),
    ("0.3.36", "llama-speculative-simple", 32, 47, 19, 0.003, 1032.058),
    ("0.2.90", "llama-lookup", 36, 24, 13, 0.004, 1568.901),
    ("0.3.9", "llama-lookup", 34, 20, 12, 0.011, 733.771),
    ("0.3.16", "llama-lookup", 34, 20, 12, 0.005, 1044.066),
    ("0.3.36", "llama-lookup", 34, 20, 12, 0.003, 2298.851),
]


@pytest.mark.parametrize(
    ("version", "name", "n_tokens", "drafted", "accepted", "first", "speed"),
    SPOKEN,
    ids=[f"{row[1]}-{row[0]}" for row in SPOKEN],
)
def test_figures_are_read_as_they_were_printed(
    tmp_path: Path,
    version: str,
    name: str,
    n_tokens: int,
    drafted: int,
    accepted: int,
    first: float,
    speed: float,
) -> None:
    answer = replay(tmp_path, version, name)
    assert (answer.tokens, answer.n_prompt, answer.n_tokens) == (None, 7, n_tokens)
    assert (answer.drafted, answer.accepted, answer.steps) == (
        drafted,
        accepted,
        answer.decoded - accepted,
    )
    assert (answer.first, answer.own_speed) == (first, speed)
    assert answer.n_tokens / answer.decoding == pytest.approx(speed)
    # The simple one reads the prompt's last token on its decoding clock.
    assert n_tokens - answer.decoded == (0 if name.endswith("simple") else 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_text_is_told_from_prompt_and_asides(tmp_path: Path, version: str) -> None:
    lookup = replay(tmp_path, version, "llama-lookup").text
    if version == "0.2.90":  # which prints the prompt elsewhere, and drafts worse
        assert lookup == f"{REPEATS}lineno, lineno, lineno, lineno, lineno{PARENT} the parent"
        assert replay(tmp_path, version, "llama-speculative").text == (
            f"{REPEATS}filename, {', '.join(['lineno'] * 11)}"
        )
        return
    assert lookup == f"{TEXT} the parent"
    assert replay(tmp_path, version, "llama-speculative").text == TEXT
    assert replay(tmp_path, version, "llama-speculative-simple").text == TEXT


@pytest.mark.parametrize("version", VERSIONS)
def test_escapes_and_a_last_newline_reach_the_model_as_they_are(tmp_path: Path, version: str) -> None:
    tokens = LlamaText(load_model(zoo.target_path(), vocab_only=True)).encode(ESCAPES)
    answer = replay(tmp_path, version, "escapes", BenchRequest(ESCAPES, tuple(tokens), 32))
    assert (tmp_path / "prompt").read_bytes() == ESCAPES.encode() + b"\n"
    assert answer.n_prompt == len(tokens) == 17
    assert answer.text == "\ndef _get_get_get_get_get_get_get_get_get_get_get_get_get_get_get_"


@pytest.mark.parametrize(
    ("version", "name", "words"),
    [
        *[(version, "vocabulary", ["draft and target do not share a vocabulary"]) for version in VERSIONS],
        ("0.3.9", "vocabulary-simple", ["do not share a vocabulary", "must match target vocab"]),
        ("0.3.36", "vocabulary-simple", ["do not share a vocabulary", "vocab type must match"]),
        *[(version, "other-flag", ["the flag --spec-type"]) for version in VERSIONS[:3]],
        ("0.3.36", "other-flag", ["the flag --draft-max", "use --spec-draft-n-max"]),
        ("0.2.90", "no-draft", ["none.gguf cannot be loaded"]),
        *[(version, "no-draft", ["none.gguf cannot be opened"]) for version in VERSIONS[1:]],
        ("0.3.16", "no-target", ["llama-lookup was ended by SIGSEGV, without a word"]),
        ("0.2.90", "context", ["do not fit its context", "invalid logits id"]),
        ("0.3.9", "context", ["do not fit its context", "find KV cache slot"]),
    ],
)
def test_failures_say_what_is_wrong_and_what_to_do(
    tmp_path: Path, version: str, name: str, words: list[str]
) -> None:
    with pytest.raises(PeerError) as caught:
        replay(tmp_path, version, name)
    assert [word for word in words if word not in str(caught.value)] == []


def test_an_unknown_failure_shows_the_last_words() -> None:
    assert failure("x", 3, "one\n\ntwo\nthree\nfour\n") == (
        "x ended with exit status 3; its last words: two / three / four"
    )


@pytest.mark.parametrize(("version", "name"), [row[:2] for row in SPOKEN])
def test_every_flag_that_is_passed_is_one_of_that_version(tmp_path: Path, version: str, name: str) -> None:
    sampling = Sampling(temperature=0.7, top_k=9, typical_p=0.9, repeat_penalty=1.1, logit_bias={5: -1.5})
    replay(tmp_path, version, name, BenchRequest(PROMPT, ASK.tokens, 32, seed=3, sampling=sampling))
    given = (tmp_path / "arguments").read_text().split("\0")
    usage = Flags(name, Recording(version, f"{name}-help").path("out").read_text())
    # -ngl 0: that build's --help leaves out what needs a GPU, and its parser takes it.
    allowed = {"-ngl"} if version == "0.2.90" else set()
    assert [word for word in given if word[:1] == "-" and not usage.has(word)] == [*allowed]

    def value(flag: str) -> str:
        return given[given.index(flag) + 1]

    draft = {"0.2.90": "--draft", "0.3.36": "--spec-draft-n-max"}.get(version, "--draft-max")
    assert {flag: value(flag) for flag in (draft, "-n", "-c", "-t", "-tb", "--seed", "--temp")} == {
        draft: "4",
        "-n": "31",  # it stops once it has more
        "-c": "256",
        "-t": "1",
        "-tb": "1",
        "--seed": "3",
        "--temp": "0.7",
    }
    assert (value("--top-k"), value("--top-p"), value("--min-p")) == ("9", "1", "0")
    assert (value("--typical"), value("--repeat-penalty"), value("-l")) == ("0.9", "1.1", "5-1.5")
    assert ("--spec-type" in given) == (version == "0.3.36" and name == "llama-speculative-simple")
    assert ("-md" in given) == (name != "llama-lookup")
    assert Path(value("-m")).is_absolute()


def test_p_min_goes_only_to_the_program_that_knows_it(tmp_path: Path) -> None:
    path = Recording("0.3.9", "llama-speculative-simple").write(tmp_path)
    system(LlamaSpeculativeSimple, path, p_min=0.5).answer(ASK)
    given = (tmp_path / "arguments").read_text().split("\0")
    assert given[given.index("--draft-p-min") + 1] == "0.5"
    with pytest.raises(UsageError, match="knows no p_min"):
        system(LlamaSpeculative, path, p_min=0.5)


def test_an_end_of_text_that_counts_is_not_ignored(tmp_path: Path) -> None:
    program = system(LlamaLookup, Recording("0.3.36", "llama-lookup").write(tmp_path), extra=["--no-mmap"])
    program.answer(BenchRequest(PROMPT, ASK.tokens, 32, ignore_eos=False))
    given = (tmp_path / "arguments").read_text().split("\0")
    assert "--ignore-eos" not in given
    assert given[-2:] == ["--no-mmap", ""]


def test_a_prompt_of_more_than_a_batch_is_read_in_one(tmp_path: Path) -> None:
    program = system(LlamaLookup, Recording("0.3.36", "llama-lookup").write(tmp_path), n_ctx=4096)
    program.answer(BenchRequest(PROMPT, tuple(range(3000)), 32))
    given = (tmp_path / "arguments").read_text().split("\0")
    assert given[given.index("-b") + 1] == "3000"


def test_greedy_needs_no_other_sampling_flag(tmp_path: Path) -> None:
    replay(tmp_path, "0.3.36", "llama-lookup")
    given = (tmp_path / "arguments").read_text().split("\0")
    assert given[-3:] == ["--temp", "0", ""]


def test_what_it_cannot_do_is_refused_before_it_is_started(tmp_path: Path) -> None:
    program = system(LlamaLookup, Recording("0.3.36", "llama-lookup").write(tmp_path))
    with pytest.raises(PeerError, match=r"needs 261 cells .* 7 tokens and 246 more, and was given 256"):
        program.answer(BenchRequest(PROMPT, ASK.tokens, 246))
    assert not (tmp_path / "arguments").exists()
    assert program.memory() is None


def test_models_that_do_not_fit_the_program_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="llama-speculative takes a draft model"):
        LlamaSpeculative(None, zoo.target_path(), n_ctx=256, threads=1)
    with pytest.raises(UsageError, match="llama-lookup takes no draft model"):
        LlamaLookup(None, zoo.target_path(), zoo.draft_path(), n_ctx=256, threads=1)
    with pytest.raises(PeerError, match=r"there is no file .*none\.gguf"):
        LlamaLookup(None, tmp_path / "none.gguf", n_ctx=256, threads=1)


def test_a_program_that_is_none_of_llama_cpp_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"no program .*llama-lookup: build llama\.cpp's .*llama-lookup=PATH"):
        system(LlamaLookup, tmp_path / "llama-lookup")
    with pytest.raises(PeerError, match="is no llama-lookup: its --help has no --ignore-eos"):
        system(LlamaLookup, script(tmp_path / "hello", "echo hello"))
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF but no program")
    broken.chmod(0o755)
    with pytest.raises(PeerError, match="cannot be started: Exec format error"):
        system(LlamaLookup, broken)


def test_garbage_is_said_to_be_garbage(tmp_path: Path) -> None:
    program = system(LlamaLookup, script(tmp_path / "llama-lookup", "echo --ignore-eos --draft-max"))
    with pytest.raises(PeerError, match=r"\('encoded \.\.\. tokens', .*n_accept, the prompt .* missing\)"):
        program.answer(ASK)
    recording = Recording("0.3.9", "llama-lookup")
    said = recording.path("out").read_text()
    assert read(said, recording.err, "another prompt") == "the prompt before the answer missing"
    assert read(said, recording.err.replace("733.771", "inf"), PROMPT) == (
        "no speed in 'decoded   34 tokens in    0.046 seconds, speed:  inf t/s'"
    )


@pytest.mark.parametrize(
    ("figure", "lie", "words"),
    [
        ("0.011 seconds, speed", "inf seconds, speed", "no time in 'encoded"),
        ("0.011 seconds, speed", "nan seconds, speed", "no time in 'encoded"),
        ("0.011 seconds, speed", "-1.0 seconds, speed", "no time in 'encoded"),
        ("0.011 seconds, speed", f"{'9' * 400}.0 seconds, speed", "'encoded ... tokens' missing"),
        ("decoded   34", f"decoded   {'9' * 5000}", "'decoded ... tokens' missing"),
        ("decoded   34", "decoded   ٣", "'decoded ... tokens' missing"),
        ("733.771", "nan", "no speed in 'decoded"),
        ("n_accept     = ", "n_accept     = 9999", "more accepted than drafted in 'n_accept"),
        ("n_accept     = ", f"n_accept     = {'9' * 5000}", "n_accept missing"),
    ],
)
def test_figures_that_cannot_be_are_not_believed(figure: str, lie: str, words: str) -> None:
    recording = Recording("0.3.9", "llama-lookup")
    assert figure in recording.err
    said = read(recording.path("out").read_text(), recording.err.replace(figure, lie, 1), PROMPT)
    assert isinstance(said, str)
    assert said.startswith(words)


def test_output_of_any_length_is_read_in_little_time() -> None:
    for line in ("decoded 1 tokens in ", "encoded ", "draft vocab ", "vocabs are not compatible ", " \n"):
        said = line * (4_000_000 // len(line))
        assert isinstance(read(said, said, PROMPT), str)
        assert len(failure("peer", 1, said)) < 1000
        assert len(unreadable("peer", "why", said)) < 1500


def test_figures_in_the_prompt_are_not_the_programs(tmp_path: Path) -> None:
    recording = Recording("0.2.90", "llama-lookup")
    prompt = "n_accept     = 99\nencoded    9 tokens in    9.000 seconds, speed: 9 t/s"
    report = read(recording.path("out").read_text(), recording.err.replace(PROMPT, prompt), prompt)
    assert not isinstance(report, str)
    assert (report.accepted, report.n_prompt) == (13, 7)


@pytest.fixture
def sleeper(tmp_path: Path) -> Path:
    """A program that answers never."""
    return script(
        tmp_path / "llama-lookup",
        'if [ "$1" = --help ]; then echo --ignore-eos --draft-max; exit; fi',
        f"echo $$ > {tmp_path}/pid",
        "sleep 600",
    )


def gone(folder: Path) -> bool:
    """Whether the sleeper has ended."""
    pid = int((folder / "pid").read_text())
    with contextlib.suppress(psutil.NoSuchProcess):
        return not psutil.Process(pid).is_running()
    return True


def test_one_that_hangs_is_stopped(tmp_path: Path, sleeper: Path) -> None:
    program = system(LlamaLookup, sleeper, timeout=0.3)
    with pytest.raises(PeerError, match=r"did not end within 0\.3 s and was stopped"):
        program.answer(ASK)
    assert gone(tmp_path)


@pytest.fixture
def interruption() -> Iterator[None]:
    """Ctrl-C, a moment from now."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)


def test_an_interruption_leaves_no_process(tmp_path: Path, sleeper: Path, interruption: None) -> None:
    program = system(LlamaLookup, sleeper)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(KeyboardInterrupt):
        program.answer(ASK)
    assert gone(tmp_path)


def built(program: str) -> str | None:
    """Of benchmarks/native_llama.py, or on PATH."""
    made = sorted((ROOT / "build" / "llama-native").glob(f"build-*/bin/{program}"))
    return str(made[-1]) if made else shutil.which(program)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_real_program_answers(name: str) -> None:
    path = built(name)
    if path is None:
        pytest.skip(f"no {name} is built (benchmarks/native_llama.py) or on PATH")
    tokens = LlamaText(load_model(zoo.target_path(), vocab_only=True)).encode(ESCAPES)
    program = system(PROGRAMS[name], path)
    answer = program.answer(BenchRequest(ESCAPES, tuple(tokens), 12))
    assert answer.n_prompt == len(tokens)
    assert 12 <= answer.n_tokens <= 12 + 4
    assert answer.text.startswith("\ndef _get_get")
    assert answer.drafted is not None
    assert answer.accepted is not None
    assert 0 < answer.accepted <= answer.drafted
    assert math.isfinite(answer.decoding)
    memory = program.memory()
    assert memory is not None
    assert memory > 1_000_000
