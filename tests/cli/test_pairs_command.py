"""`paceline pairs`, on models of a few kilobytes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from command_line import Done, command
from gguf_files import write_llama
from hf_models import folder_of
from paceline.models import zoo
from paceline.speculative.policy.costs import PassCosts

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def no_other_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the models of this machine."""
    stores = ("OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "LLAMA_CACHE")
    for name in (*stores, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("paceline.models.stores.search.OLLAMA_SERVICE", tmp_path / "nobody")
    monkeypatch.setattr("paceline.models.zoo.installed_real_models", dict)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))


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
    assert {Path(model["model"]).name for model in record["models"]} == names


def test_drafts_that_fit_the_best_first(capsys: Capture, folder: Path) -> None:
    write_llama(folder / "hybrid.gguf", layers=1, arch="lfm2")  # keeps a state, and may draft
    record = run(capsys, folder, folder / "target.gguf", "--task", "prose", "--json").json
    rows = {Path(row["reference"]).name: row for row in record["drafts"]}
    assert set(rows) == {"draft.gguf", "hybrid.gguf", "other.gguf", "suffix, lookup"}
    assert (rows["draft.gguf"]["verdict"], rows["other.gguf"]["verdict"]) == ("same", "mappable")
    assert record["drafts"][-1]["verdict"] == "mappable"
    assert (record["task"], record["n_ctx"], record["two_rows"]) == ("prose", 512, None)
    assert record["advice"]


@pytest.mark.slow
def test_measuring_tells_speeds_and_costs_and_what_cannot_be_loaded_is_a_note(
    capsys: Capture, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, however_busy: None
) -> None:
    monkeypatch.setattr("paceline.doctor.drafts.N_TOKENS", 8)
    # Two rows of a tiny model may be measured no slower than one, and then any acceptance pays.
    curve = PassCosts.flat(0.001, per_row=0.0005)
    monkeypatch.setattr("paceline.profiling.pass_costs.measure", lambda *_, **__: curve)
    write_llama(folder / "strange.gguf", layers=1, arch="strange")
    (tmp_path / "home" / "bench").mkdir(parents=True)
    (tmp_path / "home" / "bench" / "broken.jsonl").write_bytes(b"no run" * 100)
    record = run(capsys, folder, folder / "target.gguf", "--measure", "--json").json
    rows = {Path(row["reference"]).name: row for row in record["drafts"]}
    assert record["two_rows"] > 0
    for name in ("draft.gguf", "suffix, lookup"):
        assert rows[name]["measured"]["source"] == "measured"
        assert rows[name]["measured"]["speedup"] > 0
        assert rows[name]["break_even"] > 0
    assert len([note for note in record["notes"] if note.startswith("not measured: ")]) == 1
    assert len([note for note in record["notes"] if "is no run of" in note]) == 1
    again = run(capsys, folder, folder / "target.gguf", "--json").json
    assert again["two_rows"] == record["two_rows"]  # kept


def test_what_cannot_be_answered_is_one_line(capsys: Capture, folder: Path) -> None:
    run(capsys, folder, "nowhere.gguf").refused(1, "nowhere.gguf: cannot be read (No such file or directory)")
    run(capsys, folder, "--task", "haiku").refused(2, "unknown task 'haiku'", "prose")
    run(capsys, folder, "--measure").refused(2, "--measure needs a TARGET")


def test_a_model_of_transformers_is_a_target_too(capsys: Capture, folder: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    model = folder_of("llama", folder.parent)
    done = run(capsys, folder, model)
    assert (done.code, done.out.splitlines()[0]) == (0, "target   llama, F32, 0.1 MB")
    file = run(capsys, folder, f"hf:{folder / 'target.gguf'}")
    assert file.code == 0
    assert "draft.gguf" in file.out
    run(capsys, folder, folder).refused(1, "name a GGUF file, such as")


def test_a_copy_of_the_shipped_draft_is_listed_once(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    shutil.copyfile(zoo.draft_path(), tmp_path / "models" / "copy.gguf")
    record = run(capsys, tmp_path / "models", zoo.target_path(), "--json").json
    assert [row["reference"] for row in record["drafts"]].count("zoo:draft") == 1
    assert not any("copy.gguf" in row["reference"] for row in record["drafts"])


def test_a_mixture_can_draft_with_fewer_experts(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    used = {"llama.expert_used_count": 4}
    path = write_llama(tmp_path / "models" / "mixture.gguf", layers=2, experts=8, metadata=used)
    rows = {row["reference"]: row for row in run(capsys, tmp_path / "models", path, "--json").json["drafts"]}
    view, copied = rows["view:experts=1"], rows["suffix, lookup"]
    assert (view["verdict"], view["kin"]) == ("same", True)
    assert copied["memory"] <= view["memory"] < 2 * path.stat().st_size  # the weights are shared
    dense = write_llama(tmp_path / "models" / "dense.gguf", layers=3)
    record = run(capsys, tmp_path / "models", dense, "--json").json
    assert not any(row["reference"].startswith("view:") for row in record["drafts"])


def test_a_model_that_is_not_here_has_the_known_drafts_of_its_name(capsys: Capture, folder: Path) -> None:
    done = run(capsys, folder, "hf.co/Qwen/Qwen3-Coder-480B-A35B-Instruct-GGUF")
    assert done.code == 0
    assert "is not here: by its name these drafts are known" in done.out
    assert "transplant: with the target's vocabulary transplanted" in done.out
