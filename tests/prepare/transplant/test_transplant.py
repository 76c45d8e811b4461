"""A transplanted draft has the target's vocabulary and is otherwise bit-identical."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import paceline
from gguf_files import convert, rewritten, write_llama
from paceline.backends.registry import open_tokenizer
from paceline.models import zoo
from paceline.models.headers.gguf_file import GGUFFile
from paceline.prepare.transplant import Transplant
from paceline.speculative.errors import ModelError, UsageError, VocabError
from paceline.vocab.translation import check_shared

TABLES = ("token_embd.weight", "output.weight")
TEXT = "def read_table(path):\n    # naïve – Straße 東京 😀\n    return  [line for line in path]\n"


def made(draft: Path, target: Path, out: Path, **options: Any) -> dict[str, Any]:
    with Transplant(draft, target, **options) as transplant:
        return transplant.write(out)


def with_one_matrix(path: Path, out: Path) -> Path:
    return rewritten(path, out, lambda _fields, parts: parts.pop(TABLES[1]))


def table(path: Path, name: str = TABLES[0]) -> np.ndarray[Any, Any]:
    tensor = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)
    rows: np.ndarray[Any, Any] = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return rows


@pytest.fixture(scope="module")
def moved(foreign_draft: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("moved") / "moved.gguf"
    made(foreign_draft, zoo.target_path(), out)
    return out


def test_the_vocabulary_is_the_targets_and_so_is_every_token_of_a_text(moved: Path) -> None:
    with closing(open_tokenizer(moved)) as draft, closing(open_tokenizer(zoo.target_path())) as target:
        check_shared(target.vocab, draft.vocab)
        assert draft.vocab.size == target.vocab.size
        assert draft.text.encode(TEXT) == target.text.encode(TEXT)


def test_nothing_else_changes_by_a_bit(moved: Path, foreign_draft: Path) -> None:
    old, new, target = GGUFFile(foreign_draft), GGUFFile(moved), GGUFFile(zoo.target_path())
    for name, tensor in old.tensors.items():
        assert name in TABLES or np.array_equal(old.weights(tensor), new.weights(new.tensors[name]))
    for key, field in new.fields.items():
        if key.startswith("tokenizer."):
            assert field == target.fields[key]
        elif key not in ("general.name", "llama.vocab_size"):
            assert field == old.fields[key]
    assert old.fields.keys() | target.fields.keys() == new.fields.keys()
    assert new.values["llama.vocab_size"] == 8192
    assert new.text("general.name") == "Paceline zoo draft, vocabulary of Paceline zoo target"


def test_drafts_are_accepted_and_the_output_is_plain_output(moved: Path, unrounded: Path) -> None:
    with paceline.load(
        unrounded, moved, "model", n_ctx=256, threads=1, p_min=0.3, flash_attention=False, cache_type="f32"
    ) as llm:
        plain = llm.generate(TEXT, max_tokens=48, plain=True, ignore_eos=True)
        drafted = llm.generate(TEXT, max_tokens=48, ignore_eos=True)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.accepted > 10


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a draft of 260 tokens in F32, and a target that shares all but one."""
    folder = tmp_path_factory.mktemp("pair")
    draft = write_llama(folder / "draft.gguf", seed=1, extra_tokens=("ab", "cd"))
    return draft, write_llama(folder / "target.gguf", extra_tokens=("ab", "abc"), layers=1)


@pytest.mark.parametrize("tied", [True, False])
def test_a_vocabulary_in_another_order_comes_over_to_the_last_bit(tmp_path: Path, tied: bool) -> None:
    """Tokens that both have keep their rows in either matrix."""
    draft = write_llama(tmp_path / "d.gguf", seed=1, extra_tokens=("ab", "cd", "ef"))
    target = write_llama(tmp_path / "t.gguf", extra_tokens=("ef", "cd", "ab"), layers=1)
    if tied:
        draft = with_one_matrix(draft, tmp_path / "one.gguf")
    report = made(draft, target, tmp_path / "out.gguf", tied=tied)
    assert (report["same"], report["special"], report["spelled"], report["silent"]) == (260, 1, 0, 0)
    order = [*range(258), 260, 259, 258]
    assert (TABLES[1] in GGUFFile(tmp_path / "out.gguf").tensors) is not tied
    for name in TABLES[: 1 if tied else 2]:
        assert np.array_equal(table(tmp_path / "out.gguf", name), table(draft, name)[order])


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_new_rows_have_the_type_asked_for(pair: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    report = made(*pair, tmp_path / "out.gguf", new_type=kind)
    types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    assert (report["type"], *(types[name] for name in TABLES)) == (kind, kind, kind)
    assert types["blk.0.ffn_down.weight"] == "F32"
    exact = table(pair[0])[100]  # one that both have
    tolerance = {"F32": 0, "F16": 0.001, "BF16": 0.01, "Q8_0": 0.01, "Q4_0": 0.15}[kind]
    assert np.allclose(table(tmp_path / "out.gguf")[100], exact, atol=tolerance * np.abs(exact).max())


@pytest.mark.parametrize(("source", "kind"), [("Q4_0", "Q8_0"), ("BF16", "BF16")])
def test_a_draft_of_any_type_is_read(pair: tuple[Path, Path], tmp_path: Path, source: str, kind: str) -> None:
    convert(pair[0], tmp_path / "draft.gguf", source)
    assert made(tmp_path / "draft.gguf", pair[1], tmp_path / "out.gguf")["type"] == kind
    old, new = GGUFFile(tmp_path / "draft.gguf"), GGUFFile(tmp_path / "out.gguf")
    name = "blk.1.ffn_up.weight"
    assert np.array_equal(old.weights(old.tensors[name]), new.weights(new.tensors[name]))


def test_of_the_target_nothing_but_the_vocabulary_is_needed(tmp_path: Path) -> None:
    target = write_llama(
        tmp_path / "t.gguf", extra_tokens=("ab", "abc"), vocab_only=True, chat_template="{{ messages }}"
    )
    draft = write_llama(tmp_path / "d.gguf", seed=1, added_tokens=("<think>",))
    report = made(draft, target, tmp_path / "out.gguf")
    assert (report["vocab"], report["spelled"], report["tied"]) == (260, 2, False)
    assert GGUFFile(tmp_path / "out.gguf").text("tokenizer.chat_template") == "{{ messages }}"
    old = table(draft, "output.weight")
    average = old.mean(0)
    word = average + 0.7 * (old[[ord("a"), ord("b")]].mean(0) - average)
    assert np.allclose(table(tmp_path / "out.gguf", "output.weight")[258], word, atol=1e-5)
    # read as "b"
    assert np.array_equal(table(tmp_path / "out.gguf")[258], table(draft)[ord("b")])


def test_what_llama_cpp_does_not_take_in_two_matrices_is_tied(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = with_one_matrix(pair[0], tmp_path / "one.gguf")
    check = Transplant._check

    def refuse(self: Transplant, part: Path) -> None:
        if "output.weight" in GGUFFile(part).tensors:
            raise ModelError("wrong number of tensors")
        check(self, part)

    assert not made(one, pair[1], tmp_path / "two.gguf")["tied"]
    assert np.array_equal(table(tmp_path / "two.gguf")[:258], table(tmp_path / "two.gguf", TABLES[1])[:258])
    monkeypatch.setattr(Transplant, "_check", refuse)
    assert made(one, pair[1], tmp_path / "out.gguf")["tied"]
    with pytest.raises(ModelError, match="wrong number"):
        made(one, pair[1], tmp_path / "no.gguf", tied=False)
    assert {path.name for path in tmp_path.iterdir()} == {"one.gguf", "two.gguf", "out.gguf"}


def test_a_file_that_reads_text_differently_is_not_left_behind(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(target: object, draft: object) -> None:
        monkeypatch.setattr(
            "paceline.backends.llama_cpp.text.LlamaText.encode", lambda self, text, **_: [id(self)]
        )

    with Transplant(*pair) as transplant:
        monkeypatch.setattr("paceline.prepare.transplant.check_shared", nothing)
        with pytest.raises(VocabError, match="reads text differently"):
            transplant.write(tmp_path / "out.gguf")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("phase", ["match", "write"])
def test_an_interrupted_transplant_leaves_what_was_there(
    pair: tuple[Path, Path], tmp_path: Path, phase: str
) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"precious")

    def stop(kind: str) -> None:
        if kind == phase:
            raise KeyboardInterrupt

    with Transplant(*pair) as transplant, pytest.raises(KeyboardInterrupt):
        transplant.write(out, force=True, tick=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]
    assert out.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("metadata", "vocab_only", "complaint"),
    [
        ({"split.count": 2}, False, "is one of several parts; join them with llama-gguf-split --merge"),
        ({}, True, "holds no token embedding"),
    ],
)
def test_a_draft_that_cannot_be_transplanted_is_refused(
    tmp_path: Path, metadata: dict[str, Any], vocab_only: bool, complaint: str
) -> None:
    draft = write_llama(tmp_path / "d.gguf", extra_tokens=("ab",), metadata=metadata, vocab_only=vocab_only)
    with pytest.raises((UsageError, ModelError), match=complaint):
        Transplant(draft, write_llama(tmp_path / "t.gguf", extra_tokens=("xy",), layers=1))


def test_a_draft_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    draft, cut = write_llama(tmp_path / "d.gguf"), tmp_path / "cut.gguf"
    whole = draft.read_bytes()
    for length in (0, 3, 20, 100, 3000, len(whole) // 2, len(whole) - 40_000):
        cut.write_bytes(whole[:length])
        with pytest.raises((UsageError, ModelError), match=r"cut\.gguf"):
            Transplant(cut, zoo.target_path())


def test_options_that_cannot_be_are_refused(pair: tuple[Path, Path]) -> None:
    with pytest.raises(UsageError, match=r"unknown weight type 'Q4_K'.*Q4_0"):
        Transplant(*pair, new_type="Q4_K")
    with pytest.raises(UsageError, match="has two matrices, which cannot become one: leave out --tied"):
        Transplant(*pair, tied=True)
