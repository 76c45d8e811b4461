"""Replays: counts, memory between requests, and interruption."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from paceline.backends.recorded import Recording, ReplayTarget, numeric_vocab
from paceline.backends.toy import ToyTarget
from paceline.bench.replay import replay as lane
from paceline.bench.replay import tables, traces
from paceline.bench.replay.replay import Replay, ReplayContext, methods_of, replay_recording
from paceline.bench.replay.traces import Trace
from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.none import NoDrafter
from paceline.engine import InferenceEngine
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import Budget, Drafter
from paceline.speculative.loop import decode, start_request
from paceline.speculative.policy.costs import DecodingCosts, PassCosts
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.stats import Stats
from parrot import Parrot

V = 6
SETTINGS = {"n_draft": 4, "ngram_min": 1, "ngram_max": 2}


@pytest.fixture
def parrots(monkeypatch: pytest.MonkeyPatch) -> list[Parrot]:
    """Make every method draft with one of these."""
    made: list[Parrot] = []

    def make() -> Parrot:
        made.append(Parrot())
        return made[-1]

    making(monkeypatch, make)
    return made


def trace(tmp_path: Path, *answers: Sequence[int], name: str = "trace.jsonl") -> Trace:
    """Write requests with these answers."""
    file = tmp_path / name
    file.write_text(
        "".join(json.dumps({"prompt_tokens": [1, 2], "tokens": list(said)}) + "\n" for said in answers)
    )
    return traces.read(file, None)


def replaying(some: Sequence[Trace], methods: str = "lookup", fresh: bool = False, **means: Any) -> Replay:
    chosen = methods_of(methods, SETTINGS, costs="costs" in means)
    return Replay(some, chosen, ReplayContext(numeric_vocab(V), **means), fresh=fresh)


SAME = (3, 4, 5, 3, 3, 4)


def test_what_is_counted_is_what_the_loop_counts(tmp_path: Path) -> None:
    """Compare toy answers with a run of the toy."""
    toy, budget = ToyTarget(V, seed=4), Budget(4, 4)
    answers, expected = [], []
    for prompt in ([1, 2], [2, 1], [5, 5]):
        request = start_request(toy, LookupDrafter(1, 2), GenerationRequest(prompt=prompt, max_tokens=40))
        total = Stats()
        for _, step in decode(toy, LookupDrafter(1, 2), FixedPolicy(budget), [request]):
            if total.tokens < 30:
                total.add(step)
        # As many tokens as whole steps emitted: the record's end cuts none of them short.
        answers.append({"prompt_tokens": prompt, "tokens": request.session.tokens[2 : 2 + total.tokens]})
        expected.append((total.tokens, total.steps, total.drafted, total.accepted))
    file = tmp_path / "toy.jsonl"
    file.write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    done = replaying([traces.read(file, None)], "plain,lookup")
    done.run()
    plain, lookup = done.results()
    for one, (tokens, steps, drafted, accepted) in zip(lookup["each"], expected, strict=True):
        assert [*one.values()][:4] == [tokens, steps, drafted, accepted]
    assert lookup["accepted"] > 0
    assert [one["steps"] for one in plain["each"]] == [tokens for tokens, *_ in expected]
    assert plain["tokens_per_step"]["value"] == 1.0
    assert lookup["by_source"]["lookup"]["accepted"] == lookup["accepted"]
    assert lookup["by_source"]["lookup"]["tried"] == lookup["steps"]
    assert lookup["by_category"] == {}


def test_a_request_does_not_know_where_its_record_ends() -> None:
    """A draft near the end is as long as elsewhere, and tokens beyond the end are not accepted."""
    recording, policy = Recording((3, 4, 3), (4, 3, 4)), FixedPolicy(Budget(5, 5))
    target = ReplayTarget(numeric_vocab(V), [recording])
    engine = InferenceEngine(target, LookupDrafter(1, 2), policy, detokenize=False)
    stats = replay_recording(engine, recording)
    assert (stats.steps, stats.drafted, stats.accepted, stats.tokens) == (1, 5, 3, 3)
    with pytest.raises(AssertionError, match="another text"):
        replay_recording(engine, replace(recording, tokens=(4, 3, 3)))


def test_a_file_starts_with_nothing_remembered(tmp_path: Path, parrots: list[Parrot]) -> None:
    files = [trace(tmp_path, SAME, SAME, name=name) for name in ("a", "b")]
    done = replaying(files)
    done.run()
    # Learned from the request before.
    assert [one["accepted"] for one in done.results()[0]["each"]] == [0, 5, 0, 5]
    record = done.as_dict()
    assert [request["file"] for request in record["requests"]] == [0, 0, 1, 1]
    assert [file["file"] for file in record["files"]] == ["a", "b"]
    assert [parrot.forgot for parrot in parrots] == [2]
    done.close()
    assert [parrot.closed for parrot in parrots] == [1]
    fresh = replaying(files, fresh=True)
    fresh.run()
    assert [one["accepted"] for one in fresh.results()[0]["each"]] == [0, 0, 0, 0]


def making(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Drafter]) -> None:
    """Make every method draft with the drafter of `make`."""
    monkeypatch.setattr(lane, "make_drafter", lambda drafting, *parts: (make(), drafting))


def test_a_drafter_that_reads_the_targets_rows_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    making(monkeypatch, lambda: ComposedDrafter([LookupDrafter(), Parrot(8)]))
    with pytest.raises(UsageError, match="method 'lookup': drafts from what the target computes"):
        replaying([trace(tmp_path, SAME)])


def said(record: dict[str, Any], **known: Any) -> str:
    out = StringIO()
    unknown = {"tokenizer": None, "draft_model": None, "cost_curve": None, "n_vocab": V}
    tables.write(unknown | record | known, out)
    return out.getvalue()


def test_methods_are_those_that_were_named() -> None:
    assert [one.name for one in methods_of("lookup", {})] == ["lookup"]
    for plain in ("none", "plain"):
        named = methods_of(f"lookup:n_draft=3,{plain}", {})
        assert [one.name for one in named] == ["plain", "lookup:n_draft=3"]
    assert [one.name for one in methods_of("lookup", {}, costs=True)] == ["plain", "lookup"]
    assert [one.name for one in methods_of("model", {}, draft=True)] == ["model"]
    for text, words in (
        (" , ", "no method named"),
        ("lookup+model", "leave 'model' out"),
        ("lookup:policy=goodput", "by what passes cost: give a curve"),
    ):
        with pytest.raises(UsageError, match=words):
            methods_of(text, {})


# Speeds.

CYCLE = (3, 4, 5, 3, 4, 5, 3, 4, 5, 3)
FLAT = DecodingCosts(PassCosts.flat(0.5, 0.125), step=0.25)


def test_predicted_times_are_those_of_passes_and_steps(tmp_path: Path) -> None:
    done = replaying([trace(tmp_path, CYCLE, SAME)], "lookup", costs=FLAT)
    done.run()
    plain, lookup = done.results()
    assert plain["predicted"]["seconds"] == pytest.approx(16 * 0.75)
    assert lookup["predicted"]["seconds"] == pytest.approx(0.75 * lookup["steps"] + 0.125 * lookup["drafted"])
    speedup = plain["predicted"]["seconds"] / lookup["predicted"]["seconds"]
    assert lookup["predicted"]["speedup"]["value"] == pytest.approx(speedup)
    assert plain["predicted"]["speedup"]["value"] == 1.0
    assert [one["seconds"] for one in plain["each"]] == [pytest.approx(7.5), pytest.approx(4.5)]
    assert "predicted from what passes cost" in said(done.as_dict())


def test_a_draft_model_runs_along_the_record(tmp_path: Path) -> None:
    """A toy drafts for its own text, so that everything is accepted."""
    toy = ToyTarget(V, seed=4)
    request = start_request(toy, NoDrafter(), GenerationRequest(prompt=[1, 2], max_tokens=30))
    for _ in decode(toy, NoDrafter(), FixedPolicy(Budget(0, 0)), [request]):
        pass
    price = DecodingCosts(PassCosts.flat(1.0, 0.0), PassCosts.flat(0.125, 0.0))
    some = trace(tmp_path, request.session.tokens[2:])
    vocab = toy.vocab
    chosen = methods_of("model:n_draft=4:p_min=0", {}, draft=True, costs=True)
    done = Replay([some], chosen, ReplayContext(vocab, draft=toy, costs=price))
    done.run()
    model = done.results()[1]
    assert (model["steps"], model["accepted"], model["drafted"]) == (6, 24, 24)
    assert model["predicted"]["seconds"] == pytest.approx(6 * (1.0 + 4 * 0.125))
    with pytest.raises(UsageError, match=r"'model:n_draft=4:p_min=0': the cost curve knows no draft model"):
        Replay([some], chosen, ReplayContext(vocab, draft=toy, costs=DecodingCosts(PassCosts.flat())))
    done.close()


def test_categories_come_from_the_lines(tmp_path: Path) -> None:
    some = trace(tmp_path, CYCLE, CYCLE, CYCLE, CYCLE)
    names = ("code", "prose", "code", "")
    some.requests = [replace(one, category=name) for one, name in zip(some.requests, names, strict=True)]
    done = replaying([some], "lookup", costs=FLAT)
    done.run()
    lookup = done.results()[1]
    counts = [(name, part["requests"]) for name, part in lookup["by_category"].items()]
    assert counts == [("code", 2), ("prose", 1), ("", 1)]
    rows = [line.split() for line in said(done.as_dict()).splitlines()]
    assert ["prose", "plain", "1", "10"] in [row[:4] for row in rows]
    assert ["-", "lookup", "1", "10"] in [row[:4] for row in rows]
