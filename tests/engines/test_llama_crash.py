"""A build of llama.cpp for AMX by a compiler that gets it wrong: what is said, and what prevents it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import environment
from paceline.engines.llama.binding import TILES

DEAD = 128 + signal.SIGSEGV
CRASH = """
import ctypes, faulthandler, threading
from llama_cpp import llama_cpp as cpp
cpp.llama_print_system_info = lambda: b"CPU : AVX512 = 1 | AMX_INT8 = {amx} | "
if {watched}:
    faulthandler.enable()
from paceline.engines.llama.binding import llama_cpp
llama_cpp()
threads = [threading.Thread(target=ctypes.CDLL(None).strlen, args=(None,)) for _ in range({threads})]
for thread in threads:
    thread.start()
"""


def crash(amx: int, watched: bool = False) -> subprocess.CompletedProcess[str]:
    # Where a pass crashes, all its threads do. faulthandler takes its own handler away before it writes, so
    # that a second thread would end the process in the middle of a line.
    code = CRASH.format(amx=amx, watched=watched, threads=1 if watched else 4)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())


@pytest.mark.skipif(sys.platform != "linux", reason="crashes are explained on Linux")
def test_a_crash_of_a_build_for_amx_is_explained() -> None:
    done = crash(amx=1)
    assert (done.returncode, done.stdout) == (DEAD, "")
    assert done.stderr.startswith("paceline: llama.cpp crashed. It was compiled for AMX")
    assert f'compile it anew with CXXFLAGS="-include {TILES}"' in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="crashes are explained on Linux")
def test_another_crash_is_the_systems_and_a_handler_that_was_there_stays() -> None:
    other = crash(amx=0)
    assert (other.returncode, other.stderr) == (-signal.SIGSEGV, "")
    watched = crash(amx=1, watched=True)
    assert watched.returncode == -signal.SIGSEGV
    assert watched.stderr.startswith("Fatal Python error: Segmentation fault")
    assert "AMX" not in watched.stderr


def compiled(source: Path, *flags: str | Path) -> str | None:
    """In assembly; None where there is no GCC that knows AMX."""
    command = ["g++", "-O3", "-mamx-tile", *flags, "-S", source, "-o", "-"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None


def test_with_the_header_all_of_a_tile_configuration_is_written_before_it_is_loaded(tmp_path: Path) -> None:
    """GCC 12.2 drops the 77 without it."""
    source = tmp_path / "tiles.cpp"
    source.write_text(
        "#include <immintrin.h>\n"
        "void load() { alignas(64) unsigned char c[64] = {}; c[0] = 1; c[48] = 77; _tile_loadconfig(c); }\n"
    )
    if compiled(source) is None:
        pytest.skip("no GCC here compiles for AMX")
    with_header = compiled(source, "-include", TILES)
    assert with_header is not None
    before, _, _ = with_header.partition("ldtilecfg")
    assert "$77" in before
