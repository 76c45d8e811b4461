"""Kernels of our own are entered where they can be, and a model tells whether it computes with them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

import paceline
from command_line import environment
from paceline.backends.interface import KernelStatus
from paceline.backends.llama_cpp import LlamaTarget, kernels
from paceline.backends.llama_cpp.kernels import build
from paceline.backends.llama_cpp.kernels.build import BuildRecipe
from paceline.backends.registry import BackendSpec

has_compiler = pytest.mark.skipif(
    os.name == "nt" or build.find_compiler() == () or shutil.which(build.find_compiler()[0]) is None,
    reason="no C++ compiler",
)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the kernels to the state of a new process."""
    monkeypatch.setattr(kernels, "_status", None)
    monkeypatch.setattr(kernels, "_library", None)


@has_compiler
def test_a_file_that_is_no_such_library_is_removed_and_told(
    fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = BuildRecipe(tmp_path, build.find_compiler(), "other")
    monkeypatch.setattr(build, "recipe_for", lambda: recipe)
    monkeypatch.setattr(build, "caches", lambda: (tmp_path / "cache",))
    place = tmp_path / "cache" / "kernels"
    place.mkdir(parents=True)
    (place / recipe.name).write_text("cut short")
    assert kernels.load_kernels().reason.startswith("the library cannot be loaded (")
    assert not (place / recipe.name).exists()
    assert build._failure((place / recipe.name).with_suffix(build.FAILURE_SUFFIX))


def test_without_a_compiler_everything_works_and_the_reason_is_told(
    fresh: None, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "find_compiler", lambda: ())
    monkeypatch.setattr(build, "caches", lambda: (tmp_path / "cache",))
    assert kernels.load_kernels() == KernelStatus(reason=build.NO_COMPILER)
    with paceline.load(models / "target.gguf", drafters="none", n_ctx=64) as llm:
        assert llm.target.settings["kernels"] is False
        assert llm.target.identity()["kernels"] == ""
        assert llm.generate([1, 2, 3], max_tokens=2).tokens
    assert not (tmp_path / "cache").exists()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A library that is there, and every time it was switched."""
    switched: list[bool] = []
    status = KernelStatus("avx9")
    monkeypatch.setattr(kernels, "_status", status)
    monkeypatch.setattr(kernels, "_library", None)
    monkeypatch.setattr(kernels, "set_enabled", switched.append)
    return switched


def test_a_model_switches_them_before_it_is_loaded_and_before_each_pass(
    models: Path, told: list[bool]
) -> None:
    path = models / "target.gguf"
    with paceline.load(path, drafters="none", n_ctx=64) as llm:
        assert told == [True, True, True]  # for its context, too, and the pass that shows who computes
        assert llm.target.settings["kernels"] is True
        assert llm.target.identity()["kernels"] == "avx9"
        llm.generate([1, 2, 3], max_tokens=2)
        assert len(told) > 3
        assert set(told) == {True}
        told.clear()
        with closing(LlamaTarget(path, n_ctx=64, kernels=False)) as plain:
            assert told == [False, False]
            assert plain.identity() == BackendSpec(path, {"kernels": False}).identity()
            with closing(plain.with_shared_weights(n_ctx=32, flash_attention=None)) as beside:
                assert beside.settings["kernels"] is False
        assert BackendSpec(path, {}).identity() == BackendSpec(path, {"kernels": True}).identity()
        assert plain.identity() != BackendSpec(path, {}).identity()


def test_a_model_that_fills_the_memory_is_run_without_and_told(
    models: Path, told: list[bool], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import psutil

    path = models / "target.gguf"
    size = path.stat().st_size
    for available, uses in ((int(size / kernels.MEMORY_SHARE) + 1, True), (size, False)):
        monkeypatch.setattr(
            psutil, "virtual_memory", lambda free=available: SimpleNamespace(available=free), raising=True
        )
        monkeypatch.setattr("paceline.backends.llama_cpp.binding.check_memory", lambda *_: None)
        with closing(LlamaTarget(path, n_ctx=64)) as target:
            assert target.settings["kernels"] is uses
            assert target.identity()["kernels"] == ("avx9" if uses else "")
        said = capsys.readouterr().err
        assert ("runs with llama.cpp's kernels" in said) is not uses
    assert told == [True, True, True, False, False]


@pytest.mark.slow
@has_compiler
def test_the_real_library_enters_by_the_best_path_of_this_processor() -> None:
    code = (
        "from paceline.backends.llama_cpp import kernels; "
        "status = kernels.load_kernels(); paths = kernels.paths(); "
        "assert status.path.split()[0] == paths[0], (status, paths); print(*paths)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    for path in done.stdout.split():
        code = (
            "from paceline.backends.llama_cpp import kernels; "
            "library, _, llama = kernels._compiled_library(); "
            f"assert not library.paceline_kernels_enter({path.encode()!r}, llama); "
            "print(library.paceline_kernels_path().decode())"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False
        )
        assert done.stdout == f"{path}\n"


@pytest.mark.slow
@has_compiler
def test_after_a_model_was_loaded_without_them_they_do_not_enter(models: Path) -> None:
    """ggml lists where weights may lie once, at the first load."""
    code = (
        "import sys; from pathlib import Path; from paceline.backends.llama_cpp import LlamaTarget, kernels; "
        "LlamaTarget(Path(sys.argv[1]), n_ctx=64, kernels=False).close(); status = kernels.load_kernels(); "
        "target = LlamaTarget(Path(sys.argv[1]), n_ctx=64); "
        "print(status.path, status.reason, target.caps.exact)"
    )
    program = [sys.executable, "-c", code, str(models / "target.gguf")]
    done = subprocess.run(program, capture_output=True, text=True, env=environment(), check=False)
    assert done.stdout == " a model was loaded without them before False\n", done.stderr
