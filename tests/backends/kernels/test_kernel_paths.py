"""Every instruction set's kernels give the bits of one definition in plain C++, and stay within their memory.

A program compares random products, attention and activations with that definition, and that one with sums in
double precision. Other architectures run in an emulator, where there is one."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from paceline.backends.llama_cpp import kernels
from paceline.backends.llama_cpp.kernels import build
from paceline.backends.llama_cpp.kernels.commands import run_all

TESTS, SOURCES = Path(__file__).parent, build.SOURCE_FOLDER
FLAGS = ("-std=c++17", "-fno-rtti", "-ffp-contract=off", f"-I{SOURCES}")
CHECKED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
ROUNDS, FEW_ROUNDS = 48, 16  # each of 16 types of weights comes up once in 16 rounds
HERE = build.OPTIONAL.get(platform.machine().lower(), {})
Table = Mapping[str, tuple[str, tuple[str, ...]]]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.name == "nt" or not build.find_compiler() or shutil.which(build.find_compiler()[0]) is None,
        reason="no C++ compiler",
    ),
]


class Shop:
    """Compiles in one folder, by one compiler, what is not there yet."""

    def __init__(self, folder: Path, compiler: Sequence[str]) -> None:
        self.folder, self.compiler = folder, compiler

    def program(self, table: Table, sources: Sequence[str], flags: Sequence[str] = ("-O2",)) -> Path:
        """The program with the paths of these sources, which alone are compiled with `flags`."""
        name = "-".join(["kernels_test", *flags, *sources]).replace("/", "")
        macros = [f"-D{table[source][0]}" for source in sources]
        objects = {
            self.folder / "scalar.o": ["-Og", TESTS / "path_scalar.cpp"],
            self.folder / f"{name}.o": ["-O1", *macros, TESTS / "kernels_test.cpp"],
        }
        for source in sources:
            objects[self.folder / f"{name}-{source}.o"] = [*flags, *table[source][1], SOURCES / source]
        todo = {out: given for out, given in objects.items() if not out.exists()}
        self.run([[*FLAGS, *map(str, given), "-c", "-o", str(out)] for out, given in todo.items()])
        linked = [flag for flag in flags if flag in CHECKED or flag == "-static"]
        self.run([[*map(str, objects), *linked, "-o", str(self.folder / name)]])
        return self.folder / name

    def run(self, commands: Sequence[Sequence[str]]) -> None:
        for done in run_all([[*self.compiler, *command] for command in commands], self.folder):
            assert done.ok, done.output

    def knows(self, flags: Sequence[str]) -> bool:
        (self.folder / "empty.cpp").touch()
        command = [*self.compiler, *flags, "-c", str(self.folder / "empty.cpp"), "-o", os.devnull]
        return run_all([command], self.folder)[0].ok


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    return Shop(tmp_path_factory.mktemp("kernels"), build.find_compiler())


def said_by(*command: str | Path) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def report(*paths: str) -> str:
    """Return the program's output if all paths agree."""
    return "".join(f"{path}: the same\n" for path in ("scalar", *paths))


def runnable() -> dict[str, str]:
    """Sources of the paths that this processor can run, by the paths' names."""
    kernels.load_kernels()
    stems = {path.replace("-", ""): path for path in kernels.paths()}
    found = {}
    for source in HERE:
        stem = source.removeprefix("path_").removesuffix(".cpp")
        if (name := next((name for key, name in stems.items() if key.startswith(stem)), "")) != "":
            found[name] = source
    return found


def test_each_path_of_this_processor_has_the_bits_of_the_definition(shop: Shop) -> None:
    paths = runnable()
    program = shop.program(HERE, list(paths.values()), ("-O3",))
    assert said_by(program, "1", str(ROUNDS)) == report(*paths)


@pytest.mark.parametrize("source", sorted(HERE))
def test_a_path_of_other_processors_compiles_where_the_compiler_knows_it(shop: Shop, source: str) -> None:
    if source in runnable().values():
        pytest.skip("this processor runs it")
    if not shop.knows(HERE[source][1]):
        pytest.skip("the compiler does not know this instruction set")
    shop.run([[*FLAGS, "-O0", *HERE[source][1], "-c", str(SOURCES / source), "-o", os.devnull]])


def test_a_path_stays_within_its_memory_and_within_what_is_defined(shop: Shop) -> None:
    """The simplest one: the others are the same templates over other registers."""
    simplest = {"x86_64": "path_avx2.cpp", "amd64": "path_avx2.cpp"}.get(
        platform.machine().lower(), "path_neon.cpp"
    )
    paths = {name: source for name, source in runnable().items() if source == simplest}
    if not paths:
        pytest.skip("this processor runs none")
    if not shop.knows(CHECKED):
        pytest.skip("the compiler has no sanitizers")
    program = shop.program(HERE, list(paths.values()), ("-O0", *CHECKED))
    assert said_by(program, "2", str(FEW_ROUNDS)) == report(*paths)


@pytest.mark.skipif(not (shutil.which(CROSS) and shutil.which(EMULATOR)), reason="no emulator of ARM")
def test_the_paths_of_arm_have_the_bits_of_the_definition(tmp_path: Path) -> None:
    table = build.OPTIONAL["aarch64"]
    program = Shop(tmp_path, (CROSS,)).program(table, list(table), ("-O2", "-static"))
    assert said_by(EMULATOR, "-cpu", "max", program, "1", str(FEW_ROUNDS)) == report("neon", "i8mm")
