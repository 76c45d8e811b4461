"""Recording of requests: whole lines that can be read again, without harm to other files."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.backends.recorded import numeric_vocab
from paceline.bench.replay import traces
from paceline.bench.replay.recording import Recorder
from paceline.config import Drafting
from paceline.models.fingerprint import vocab_fingerprint
from paceline.request_handle import Generation
from paceline.speculative.errors import UsageError
from paceline.speculative.rng import SeededRng
from paceline.speculative.sampling import MAX_LOGIT, Sampling, TokenDistribution
from paceline.speculative.stats import Stats
from paceline.speculative.vocabulary import Vocab

VOCAB = numeric_vocab(300)
BIASES = st.floats(-MAX_LOGIT, 9, allow_nan=False) | st.just(float("-inf"))
START = """
import os, resource, sys
from pathlib import Path
from paceline.speculative.stats import Stats
from paceline.speculative.sampling import Sampling
from paceline.backends.recorded import numeric_vocab
from paceline.bench.replay.recording import Recorder
from paceline.request_handle import Generation
recorder = Recorder(Path(sys.argv[1]), lambda said: print(said, flush=True))
recorder.begin(numeric_vocab(300), "m")
def add(n, who="w"):
    said = Generation("", tuple(range(n)), "length", 1, n, 0.0, 0.0, Stats())
    recorder.add([1], said, id_=who, sampling=Sampling(), seed=0)
"""
ENDLESS = """
for i in range(10**6):
    add(250)
    print(i, flush=True)
"""
FULL = """
add(100)
size = os.path.getsize(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (size + size // 2, size + size // 2))
add(100)
add(3)
"""


def silent(said: str) -> None:
    pytest.fail(said)


def recorder(path: Path, vocab: Vocab = VOCAB) -> Recorder:
    made = Recorder(path, silent)
    made.begin(vocab, "a model")
    return made


def generation(tokens: tuple[int, ...], **more: Any) -> Generation:
    told: dict[str, Any] = {"text": "", "stop_reason": "length", "n_prompt": 1, "n_tokens": len(tokens)}
    return Generation(
        tokens=tokens, **told | {"prompt_seconds": 0.5, "seconds": 0.25, "stats": Stats()} | more
    )


def add(to: Recorder, tokens: tuple[int, ...] = (1, 2), **more: Any) -> None:
    asked: dict[str, Any] = {"id_": "x", "sampling": Sampling(), "seed": 0}
    to.add([7], generation(tokens), **asked | more)


def objects(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def started(script: str, *args: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", START + script, *map(str, args)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE)


IDS = st.lists(st.integers(0, 299), min_size=1, max_size=6).map(tuple)
REQUEST = st.fixed_dictionaries(
    {
        "prompt": IDS,
        "tokens": IDS,
        "id_": st.text(st.characters(codec="utf-8"), min_size=1, max_size=6),
        "category": st.text(st.characters(codec="utf-8"), max_size=6),
        "session": st.text(st.characters(codec="utf-8"), max_size=6),
        "seed": st.integers(0, 2**63),
        "temperature": st.floats(0, 9),
        "bias": st.dictionaries(st.integers(0, 299), BIASES, max_size=2),
        "seconds": st.floats(1e-9, 1e8),
    }
)


@given(st.lists(REQUEST, min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_what_is_recorded_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, requests: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("record") / "trace.jsonl"
    to = recorder(path)
    for one in requests:
        answer = generation(one["tokens"], seconds=one["seconds"])
        sampling = Sampling(temperature=one["temperature"], logit_bias=one["bias"])
        names = ("id_", "category", "session", "seed")
        to.add(one["prompt"], answer, sampling=sampling, **{name: one[name] for name in names})
    trace = traces.read(path, None, vocab=vocab_fingerprint(VOCAB), n_vocab=300)
    assert (trace.unusable, trace.vocab) == ([], vocab_fingerprint(VOCAB))
    for one, found, line in zip(requests, trace.requests, objects(path), strict=True):
        assert (found.recording.prompt, found.recording.tokens) == (one["prompt"], one["tokens"])
        assert (found.id, found.category, found.session) == (one["id_"], one["category"], one["session"])
        settings = line["sampling"]
        bias = {int(token): float(value) for token, value in settings.pop("logit_bias", {}).items()}
        sampling = Sampling(temperature=one["temperature"], logit_bias=one["bias"])
        assert Sampling(**settings, logit_bias=bias) == sampling
        assert line["seed"] == one["seed"]


def test_a_line_holds_what_differs_and_who_drafted(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    drafting = Drafting(drafters=("lookup",), n_draft=3)
    to = recorder(path)
    add(to, ())  # an answer without a token is left out
    add(to, drafting=drafting, sampling=Sampling(temperature=1.0, top_k=5))
    to.add([1], generation((4,), stop_reason=None), id_="x", sampling=Sampling(), seed=0)
    line, cut = objects(path)
    assert list(line) == [
        "format", "n_vocab", "vocab", "model", "id", "seed", "draws", "sampling", "drafting", "stop_reason",
        "times", "prompt_tokens", "tokens",
    ]  # fmt: skip
    assert (line["format"], line["n_vocab"], line["model"]) == (1, 300, "a model")
    assert line["sampling"] == {"temperature": 1.0, "top_k": 5}
    assert line["drafting"] == {"drafters": ["lookup"], "n_draft": 3}
    assert cut["stop_reason"] == "interrupted"
    assert path.stat().st_mode & 0o077 == 0  # what people ask is nobody else's


def test_it_is_known_what_a_text_was_drawn_with_unless_drafts_were_drawn_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    drawn = Sampling(temperature=0.7, min_p=0.1, repeat_penalty=1.1)
    add(recorder(path), sampling=drawn, seed=9)
    add(recorder(path), sampling=drawn, seed=9, drafting=Drafting(drafters=("model",), draft_temp=1.0))
    add(recorder(path))
    known, *others = [request.recording.gumbel_noise for request in traces.read(path, None).requests]
    assert known is not None
    assert known.sampling == Sampling(temperature=0.7, min_p=0.1)
    row = TokenDistribution(np.arange(50), np.full(50, 0.02))
    assert [known.rng.draw_at(n, row) for n in range(9)] == [SeededRng(9).draw_at(n, row) for n in range(9)]
    assert others == [None, None]


def test_a_killed_writer_leaves_whole_lines_and_the_next_one_goes_on_after_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with started(ENDLESS, path) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    lines = path.read_bytes().split(b"\n")
    assert len(lines) > 3
    assert all(len(json.loads(line)["tokens"]) == 250 for line in lines[:-1])
    with path.open("ab") as file:  # the worst that can come of it
        file.write(lines[0][:400])
    n = traces.count_lines(path)
    add(recorder(path))
    trace = traces.read(path, None)
    assert [number for number, _ in trace.unusable] == [n]
    assert [request.line for request in trace.requests] == [*range(1, n), n + 1]


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process")
def test_a_full_disk_is_reported_once_and_takes_no_half_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with started(FULL, path) as process:
        out, _ = process.communicate()
    assert out == f"--record {path}: cannot be written (the disk is full); nothing more is recorded\n"
    assert [len(one["tokens"]) for one in objects(path)] == [100]


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    for path, why in (
        (tmp_path / "none" / "trace.jsonl", r"cannot be written \(No such file or directory\)"),
        (tmp_path, "is no file"),
    ):
        with pytest.raises(UsageError, match=f"--record {path}: {why}"):
            Recorder(path, silent)


@pytest.mark.parametrize("content", [b"GGUF\x03", b'{\n "type": 1}', b'{"type": "object"}', b"[1]"])
def test_nothing_is_added_to_a_file_of_something_else(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\n" + content)
    with pytest.raises(UsageError, match="holds no recorded requests; name another file"):
        Recorder(path, silent)
    assert path.read_bytes() == b"\n" + content


def test_a_file_of_another_vocabulary_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    add(recorder(path))
    before = path.read_bytes()
    recorder(path)  # it can be gone on with
    other = Vocab(300, "", None, frozenset(), False, False, text=b"t%d".__mod__, piece=b"t%d".__mod__)
    with pytest.raises(UsageError, match="is of another vocabulary; name another file"):
        recorder(path, other)
    assert path.read_bytes() == before
    path.write_bytes(b'{"format":1,"n_vo')  # cut short
    recorder(path, other)
