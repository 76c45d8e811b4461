"""Prompts in a folder, from one process to the next, and files there that cannot be used."""

from __future__ import annotations

import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_architectures import write_architecture
from gguf_files import write_llama
from paceline.backends.llama_cpp import LlamaTarget, saved_prompts
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY
from rows import begun

SYSTEM = np.random.default_rng(0).integers(0, 256, 600).tolist()
FIRST, SECOND = [*SYSTEM, 256, 1, 2, 3, 256, 5], [*SYSTEM, 256, 9, 9, 9, 9, 256, 5]


def write_model(folder: Path, arch: str) -> Path:
    path = folder / f"{arch}.gguf"
    return write_llama(path) if arch == "llama" else write_architecture(path, arch)


def loaded(path: Path, folder: Path | None, **given: Any) -> LlamaTarget:
    return LlamaTarget(path, n_ctx=1024, prompt_cache=str(folder or ""), **given)


def says(target: LlamaTarget, prompt: list[int]) -> tuple[int, list[int]]:
    """Return the tokens that had to be computed, and the greedy answer."""
    session, answer = begun(target, prompt), list[int]()
    pending = session.pending_tokens
    for _ in range(5):
        out = target.forward([(session, EMPTY)], RequiredOutputs())[0]
        answer.append(out.argmax(0))
        session.commit([], answer[-1])
    session.close()
    return pending, answer


@pytest.mark.parametrize("arch", ["llama", "jamba", "mamba"])
def test_a_long_beginning_is_there_after_a_restart(arch: str, tmp_path: Path) -> None:
    path, folder = write_model(tmp_path, arch), tmp_path / "prompts"
    with closing(loaded(path, None)) as target:
        expected = says(target, SECOND)[1]
    with closing(loaded(path, folder, threads=1)) as target:
        says(target, FIRST)
        assert not [*folder.iterdir()]
        assert says(target, SECOND)[1] == expected
        (file,) = folder.iterdir()  # as soon as a second prompt has its beginning
    assert [*folder.iterdir()] == [file]
    assert [stat.S_IMODE(it.stat().st_mode) for it in (folder, file)] == [0o700, 0o600]
    with closing(loaded(path, folder, threads=2, sessions=1)) as target:
        assert says(target, SECOND) == (len(SECOND) - 1 - len(SYSTEM) - (arch == "llama"), expected)


def with_arrays(**changed: Any) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        with np.load(file) as found:
            arrays = {**found, **changed}
        with file.open("wb") as out:
            np.savez(out, **arrays)

    return change


def with_hostile_states(file: Path) -> None:
    with np.load(file) as found:
        states = {name: found[name] | np.uint8(255) for name in found.files if name.isdigit()}
    with_arrays(**states)(file)


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


BAD = {
    "truncated": lambda file: file.write_bytes(file.read_bytes()[:-1000]),
    "one bit": flip,
    "text": lambda file: file.write_text("a prompt"),
    "another model": with_arrays(key=np.array("{}")),
    "no such token": with_arrays(tokens=np.full(9, 258)),
    "fewer tokens": with_arrays(tokens=np.array(FIRST)),
    "objects": with_arrays(tokens=np.array([{}], object)),
    "hostile states": with_hostile_states,
}


@pytest.mark.parametrize("arch", ["llama", "jamba"])
def test_a_file_that_cannot_be_used_is_left_out_with_a_line(
    arch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = write_model(tmp_path, arch), tmp_path / "prompts"
    with closing(loaded(path, folder)) as target:
        expected = says(target, FIRST)
    (file,) = folder.iterdir()
    good = file.read_bytes()
    for name, change in BAD.items():
        file.write_bytes(good)
        change(file)
        with closing(loaded(path, folder)) as target:
            assert says(target, FIRST) == expected, name
            target.cache.saved_prompts = None
        assert capsys.readouterr().err.count("this saved prompt is not used") == 1, name


def test_a_full_folder_drops_what_was_not_used_for_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = write_model(tmp_path, "llama"), tmp_path / "prompts"
    for token in (1, 2, 3):
        with closing(loaded(path, folder)) as target:
            says(target, [token, *SYSTEM])
        size = next(folder.iterdir()).stat().st_size
        monkeypatch.setattr(saved_prompts, "MAX_FOLDER_BYTES", int(2.5 * size))
    with closing(loaded(path, folder)) as target:
        assert [says(target, [token, *SYSTEM])[0] for token in (3, 1)] == [0, len(SYSTEM)]
        monkeypatch.setattr(Path, "glob", lambda *_: (_ for _ in ()).throw(OSError(28, "no space left")))
    assert capsys.readouterr().err.endswith("the prompt cannot be saved: no space left\n")


def test_memory_that_cannot_be_had_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="prompts with an attention window cannot be saved"):
        loaded(write_architecture(tmp_path / "gemma.gguf", "gemma4"), tmp_path)
    with pytest.raises(UsageError, match="exact_greedy"):
        loaded(write_model(tmp_path, "llama"), tmp_path, kernels=False, exact_rows=8)
