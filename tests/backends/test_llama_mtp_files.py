"""Files whose layers for multi-token prediction (MTP) are missing, alone or broken: one line says so, and
what can decode without them does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import paceline
from gguf_architectures import write_architecture
from gguf_files import rewritten
from paceline.backends.llama_cpp import gate
from paceline.fits import STRIPPED, USABLE
from paceline.models.headers.gguf_writer import metadata_field
from paceline.models.headers.header import read_model_facts
from paceline.speculative.errors import ModelError, UsageError

PROMPT = [65, 66, 67, 65, 66, 67, 65]
LAYER = 2  # the first one behind the model's own


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(gate, "in_load_subprocess", False)


def without(
    source: Path, out: Path, is_gone: Callable[[str], bool], numbers: Mapping[str, int] | None = None
) -> Path:
    """A copy without some tensors, with other numbers."""
    fields = {key: metadata_field(key, number) for key, number in (numbers or {}).items()}
    return rewritten(
        source,
        out,
        lambda old, parts: (old.update(fields), [parts.pop(name) for name in [*parts] if is_gone(name)]),
    )


def whole(folder: Path, arch: str, layers: int = 1) -> Path:
    return write_architecture(folder / f"{arch}.gguf", arch, next_token_heads=layers)


def answer(path: Path, drafters: str = "auto") -> list[int]:
    with paceline.load(path, drafters=drafters, threads=1, n_ctx=64) as llm:
        return list(llm.generate(PROMPT, max_tokens=9, ignore_eos=True).tokens)


@pytest.mark.parametrize("gone", [f"blk.{LAYER}.", f"blk.{LAYER}.nextn.eh_proj"], ids=["all", "one"])
def test_a_model_without_the_weights_of_its_layers_decodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], gone: str
) -> None:
    path = whole(tmp_path, "glm4moe")
    expected = answer(path, "none")
    stripped = without(path, tmp_path / "stripped.gguf", lambda name: name.startswith(gone))
    assert read_model_facts(stripped).mtp == STRIPPED
    assert answer(stripped) == expected
    assert capsys.readouterr().err == ""
    with pytest.raises(UsageError, match="were left out of its file: a repository whose name ends in -MTP"):
        answer(stripped, "mtp")


@pytest.mark.parametrize(
    ("arch", "gone"),
    [("qwen35", ""), ("qwen35", "nextn.eh_proj"), ("glm4moe", "nextn.enorm")],
)
def test_a_file_that_llama_cpp_loads_in_no_way_is_refused(tmp_path: Path, arch: str, gone: str) -> None:
    name = f"blk.{LAYER}.{gone}"
    path = without(whole(tmp_path, arch), tmp_path / "less.gguf", lambda it: it.startswith(name))
    with pytest.raises(ModelError, match=f"holds no usable weights .no {name}"):
        answer(path)


@pytest.mark.parametrize("arch", ["qwen35", "glm4moe"])
def test_a_header_that_counts_the_models_own_layers_as_such_is_refused(tmp_path: Path, arch: str) -> None:
    plain = write_architecture(tmp_path / "plain.gguf", arch)
    path = without(plain, tmp_path / "m.gguf", lambda _: False, {f"{arch}.nextn_predict_layers": 1})
    for drafters in ("none", "auto"):
        with pytest.raises(ModelError, match="that it does not have: convert the model anew"):
            answer(path, drafters)


@pytest.mark.parametrize("arch", ["qwen35", "mimo2"])
def test_the_layers_alone_are_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str], arch: str) -> None:
    def is_trunk(name: str) -> bool:
        return name.startswith("blk.") and not name.startswith(f"blk.{LAYER}.")

    model = whole(tmp_path, arch)
    path = without(model, tmp_path / f"mtp-{arch}.gguf", is_trunk)
    for drafters in ("none", "auto", "mtp"):
        with pytest.raises(UsageError, match="holds only a model's layers for multi-token prediction"):
            answer(path, drafters)
    with pytest.raises(UsageError, match="holds only a model's layers for multi-token prediction"):
        paceline.load(model, path, threads=1)
    assert capsys.readouterr().err == ""


def test_layers_that_crash_llama_cpp_are_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = whole(tmp_path, "glm4moe", layers=2)  # of which llama.cpp computes one
    assert read_model_facts(path).mtp == USABLE
    plain = answer(path, "none")
    assert capsys.readouterr().err == ""
    assert answer(path) == plain
    said = capsys.readouterr().err
    start = f"multi-token prediction (MTP) is not used: {path}: its MTP layers crash llama.cpp (GGML_ASSERT("
    assert start in said
    assert said.count("\n") == 1
    with pytest.raises(
        ModelError, match=r"crash llama\.cpp .*: update llama-cpp-python, or draft without them"
    ):
        answer(path, "mtp")
