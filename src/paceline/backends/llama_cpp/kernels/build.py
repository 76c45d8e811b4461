"""The build of the kernels: once on a machine for each compiler, llama.cpp version and set of sources."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.backends.llama_cpp.kernels.commands import run_all
from paceline.speculative.errors import KernelError
from paceline.system.atomic import atomic_write
from paceline.system.home import Warn, caches, make_private_folder, to_stderr
from paceline.system.locks import folder_lock
from paceline.system.shutdown import scratch_folder

SOURCE_FOLDER = Path(__file__).parent
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fno-rtti", "-ffp-contract=off", "-fvisibility=hidden", "-pthread")
LINKED = ("-shared", "-pthread", *(["-ldl"] if sys.platform == "linux" else []))
ENTRY = "entry.cpp"  # compiled with macros that name the compiled optional sources
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
FMA = ("-mavx2", "-mfma", "-mf16c")
X86 = {
    "path_avx2.cpp": ("WITH_AVX2", FMA),
    "path_avxvnni.cpp": ("WITH_AVXVNNI", (*FMA, "-mavxvnni")),
    "path_avx512.cpp": ("WITH_AVX512", (*AVX512, *FMA)),
}
ARM = {
    "path_neon.cpp": ("WITH_NEON", ("-march=armv8.2-a+dotprod",)),
    "path_i8mm.cpp": ("WITH_I8MM", ("-march=armv8.2-a+dotprod+i8mm",)),
}
# By architecture, optional sources: a compiler may not know their flags. A macro names each, then its flags.
OptionalSources = Mapping[str, tuple[str, tuple[str, ...]]]
OPTIONAL: Mapping[str, OptionalSources] = {"x86_64": X86, "amd64": X86, "aarch64": ARM, "arm64": ARM}
COMPILERS = ("c++", "g++", "clang++")
MAX_CACHED_LIBRARIES = 4  # several versions of Paceline or llama.cpp may share a folder
FAILURE_SUFFIX = ".failed"  # of a file with the reason why a build failed
VERSION_IDLE_SECONDS = 20.0  # without progress, while a compiler prints its version
FAILURE_SECONDS = 24 * 3600  # a failed build is not tried again for so long
NO_COMPILER = (
    "no C++ compiler was found: install one (Debian: apt install g++; macOS: xcode-select --install)"
)
COMPILING_NOTICE = "compiling kernels for this processor, which takes some tens of seconds"


@dataclass(frozen=True)
class BuildRecipe:
    """Sources and their compiler. compiler: a command, empty if there is none."""

    folder: Path
    compiler: tuple[str, ...]
    machine: str

    @property
    def optional(self) -> OptionalSources:
        return OPTIONAL.get(self.machine, {})

    @cached_property
    def sources(self) -> list[str]:
        foreign = {name for table in OPTIONAL.values() for name in table} - set(self.optional)
        return [path.name for path in sorted(self.folder.glob("*.cpp")) if path.name not in foreign]

    @cached_property
    def content(self) -> str:
        files = sorted(path for path in self.folder.iterdir() if path.suffix in (".cpp", ".h"))
        digests = [(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
        parts = [digests, FLAGS, LINKED, self.optional, self.machine, llama_version()]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    @cached_property
    def name(self) -> str:
        """The library's file name. Raises KernelError if the compiler does not run."""
        identity = _identity(self.compiler)
        return f"{self.content}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.so"

    def compile_command(self, source: str, work: Path, flags: Sequence[str]) -> list[str]:
        command = [*self.compiler, *FLAGS, "-Wall", *flags]
        return [*command, "-c", str(self.folder / source), "-o", str(work / f"{source}.o")]


def llama_version() -> str:
    with suppress(PackageNotFoundError):
        return version("llama-cpp-python")
    return ""


def find_compiler() -> tuple[str, ...]:
    """Return the command in CXX, or the first compiler that is installed; empty without one.
    Raises KernelError for a command that is none."""
    given = os.environ.get("CXX", "")
    try:
        command = shlex.split(given)
    except ValueError as error:
        raise KernelError(f"CXX={given}: is no command ({error}); write it as in a shell") from error
    if command:
        return tuple(command)
    return next(((name,) for name in COMPILERS if shutil.which(name)), ())


def recipe_for(folder: Path = SOURCE_FOLDER) -> BuildRecipe:
    return BuildRecipe(folder, find_compiler(), platform.machine().lower())


def library(
    recipe: BuildRecipe, folders: Sequence[Path] | None = None, *, warn: Warn = to_stderr, again: bool = False
) -> Path:
    """Return the library from a cache folder, and build it if needed. Raises KernelError.
    folders: cache folders in order of preference. again: repeat a build that failed recently."""
    if os.name == "nt":
        raise KernelError("there are none for Windows")
    folders = [folder / "kernels" for folder in caches()] if folders is None else folders
    if (path := _found(recipe, folders)) is not None:
        with suppress(OSError):
            os.utime(path)  # the most recently used libraries are kept
        return path
    for folder in folders:
        with suppress(OSError):  # the next folder may be writable
            return _cached(recipe, folder, warn, again)
    raise KernelError("no cache folder can be written to (PACELINE_HOME names another)")


def _found(recipe: BuildRecipe, folders: Sequence[Path]) -> Path | None:
    """Return a cached library, if any; without a compiler, one of the same sources by any compiler.
    Raises KernelError without a compiler and a library."""
    if recipe.compiler:
        return next((path for folder in folders if (path := folder / recipe.name).is_file()), None)
    for folder in folders:
        for path in folder.glob(f"{recipe.content}-*.so"):
            return path
    raise KernelError(NO_COMPILER)


def _cached(recipe: BuildRecipe, folder: Path, warn: Warn, again: bool) -> Path:
    """Return the library in a cache folder, built under a lock if needed. Raises OSError or KernelError."""
    make_private_folder(folder)
    path = folder / recipe.name
    failed = path.with_suffix(FAILURE_SUFFIX)
    with folder_lock(folder):
        if path.is_file():
            return path
        if not again and (reason := _failure(failed)):
            raise KernelError(reason)
        with scratch_folder(folder) as work:
            warn(f"{COMPILING_NOTICE}, this once")
            try:
                built = build(recipe, work)
            except KernelError as error:
                failed.write_text(str(error), "utf-8")
                raise
            with atomic_write(path) as part:
                shutil.copyfile(built, part)
        failed.unlink(missing_ok=True)
        _tidy(folder)
    return path


def mark_failed(path: Path, reason: str) -> None:
    """Remove a library that cannot be loaded, and record the failure like that of a build."""
    with suppress(OSError):
        path.unlink()
        path.with_suffix(FAILURE_SUFFIX).write_text(reason, "utf-8")


def _failure(note: Path) -> str:
    """Return why a recent build failed; "" if none did."""
    try:
        recent = time.time() - note.stat().st_mtime < FAILURE_SECONDS
        return note.read_text("utf-8") if recent else ""
    except (OSError, ValueError):
        return ""


def _tidy(folder: Path) -> None:
    """Remove the least recently used libraries, and old failures."""
    libraries = sorted(folder.glob("*.so"), key=lambda path: path.stat().st_mtime, reverse=True)
    recent = {path.stem for path in libraries[:MAX_CACHED_LIBRARIES]}
    for path in folder.iterdir():
        unused = path.suffix in (".so", ".json") and path.name.partition(".")[0] not in recent
        if unused or (path.suffix == FAILURE_SUFFIX and not _failure(path)):
            path.unlink(missing_ok=True)


def build(recipe: BuildRecipe, work: Path) -> Path:
    """Compile the library in the folder `work`, without optional sources that fail. Raises KernelError."""
    sources = [source for source in recipe.sources if source != ENTRY]
    flags = {source: recipe.optional.get(source, ("", ()))[1] for source in sources}
    results = run_all([recipe.compile_command(source, work, flags[source]) for source in sources], work)
    compiled, macros = [ENTRY], []
    for source, result in zip(sources, results, strict=True):
        if result.ok:
            compiled.append(source)
            macros += [f"-D{recipe.optional[source][0]}"] if source in recipe.optional else []
        elif source not in recipe.optional:
            raise KernelError(_refusal(recipe, source, result.output))
    (entry,) = run_all([recipe.compile_command(ENTRY, work, macros)], work)
    if not entry.ok:
        raise KernelError(_refusal(recipe, ENTRY, entry.output))
    out = work / "kernels.so"
    objects = [str(work / f"{source}.o") for source in compiled]
    (linked,) = run_all([[*recipe.compiler, *objects, *LINKED, "-o", str(out)]], work)
    if not (linked.ok and out.is_file()):
        raise KernelError(_refusal(recipe, "the library", linked.output))
    return out


def _identity(compiler: Sequence[str]) -> str:
    """Return the first line of a compiler's version. Raises KernelError if it does not run."""
    try:
        with TemporaryDirectory() as work:
            (done,) = run_all([[*compiler, "--version"]], Path(work), VERSION_IDLE_SECONDS)
    except OSError as error:
        raise KernelError(f"{shlex.join(compiler)}: cannot be tried ({error})") from error
    if not done.ok:
        raise KernelError(f"{shlex.join(compiler)}: does not run: {first_error(done.output)}")
    return done.output.partition("\n")[0]


def _refusal(recipe: BuildRecipe, what: str, text: str) -> str:
    return f"{shlex.join(recipe.compiler)} could not make {what}: {first_error(text)}"


def first_error(text: str) -> str:
    """Return the first line of a compiler's output with an error, or else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no compiler output"]
    return next((line for line in lines if "error" in line.lower()), lines[0])
