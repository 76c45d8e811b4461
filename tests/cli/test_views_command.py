"""`paceline views`, and drafting with what it finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from command_line import Done, command
from hf_models import folder_of
from paceline.models import zoo
from paceline.models.headers.gguf_file import GGUFFile
from paceline.models.headers.gguf_writer import layer_count


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return folder_of("llama", tmp_path_factory.mktemp("model"), num_hidden_layers=6)


Said = Callable[..., Done]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    return partial(command, capsys, PACELINE_THREADS="1", PACELINE_FLASH_ATTN="on")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("suite") / "words.jsonl"
    path.write_text("".join(json.dumps({"prompt": text * 3}) + "\n" for text in ("abc", "hello", "x=y;")))
    return path


def test_what_a_search_finds_is_kept_and_drafts(said: Said, model: Path, suite: Path) -> None:
    given = ("-m", str(model), "--suite", str(suite), "--items", "2", "-n", "12", "--threads", "1")
    before = said("run", "-m", model, "-md", "view:", "abc", "-n", "8")
    before.refused(2, "no view of", "paceline views search")
    done = said("views", "search", *given, "--tries", "4", "--json")
    assert done.code == 0, done.err
    found = done.json
    assert {one["method"] for one in found["tried"]} == {"evenly", "similar"}
    assert len(found["tried"]) == 4
    assert found["best"]["tries"] == 4
    assert found["best"]["judged"] == 12  # the second of the three answers
    words = found["best"]["words"]
    run = said("run", "-m", model, "-md", "view:", "--draft", "model", "--json", "abc", "-n", "8")
    named = said("run", "-m", model, "-md", f"view:{words}", "--draft", "model", "--json", "abc", "-n", "8")
    plain = said("run", "-m", model, "--draft", "none", "--json", "abc", "-n", "8")
    assert run.json["text"] == named.json["text"] == plain.json["text"]
    assert run.json["stats"]["drafted"] == named.json["stats"]["drafted"] > 0


@pytest.mark.parametrize("draft", ["model", "cascade", "auto"])
def test_a_view_drafts_whoever_calls_it(said: Said, model: Path, draft: str) -> None:
    given = ("run", "-m", model, "--json", "-n", "24", "abcabcabcabc")
    plain = said(*given, "--draft", "none")
    drafted = said(*given, "-md", "view:skip=2", "--draft", draft)
    assert drafted.code == 0, drafted.err
    assert drafted.json["text"] == plain.json["text"]


def test_views_that_cannot_be_are_refused(said: Said, model: Path, tmp_path: Path) -> None:
    said("run", "-m", model, "-md", "view:exit=7", "x").refused(2, "has 6 layers")
    said("run", "-m", model, "-md", "view:layers=7", "x").refused(2, "view:exit=N")
    for view in ("view:exit=2", "view:"):
        done = said("run", "-m", zoo.target_path(), "-md", view, "x")
        done.refused(2, "cannot leave out layers", "-m hf:FILE", "materialise")
        assert not any(
            word in done.err for word in ("experts", "views search")
        )  # a dense GGUF file has neither
    said("views", "search", "-m", zoo.target_path(), "--items", "1").refused(2, "cannot leave blocks out")
    said("views", "search", "-m", model, "--tries", "0").refused(2, "--tries", "greater than or equal to 1")


def test_layers_on_a_gpu_are_for_gguf_files(said: Said, model: Path) -> None:
    done = said("run", "-m", model, "-ngl", "3", "--draft", "none", "-n", "2", "x")
    assert done.code == 0
    assert "is for GGUF files" in done.err
    assert "llama-cpp-python" not in done.err


def test_a_part_of_a_gguf_file_drafts_for_it(said: Said, tmp_path: Path) -> None:
    out = tmp_path / "part.gguf"
    n = layer_count(GGUFFile(zoo.target_path()))
    done = said("views", "materialise", "-m", zoo.target_path(), "--view", f"exit={n - 1}", out)
    assert (done.code, done.out.strip()) == (0, str(out)), done.err
    assert f"{n - 1} of {n} layers" in done.err
    given = ("run", "--json", "-n", "16", "def main(")
    plain = said(*given, "--draft", "none")
    drafted = said(*given, "-md", out, "--draft", "model")
    assert drafted.json["text"] == plain.json["text"]
    assert drafted.json["stats"]["drafted"] > 0
    again = said("views", "materialise", "-m", zoo.target_path(), "--view", "exit=1", out)
    again.refused(2, "exists")


@pytest.mark.parametrize(
    ("view", "why"),
    [
        ("attention=1", "runs whole layers"),
        ("", "write exit=N or skip=N"),
        ("exit=99", "layers, numbered from 0"),
        ("exit=two", "view:exit=N"),
    ],
)
def test_parts_that_cannot_be_written_are_refused(said: Said, view: str, why: str, tmp_path: Path) -> None:
    done = said("views", "materialise", "-m", zoo.target_path(), "--view", view, tmp_path / "out.gguf")
    done.refused(2, why)
    assert list(tmp_path.iterdir()) == []
