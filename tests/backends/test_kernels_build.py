"""The library of kernels is compiled once, whole or not at all, with whatever the compiler here can do."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.backends.llama_cpp.kernels import build
from paceline.backends.llama_cpp.kernels.build import (
    FAILURE_SUFFIX,
    MAX_CACHED_LIBRARIES,
    BuildRecipe,
    library,
)
from paceline.speculative.errors import KernelError
from paceline.system.shutdown import NAME

COMPILER = shutil.which("c++")
pytestmark = pytest.mark.skipif(COMPILER is None or os.name == "nt", reason="no C++ compiler")

ENTRY = """\
#include "names.h"
#if defined(WITH_AVX2) && defined(WITH_AVXVNNI)
#define PATHS "two one"
#elif defined(WITH_AVX2)
#define PATHS "one"
#else
#define PATHS ""
#endif
extern "C" SHOWN const char *paceline_kernels_paths() { return PATHS; }
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """Sources with two optional x86 paths, and one path of another architecture that does not compile."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "names.h").write_text('#define SHOWN __attribute__((visibility("default")))\n')
    (folder / "entry.cpp").write_text(ENTRY)
    (folder / "path_avx2.cpp").write_text("int avx2() { return 1; }\n")
    (folder / "path_avxvnni.cpp").write_text("int avxvnni() { return 1; }\n")
    (folder / "path_neon.cpp").write_text("#error of another architecture\n")
    return folder


def script(path: Path, *lines: str, exe: str | None = COMPILER) -> tuple[str, ...]:
    """A compiler that does these lines of shell first."""
    path.write_text("\n".join(["#!/bin/sh", *lines, f'exec {exe} "$@"', ""]))
    path.chmod(0o755)
    return (str(path),)


def without_flags(tmp_path: Path, *refused: str) -> tuple[str, ...]:
    """A compiler that takes flags for x86 on any machine, but for those that are refused."""
    lines = ['for one in "$@"; do', "shift", 'case "$one" in']
    lines += [f"{flag}) echo \"error: unrecognized option '{flag}'\" >&2; exit 1;;" for flag in refused]
    lines += ["-mavx*|-mfma|-mf16c) ;;", '*) set -- "$@" "$one";;', "esac", "done"]
    return script(tmp_path / "c++", *lines)


@pytest.fixture
def recipe(sources: Path, tmp_path: Path) -> BuildRecipe:
    return BuildRecipe(sources, without_flags(tmp_path), "x86_64")


def built(recipe: BuildRecipe, *folders: Path, again: bool = False) -> tuple[Path, list[str]]:
    """The path, and what was said."""
    said: list[str] = []
    return library(recipe, folders, warn=said.append, again=again), said


def paths_of(path: Path) -> bytes:
    tell = ctypes.CDLL(str(path)).paceline_kernels_paths
    tell.restype = ctypes.c_char_p
    said: bytes = tell()
    return said


def left(folder: Path) -> list[str]:
    """Names of what is neither a library nor a note."""
    return [path.name for path in folder.iterdir() if path.suffix not in (".so", FAILURE_SUFFIX)]


def test_it_is_built_once_and_found_ever_after(recipe: BuildRecipe, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    path, said = built(recipe, cache)
    assert said == [f"{build.COMPILING_NOTICE}, this once"]
    assert path == cache / recipe.name
    assert paths_of(path) == b"two one"
    assert built(recipe, tmp_path / "nothing", cache) == (path, [])
    assert left(cache) == []
    assert not (tmp_path / "nothing").exists()


def test_another_source_header_compiler_or_llama_cpp_is_another_library(
    recipe: BuildRecipe, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def name() -> str:
        return replace(recipe).name  # which looks anew

    names = [name()]
    assert name() == names[0]
    (sources / "names.h").write_text((sources / "names.h").read_text() + "\n")
    names.append(name())
    (sources / "path_avx2.cpp").write_text("int other() { return 1; }\n")
    names.append(name())
    newer = script(tmp_path / "newer", 'test "$1" != --version || { echo newer 2.0; exit; }')
    names.append(replace(recipe, compiler=newer).name)
    names.append(replace(recipe, machine="riscv64").name)
    monkeypatch.setattr(build, "llama_version", lambda: "9.9.9")
    names.append(name())
    assert len(set(names)) == len(names)


def test_a_compiler_that_lacks_one_flag_loses_that_path_only(recipe: BuildRecipe, tmp_path: Path) -> None:
    recipe = replace(recipe, compiler=without_flags(tmp_path, "-mavxvnni"))
    path, said = built(recipe, tmp_path / "cache")
    assert len(said) == 1
    assert paths_of(path) == b"one"


def test_without_a_compiler_there_are_none_unless_one_has_been_there(
    recipe: BuildRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, bare = tmp_path / "cache", replace(recipe, compiler=())
    with pytest.raises(KernelError, match="no C\\+\\+ compiler was found: install one"):
        built(bare, cache)
    path, _ = built(recipe, cache)
    assert built(bare, cache) == (path, [])
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CXX", raising=False)
    assert build.recipe_for().compiler == ()
    monkeypatch.setenv("CXX", "ccache g++ -m64")
    assert build.recipe_for().compiler == ("ccache", "g++", "-m64")


def test_a_command_that_is_no_compiler_is_named(
    recipe: BuildRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "VERSION_IDLE_SECONDS", 0.3)
    monkeypatch.setenv("CXX", 'g++ "')
    with pytest.raises(KernelError, match="no command"):
        build.recipe_for()
    said: list[str] = []
    cache = tmp_path / "cache"
    (tmp_path / "waits").write_text("#!/bin/sh\nsleep 60\n")
    (tmp_path / "waits").chmod(0o755)
    for command, message in (
        ("echo", "could not make the library"),
        ("true", "could not make the library"),
        ("false", "does not run"),
        (str(tmp_path), "cannot be run"),
        (__file__, "cannot be run"),
        (str(tmp_path / "waits"), "did nothing"),
    ):
        for _ in range(2):
            with pytest.raises(KernelError, match=message):
                library(replace(recipe, compiler=(command,)), [cache], warn=said.append)
    assert len(said) == 2  # echo and true, once each


@pytest.mark.parametrize("name", ["entry.cpp", "shared.cpp"])
def test_a_build_that_fails_is_told_and_not_tried_again_on_the_same_day(
    name: str, recipe: BuildRecipe, sources: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    fine = (sources / name).read_text() if (sources / name).exists() else ""
    (sources / name).write_text("int main( {\n")
    said: list[str] = []
    for _ in range(2):
        with pytest.raises(KernelError, match=rf"could not make {name}: .*error"):
            library(recipe, [cache], warn=said.append)
    assert len(said) == 1
    assert [path.suffix for path in cache.iterdir()] == [FAILURE_SUFFIX]
    with pytest.raises(KernelError, match="could not make"):
        built(recipe, cache, again=True)
    (sources / name).write_text(fine)
    assert built(replace(recipe), cache)[1]  # other sources
    (note,) = cache.glob(f"*{FAILURE_SUFFIX}")
    old = time.time() - build.FAILURE_SECONDS - 1
    os.utime(note, (old, old))
    assert build._failure(note) == ""


def test_without_any_folder_to_write_to_there_are_none(recipe: BuildRecipe, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(KernelError, match="no cache folder can be written to"):
        built(recipe, tmp_path / "file")


def test_two_that_want_it_at_once_build_it_once(recipe: BuildRecipe, tmp_path: Path) -> None:
    log = tmp_path / "log"
    slow = script(tmp_path / "slow", f'echo "$@" >> {log}', "sleep 0.2", exe=recipe.compiler[0])
    recipe, found = replace(recipe, compiler=slow), []
    threads = [
        threading.Thread(target=lambda: found.append(built(replace(recipe), tmp_path / "cache")[0]))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "cache" / recipe.name] * 3
    assert sum("-shared" in line for line in log.read_text().splitlines()) == 1
    assert left(tmp_path / "cache") == []


@pytest.mark.slow
@pytest.mark.parametrize("cleanly", [False, True])
def test_one_that_is_interrupted_leaves_nothing_and_no_compiler(
    cleanly: bool, recipe: BuildRecipe, sources: Path, tmp_path: Path
) -> None:
    """Ctrl-C either raises an exception or ends the process at once."""
    cache, ids = tmp_path / "cache", tmp_path / "ids"
    lines = ['test "$1" != --version || exec true', f"echo $$ >> {ids}", "exec sleep 60"]
    script(tmp_path / "slow", *lines)
    code = f"""
from pathlib import Path
from paceline.cli.interrupts import install_exit_handlers
from paceline.backends.llama_cpp.kernels.build import BuildRecipe, library
if {cleanly}:
    install_exit_handlers()
recipe = BuildRecipe(Path({str(sources)!r}), ({str(tmp_path / "slow")!r},), "x86_64")
library(recipe, [Path({str(cache)!r})])
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    until = time.monotonic() + 60
    while not (ids.exists() and ids.read_text().endswith("\n")) and time.monotonic() < until:
        time.sleep(0.02)
    assert [NAME.fullmatch(name) is not None for name in left(cache)] == [True]
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)
    assert b"this once" in said
    assert list(cache.iterdir()) == []
    numbers = [int(number) for number in ids.read_text().split()]
    until = time.monotonic() + 10
    while any(map(is_running, numbers)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(map(is_running, numbers))


def is_running(number: int) -> bool:
    """A process that has ended may wait for somebody to ask how."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2]
    except OSError:
        return False
    return not state.startswith("Z")


def test_libraries_that_were_not_used_for_long_go_when_there_is_a_new_one(
    recipe: BuildRecipe, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    old = [cache / f"{i}.so" for i in range(MAX_CACHED_LIBRARIES + 1)]
    for i, path in enumerate(old):
        path.touch()
        os.utime(path, (i, i))
    path, _ = built(recipe, cache)
    assert sorted(cache.iterdir()) == sorted([path, *old[2:]])
