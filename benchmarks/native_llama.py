"""Build llama.cpp's programs for this processor, from the source that Paceline's own engine is compiled from.

    python benchmarks/native_llama.py [--out DIR]

A comparison is fair when both sides run the same kernels: this takes the source distribution of the pinned
llama-cpp-python and compiles the programs in it as tools/setup.py compiles the library (release, for this
processor, shared libraries, OpenMP). Nothing else is downloaded: no web UI, no curl, no TLS. A finished build
is reused, a stopped one is gone on with. Progress on stderr, the folder of programs on stdout. Needs a C++
compiler; cmake and ninja come from pip where PATH has none.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = (
    "llama-server",
    "llama-speculative",
    "llama-speculative-simple",
    "llama-lookup",
    "llama-lookup-create",
    "llama-lookup-stats",
    "llama-bench",
    "llama-quantize",
    "llama-cli",
    "llama-completion",
)
BACKEND = ROOT / "src" / "paceline" / "backends" / "llama_cpp"
# What tools/setup.py adds where the processor has AMX; on others the header is empty.
TILES = shlex.join(["-include", str(BACKEND / "tileconfig.h")])
FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    f"-DCMAKE_PROJECT_INCLUDE={BACKEND / 'unity.cmake'}",
    "-DBUILD_SHARED_LIBS=ON",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",  # as the next: would be fetched in the middle of the build
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    *([f"-DCMAKE_CXX_FLAGS={TILES}"] if sys.platform == "linux" else []),
)
COUNT = re.compile(r"^\[(\d+)/(\d+)\]")  # ninja's own
INTERVAL = 20  # seconds between lines of progress


def requirement() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (pinned,) = project["project"]["optional-dependencies"]["llama"]
    return str(pinned)


def step(what: str, command: Sequence[str | Path], log: Path) -> None:
    """Run one command, all it says into the log, a line on stderr now and then."""
    began = shown = time.monotonic()
    print(f"native llama.cpp: {what}", file=sys.stderr, flush=True)
    with (
        log.open("a") as said,
        subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            said.write(line)
            count = COUNT.match(line)
            now = time.monotonic()
            if count and now - shown >= INTERVAL:
                shown = now
                done = f"{count[1]}/{count[2]}, {now - began:.0f} s"
                print(f"native llama.cpp: {what} {done}", file=sys.stderr, flush=True)
    if process.returncode != 0:
        print("\n".join(log.read_text(errors="replace").splitlines()[-25:]), file=sys.stderr)
        raise SystemExit(f"native llama.cpp: {what} failed; all that was said is in {log}")


def tool(name: str, out: Path, log: Path) -> Path:
    """cmake or ninja."""
    found = shutil.which(name)
    if found:
        return Path(found)
    tools = out / "tools"
    scripts = tools / ("Scripts" if os.name == "nt" else "bin")
    if not (scripts / name).exists():
        venv.create(tools, with_pip=True)
        step(f"installing {name}", [scripts / "python", "-m", "pip", "install", name], log)
    return scripts / name


def source(pinned: str, out: Path, log: Path) -> Path:
    """llama.cpp's source, fetched and unpacked."""
    folder = out / pinned.replace("-", "_").replace("==", "-")
    if not folder.exists():
        flags: list[str | Path] = ["--no-binary", ":all:", "--no-deps", "--dest", out]
        command = [sys.executable, "-m", "pip", "download", *flags, pinned]
        step(f"downloading the source of {pinned}", command, log)
        half = out / "unpacking"
        shutil.rmtree(half, ignore_errors=True)
        with tarfile.open(folder.with_name(f"{folder.name}.tar.gz")) as archive:
            archive.extractall(half, filter="data")
        (half / folder.name).rename(folder)
        half.rmdir()
    return folder / "vendor" / "llama.cpp"


def build(out: Path) -> Path:
    """The folder of the finished programs."""
    pinned = requirement()
    made = out / f"build-{pinned.partition('==')[2]}"
    ready, state = made / "ready", "\n".join([pinned, *FLAGS, *PROGRAMS])
    if not ready.exists() or ready.read_text() != state:
        out.mkdir(parents=True, exist_ok=True)
        log = out / "build.log"
        log.write_text("")
        llama = source(pinned, out, log)
        cmake, ninja = tool("cmake", out, log), tool("ninja", out, log)
        made.mkdir(exist_ok=True)
        given = [f"-DCMAKE_MAKE_PROGRAM={ninja}", *FLAGS]
        configure: list[str | Path] = [cmake, "-S", llama, "-B", made, "-G", "Ninja", *given]
        step("configuring", configure, log)
        step("compiling", [cmake, "--build", made, "--target", *PROGRAMS], log)
        ready.write_text(state)
    return made / "bin"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "llama-native", help="where to build")
    print(build(parser.parse_args().out.resolve()))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        print("native llama.cpp: stopped; run it again to go on", file=sys.stderr)
        sys.exit(130)
