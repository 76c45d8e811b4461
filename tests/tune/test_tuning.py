"""Tunes of small models: what is measured, what is decided, and what continues."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.bench.suites.workload import Item
from paceline.bench.summary import Interval
from paceline.settings import LoadOptions
from paceline.speculative.errors import UsageError
from paceline.storage import profiles
from paceline.tune.candidates import draft_methods, method_of
from paceline.tune.plan import Sweep, TunePlan
from paceline.tune.record import TuneRecord, read
from paceline.tune.search import engines_to_try
from paceline.tune.trials import split
from paceline.tune.tuning import Tuning, decide


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def plan(models: Path, tmp_path: Path) -> TunePlan:
    suite = tmp_path / "suite.jsonl"
    texts = ["ab ab ab ab", "hello hello", "the end the", "one two one two"]
    items = [
        {"id": f"{n}", "category": f"kind{n % 2}", "prompt": texts[n % 4] * (1 + n // 4), "max_tokens": 12}
        for n in range(14)
    ]
    suite.write_text("".join(json.dumps(item) + "\n" for item in items))
    options = LoadOptions.of(str(models / "target.gguf"), threads=1, cache_type="f32", flash_attention=False)
    return TunePlan(models=options, drafts=(str(models / "draft.gguf"),), suite=str(suite), minutes=0.05)


def stages(record: TuneRecord) -> list[str]:
    return list(record.stages)


def test_a_sweep_measures_each_value_beside_plain_decoding(plan: TunePlan, tmp_path: Path) -> None:
    file = tmp_path / "record.jsonl"
    record = Tuning(replace(plan, sweeps=("n_draft=2,5", "threads=1", "placement")), file=file).run()
    results = record.stages["sweep n_draft"].results
    assert results is not None
    names = [result["system"] for result in results]
    assert names == ["plain", "model:policy=fixed:n_draft=2", "model:policy=fixed:n_draft=5"]
    assert all(result["lossless"] and result["items"] >= 1 for result in results)
    assert results[1]["speedup"]["value"] > 0
    placements = [f"sweep placement={one}" for one in Sweep.parse("placement").values]
    assert stages(record) == ["sweep n_draft", "sweep threads=1", *placements]
    assert list(profiles.every(pytest.fail)) == []  # none was named
    assert read(file).as_dict() == json.loads(json.dumps(record.as_dict()))


def test_a_sweep_of_quantisations_makes_each_draft_once_and_compares_it(plan: TunePlan, home: Path) -> None:
    record = Tuning(replace(plan, sweeps=("quantisation=Q8_0,Q4_0",))).run()
    results = record.stages["sweep quantisation"].results
    assert results is not None
    assert [result["system"] for result in results] == ["plain", "model:Q8_0", "model:Q4_0"]
    note = record.stages["sweep quantisation"].note
    assert "beside Q8_0, Q4_0 has " in note
    made = {path.name: path.stat().st_mtime_ns for path in (home / "quantised").iterdir()}
    assert len(made) == 2
    Tuning(replace(plan, sweeps=("quantisation=Q8_0,Q4_0",))).run()
    assert made == {path.name: path.stat().st_mtime_ns for path in (home / "quantised").iterdir()}
    with pytest.raises(UsageError, match="quantisation"):
        Tuning(replace(plan, sweeps=("quantisation=Q3",))).run()


def test_an_adaptive_sweep_begins_with_8_tokens_and_says_why_it_ends(plan: TunePlan) -> None:
    record = Tuning(replace(plan, sweeps=("k",))).run()
    assert stages(record)[0] == "sweep k=8"
    assert 1 <= len(stages(record)) <= 4
    assert record.stages[stages(record)[-1]].note


def test_a_search_replays_knocks_out_and_checks_on_held_out_prompts(plan: TunePlan) -> None:
    record = Tuning(replace(plan, minutes=0.3)).run()
    assert stages(record)[:2] == ["replay", "round 1"]
    assert stages(record)[-1] == "held out"
    tuned = {group.item for name in stages(record)[:-1] for group in record.stages[name].groups}
    held_out = {group.item for group in record.stages["held out"].groups}
    assert tuned
    assert held_out
    assert not tuned & held_out
    end = record.conclusion
    assert end["status"] == "done"
    saved = list(profiles.every(pytest.fail))
    assert [one.name for one in saved] == ([] if end["profile"] is None else ["any"])


def test_settings_of_the_engine_that_were_given_are_not_tried(plan: TunePlan) -> None:
    def tried(**given: Any) -> set[str]:
        trials = SimpleNamespace(
            plan=TunePlan(models=LoadOptions.of("x.gguf", **given)), threads=given.get("threads", 1)
        )
        return {name for engine in engines_to_try(trials) for name in engine}  # type: ignore[arg-type]

    assert {"placement", "cache_type"} <= tried()
    assert tried(threads=1, placement="pinned", cache_type="bf16") == set()


def test_an_interrupted_search_continues_and_measures_nothing_twice(plan: TunePlan, tmp_path: Path) -> None:
    file, plan = tmp_path / "record.jsonl", replace(plan, minutes=0.3)

    @contextmanager
    def interrupt(work: Any) -> Iterator[Callable[[str], None]]:
        def tick(_kind: str) -> None:
            if len(record.stages) == 3:
                raise KeyboardInterrupt

        yield tick

    tuning = Tuning(plan, file=file, watch=interrupt)
    record = tuning.record
    tuning.run()
    assert record.conclusion == {"status": "interrupted"}
    stored = read(file)
    before = {name: len(stage.groups) for name, stage in stored.stages.items()}
    done = Tuning(TunePlan.read(stored.plan), stored=stored).run()
    assert done.conclusion["status"] == "done"
    first = stages(done)[1]
    assert len(done.stages[first].groups) == before[first]
    assert file.read_text().count('"candidates"') == 1


GAIN, LOSS = Interval(1.5, 1.4, 1.6), Interval(0.8, 0.7, 0.9)


@pytest.mark.parametrize(
    ("over_plain", "over_default", "n", "chosen"),
    [
        ({"auto": GAIN, "best": GAIN}, GAIN, 6, "best"),
        ({"auto": GAIN, "best": GAIN}, GAIN, 5, "auto"),  # too few prompts
        ({"auto": GAIN, "best": GAIN}, Interval(1.01, 0.9, 1.1), 6, "auto"),  # by chance
        ({"auto": GAIN, "best": GAIN}, LOSS, 6, "auto"),
        ({"auto": GAIN, "best": LOSS}, GAIN, 6, "auto"),
        ({"auto": LOSS, "best": LOSS}, GAIN, 6, "plain"),
        ({"auto": LOSS, "best": GAIN}, GAIN, 6, "best"),
        ({"auto": None, "best": None}, None, 6, "plain"),
    ],
)
def test_the_choice_never_loses_against_defaults_or_plain_decoding(
    over_plain: dict[str, Interval | None], over_default: Interval | None, n: int, chosen: str
) -> None:
    assert decide("best", "auto", over_plain, over_default, n)[0] == chosen


def test_items_are_split_with_sessions_whole_and_enough_held_out() -> None:
    items = [Item(str(n), "c", session="s" if n in (2, 3) else "") for n in range(9)]
    tuning, held_out = split(items)
    assert sorted(item.id for item in [*tuning, *held_out]) == [item.id for item in items]
    assert len(held_out) >= 6 - 1
    assert {item.session for item in tuning} & {item.session for item in held_out} <= {""}


@pytest.mark.parametrize(
    "text",
    ["", "n_draft", "n_draft=", "n_draft=4,4", "n_draft=x", "n_drafts=4", "threads=x", "cache_type=q9"],
)
def test_a_sweep_of_no_values_or_no_setting_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Sweep.parse(text)


def test_a_preset_has_its_task_and_role_and_refuses_another() -> None:
    coder = TunePlan(profile="coder")
    assert (coder.task, coder.role) == ("code", {})
    assert TunePlan(profile="architect").role == {"role": "quality"}
    with pytest.raises(UsageError, match="coder"):
        TunePlan(profile="coder", task="chat")


def test_a_method_has_a_name_that_bench_reads(models: Path) -> None:
    from paceline.bench.method import parse

    for method in [*draft_methods(models / "draft.gguf", {}), method_of({"drafters": ("none",)})]:
        assert parse(method.name, {}).drafting == method.drafting


def test_a_record_of_another_kind_is_refused(tmp_path: Path) -> None:
    for text in ("", "{}", '{"format": 2, "kind": "tune"}', '{"format": 1, "kind": "bench"}', "x"):
        (tmp_path / "x.jsonl").write_text(text)
        with pytest.raises(UsageError, match="no record"):
            read(tmp_path / "x.jsonl")
