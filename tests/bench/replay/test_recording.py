"""Recording of requests: whole lines that can be read again, without harm to other files."""

from __future__ import annotations

import json
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
from paceline.request_handle import Generation
from paceline.settings import Drafting
from paceline.speculative.errors import UsageError
from paceline.speculative.rng import SeededRng
from paceline.speculative.sampling import Sampling, TokenDistribution
from paceline.speculative.stats import Stats
from paceline.speculative.validation import MAX_LOGIT
from paceline.speculative.vocabulary import Vocab

VOCAB = numeric_vocab(300)
BIASES = st.floats(-MAX_LOGIT, 9, allow_nan=False) | st.just(float("-inf"))


def recorder(path: Path, vocab: Vocab = VOCAB, warn: Any = pytest.fail) -> Recorder:
    made = Recorder(path, warn)
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


IDS = st.lists(st.integers(0, 299), min_size=1, max_size=6).map(tuple)
NAMES = st.text(st.characters(codec="utf-8"), max_size=6)
REQUEST = st.fixed_dictionaries(
    {
        "prompt": IDS, "tokens": IDS, "id_": NAMES.filter(bool), "category": NAMES, "session": NAMES,
        "seed": st.integers(0, 2**63), "temperature": st.floats(0, 9), "seconds": st.floats(1e-9, 1e8),
        "bias": st.dictionaries(st.integers(0, 299), BIASES, max_size=2),
    }
)  # fmt: skip


@given(st.lists(REQUEST, min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_recorded_requests_are_read_again(
    tmp_path_factory: pytest.TempPathFactory, requests: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("record") / "trace.jsonl"
    to = recorder(path)
    for one in requests:
        answer = generation(one["tokens"], seconds=one["seconds"])
        sampling = Sampling(temperature=one["temperature"], logit_bias=one["bias"])
        names = ("id_", "category", "session", "seed")
        to.add(one["prompt"], answer, sampling=sampling, **{name: one[name] for name in names})
    trace = traces.read(path, None, vocab=VOCAB.fingerprint, n_vocab=300)
    assert (trace.unusable, trace.vocab) == ([], VOCAB.fingerprint)
    for one, found, line in zip(requests, trace.requests, objects(path), strict=True):
        assert (found.recording.prompt, found.recording.tokens) == (one["prompt"], one["tokens"])
        assert (found.id, found.category, found.session) == (one["id_"], one["category"], one["session"])
        settings = line["sampling"]
        bias = {int(token): float(value) for token, value in settings.pop("logit_bias", {}).items()}
        sampling = Sampling(temperature=one["temperature"], logit_bias=one["bias"])
        assert Sampling(**settings, logit_bias=bias) == sampling
        assert line["seed"] == one["seed"]


def test_line_holds_changed_settings_and_the_drafter(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    drafting = Drafting(drafters=("lookup",), n_draft=3)
    to = recorder(path)
    add(to, ())  # an answer without a token is left out
    add(to, drafting=drafting, sampling=Sampling(temperature=1.0, top_k=5))
    to.add([1], generation((4,), stop_reason=None), id_="x", sampling=Sampling(), seed=0)
    line, cut = objects(path)
    assert (line["format"], line["n_vocab"], line["model"]) == (1, 300, "a model")
    assert line["sampling"] == {"temperature": 1.0, "top_k": 5}
    assert line["drafting"] == {"drafters": ["lookup"], "n_draft": 3}
    assert cut["stop_reason"] == "interrupted"
    assert path.stat().st_mode & 0o077 == 0  # what people ask is nobody else's


def test_noise_of_a_sampled_text_is_known_unless_drafts_were_sampled(tmp_path: Path) -> None:
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


def test_torn_line_is_skipped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    add(recorder(path))
    with path.open("ab") as file:
        file.write(path.read_bytes()[:40])
    add(recorder(path))
    trace = traces.read(path, None)
    assert [number for number, _ in trace.unusable] == [2]
    assert [request.line for request in trace.requests] == [1, 3]


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process")
def test_full_disk_is_reported_once_and_leaves_no_half_lines(tmp_path: Path) -> None:
    import resource

    path, warnings, before = tmp_path / "trace.jsonl", list[str](), resource.getrlimit(resource.RLIMIT_FSIZE)
    to = recorder(path, warn=warnings.append)
    add(to, tuple(range(100)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size * 3 // 2, before[1]))
    try:
        add(to, tuple(range(100)))
        add(to)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(warnings) == 1
    assert "the disk is full" in warnings[0]
    assert [len(one["tokens"]) for one in objects(path)] == [100]


@pytest.mark.parametrize("content", [b"GGUF\x03", b'{\n "type": 1}', b'{"type": "object"}', b"[1]"])
def test_file_of_another_kind_is_refused_and_unchanged(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\n" + content)
    for refused, why in (
        (path, "holds no recorded requests"),
        (tmp_path / "none" / "trace.jsonl", "cannot be written"),
        (tmp_path, "is no file"),
    ):
        with pytest.raises(UsageError, match=why):
            Recorder(refused, pytest.fail)
    assert path.read_bytes() == b"\n" + content


def test_file_of_another_vocabulary_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    add(recorder(path))
    before = path.read_bytes()
    recorder(path)  # it can be continued
    other = Vocab(300, "", None, frozenset(), False, False, text=b"t%d".__mod__, piece=b"t%d".__mod__)
    with pytest.raises(UsageError, match="another vocabulary"):
        recorder(path, other)
    assert path.read_bytes() == before
    path.write_bytes(b'{"format":1,"n_vo')  # cut short
    recorder(path, other)
