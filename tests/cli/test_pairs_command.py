"""`paceline pairs`, on models of a few kilobytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from command_line import Done, command
from gguf_files import write_llama
from hf_models import folder_of
from paceline.bench.history import History
from paceline.cli import pairs
from paceline.cli.help import GroupedCommand

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_other_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not this machine's models."""
    stores = ("OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE")
    for name in (*stores, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("paceline.models.stores.places.OLLAMA_SERVICE", tmp_path / "nobody")
    monkeypatch.setattr("paceline.models.zoo.real", dict)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)
    app.command("pairs", cls=GroupedCommand)(pairs.pairs)
    monkeypatch.setattr("paceline.cli.app.app", app)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A target of three blocks, a draft of one, and one with another vocabulary."""
    (tmp_path / "models").mkdir()
    write_llama(tmp_path / "models" / "target.gguf", layers=3)
    write_llama(tmp_path / "models" / "draft.gguf", layers=1)
    write_llama(
        tmp_path / "models" / "other.gguf", layers=1, added_tokens=tuple(f"<{i}>" for i in range(200))
    )
    return tmp_path / "models"


def run(capsys: Capture, folder: Path, *args: str | Path) -> Done:
    home = str(folder.parent / "home")
    return command(capsys, "pairs", *args, "--folder", folder, "-t", "1", PACELINE_HOME=home)


def test_without_a_target_the_models_there_are(capsys: Capture, folder: Path) -> None:
    done = run(capsys, folder)
    assert done.code == 0
    names = {line.split()[0].rpartition("/")[2] for line in done.out.splitlines()[1:]}
    assert names == {"draft.gguf", "other.gguf", "target.gguf"}
    record = run(capsys, folder, "--json").json
    assert {Path(one["model"]).name for one in record["models"]} == {
        "draft.gguf",
        "other.gguf",
        "target.gguf",
    }


def test_drafts_that_fit_the_best_first(capsys: Capture, folder: Path) -> None:
    record = run(capsys, folder, folder / "target.gguf", "--task", "prose", "--json").json
    rows = {Path(row["reference"]).name: row for row in record["drafts"]}
    assert set(rows) == {"draft.gguf", "other.gguf", "suffix, lookup"}
    assert (rows["draft.gguf"]["verdict"], rows["other.gguf"]["verdict"]) == ("same", "mappable")
    assert record["drafts"][-1]["verdict"] == "mappable"
    assert (record["task"], record["n_ctx"], record["two_rows"]) == ("prose", 512, None)
    assert record["advice"]


def test_the_table_and_the_advice_are_data(capsys: Capture, folder: Path) -> None:
    done = run(capsys, folder, folder / "target.gguf", "--task", "code", "-c", "64")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[1] == "for      code, 64 tokens of context"
    assert any(line.split()[:1] == [str(folder / "draft.gguf")] for line in lines)


def test_what_a_bench_found_takes_the_predictions_place(
    capsys: Capture, folder: Path, tmp_path: Path
) -> None:
    from bench_records import drafted, plain, record
    from paceline.system.identity import cpu_name, fingerprint

    known = record([])["provenance"] | {
        "target": {"fingerprint": fingerprint(folder / "target.gguf")},
        "draft": {"fingerprint": fingerprint(folder / "draft.gguf")},
        "machine": {"processor": cpu_name()},
        "threads": 1,
    }
    history = History(tmp_path / "bench.jsonl")
    history.finish(history.begin({}, known), "done", [plain(), drafted("model", (2.5, 2.0, 3.0))])
    args = (folder / "target.gguf", "--history", tmp_path / "bench.jsonl")
    done = run(capsys, folder, *args)
    assert "2.50x [2.00, 3.00] bench 1 " in " ".join(done.out.split())
    assert done.out.splitlines()[-1].endswith("(2.50x [2.00, 3.00] measured)")


def test_a_damaged_history_is_a_note_and_nothing_is_made_where_there_is_none(
    capsys: Capture, folder: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(b"no database" * 100)
    done = run(capsys, folder, folder / "target.gguf", "--history", broken)
    assert done.code == 0
    assert "is damaged" in done.err
    absent = tmp_path / "absent.jsonl"
    assert run(capsys, folder, folder / "target.gguf", "--history", absent).code == 0
    assert not absent.exists()


def test_measuring_tells_speeds_and_costs_and_what_cannot_be_loaded_is_a_note(
    capsys: Capture, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, however_busy: None
) -> None:
    monkeypatch.setattr("paceline.doctor.draft_advice.measuring.TOKENS", 8)
    monkeypatch.setattr("paceline.doctor.draft_advice.row.TASKS", {"any": "quote"})
    write_llama(folder / "strange.gguf", layers=1, arch="strange")
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(b"no database" * 100)
    args = (folder / "target.gguf", "--measure", "--json", "--history", broken)
    record = run(capsys, folder, *args).json
    rows = {Path(row["reference"]).name: row for row in record["drafts"]}
    assert record["two_rows"] > 0
    for name in ("draft.gguf", "suffix, lookup"):
        assert rows[name]["measured"]["source"] == "measured"
        assert rows[name]["measured"]["speedup"] > 0
        assert rows[name]["needed"] > 0
    assert len([note for note in record["notes"] if note.startswith("not measured: ")]) == 1
    assert len([note for note in record["notes"] if "is damaged" in note]) == 1
    again = run(capsys, folder, folder / "target.gguf", "--json").json
    assert again["two_rows"] == record["two_rows"]  # kept


def test_a_draft_whose_state_cannot_be_rolled_back_is_left_out(capsys: Capture, folder: Path) -> None:
    write_llama(folder / "hybrid.gguf", layers=1, arch="lfm2")
    record = run(capsys, folder, folder / "target.gguf", "--json").json
    assert "hybrid.gguf" not in {Path(row["reference"]).name for row in record["drafts"]}
    (note,) = record["notes"]
    assert "hybrid.gguf: is left out: it is hybrid" in note


def test_a_model_without_a_fit_is_told_what_to_download(capsys: Capture, tmp_path: Path) -> None:
    name = {"general.basename": "Qwen2.5-Coder", "general.size_label": "32B"}
    target = write_llama(tmp_path / "Qwen2.5-Coder-32B-Instruct-Q8_0.gguf", layers=2, metadata=dict(name))
    (tmp_path / "empty").mkdir()
    record = run(capsys, tmp_path / "empty", target, "--json").json
    assert record["downloads"] == []  # its header says how small it really is
    assert [row["drafter"] for row in record["drafts"]] == ["suffix"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nowhere.gguf",), ("nowhere.gguf: no such file",)),
        (("--task", "haiku"), ("--task haiku", "prose")),
        (("--measure",), ("--measure needs a TARGET",)),
        (("x.gguf", "-c", "0"), ("'--ctx-size'",)),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    capsys: Capture, folder: Path, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    run(capsys, folder, *args).refused(2, *words)


def test_a_model_of_transformers_that_is_not_whole(capsys: Capture, folder: Path) -> None:
    whole = folder / "whole"
    whole.mkdir()
    (whole / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2}))
    run(capsys, folder, whole).refused(1, "has no tokenizer.json")


def test_a_model_of_transformers_is_a_target_too(capsys: Capture, folder: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    model = folder_of("llama", folder.parent)
    done = run(capsys, folder, model)
    assert (done.code, done.out.splitlines()[0]) == (0, "target   llama, F32, 0.1 MB")
    file = run(capsys, folder, f"hf:{folder / 'target.gguf'}")
    assert file.code == 0
    assert "draft.gguf" in file.out
    run(capsys, folder, folder).refused(2, "neither a GGUF file nor a model of transformers")
