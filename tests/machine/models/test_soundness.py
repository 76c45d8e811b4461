"""Headers that end llama.cpp's process are refused; whatever it loads is not."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from gguf_files import write_llama
from mutations import F32, U16, U32, Model, number, numbers, strings, texts
from paceline import zoo
from paceline.core.errors import ModelError
from paceline.machine.models.gguf_header import ARRAY, BOOL, STRING
from paceline.machine.models.header import Metadata, read_parts, read_tokenizer
from paceline.machine.models.ordinary import is_ordinary
from paceline.machine.models.soundness import check_model, check_sound
from raw_gguf import text

TOKENS, TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
Change = Callable[[Model], Model]


@pytest.fixture(scope="module")
def good(models: Path) -> Model:
    return Model.read(models / "target.gguf")


def count(name: str, value: int) -> Change:
    return lambda model: model.having(f"llama.{name}", U32, number(U32, value))


def real(name: str, value: float) -> Change:
    return lambda model: model.having(f"llama.{name}", F32, number(F32, value))


def said(name: str, value: str) -> Change:
    return lambda model: model.having(name, STRING, text(value))


def both(*changes: Change) -> Change:
    def change(model: Model) -> Model:
        for one in changes:
            model = one(model)
        return model

    return change


def tokens(*others: bytes) -> Change:
    """These in the place of the first ones."""

    def change(model: Model) -> Model:
        value = next(value for name, _, value in model.fields if name == TOKENS)
        return model.having(TOKENS, ARRAY, texts([*others, *strings(value)[len(others) :]]))

    return change


def few(role: str) -> Change:
    """Eight tokens, none of which is called by the role, and each text is to have one."""

    def change(model: Model) -> Model:
        model = model.having(TOKENS, ARRAY, texts([b"%d" % i for i in range(8)]))
        model = model.having(TYPES, ARRAY, numbers(5, [1] * 8)).without(f"tokenizer.ggml.{role}_token_id")
        return model.having(f"tokenizer.ggml.add_{role}_token", BOOL, number(BOOL, True))

    return change


EPSILON = "attention.layer_norm_rms_epsilon"
UNSOUND = [
    (count("block_count", 0), "it claims 0 layers, llama.cpp loads 1 to 512"),
    (count("block_count", 513), "it claims 513 layers"),
    (count("nextn_predict_layers", 3), "it claims 3 layers that guess further tokens, of 2 in all"),
    (count("expert_count", 4), "it uses 0 of 4 experts"),
    (count("expert_used_count", 1), "it uses 1 of 0 experts"),
    (both(count("expert_count", 1025), count("expert_used_count", 2)), "it claims 1,025 experts"),
    (count("expert_group_count", 1), "it has 1 groups of 0 experts"),
    (
        both(count("expert_count", 4), count("expert_used_count", 1), count("expert_group_count", 3)),
        "it uses 0 of 3 groups of 4 experts",
    ),
    (real(EPSILON, -1e-5), "its layer_norm_rms_epsilon is -1e-05"),
    (real(EPSILON, float("nan")), "its layer_norm_rms_epsilon is nan"),
    (real(EPSILON, float("inf")), "its layer_norm_rms_epsilon is inf"),
    (said("llama.rope.scaling.type", "x" * 99), "its rope scaling is 'xxx"),
    (said("llama.rope.scaling.type", ""), "its rope scaling is ''"),
    (tokens(b"b", b"b"), "its tokens 0 and 1 are one text, b'b'"),
    (tokens(b"b\0c", b"b\0d"), "its tokens 0 and 1 are one text, b'b'"),
    (tokens(b"", b"[EMPTY_0]"), "its tokens 0 and 1 are one text, b'[EMPTY_0]'"),
    (few("bos"), "it wants BOS in each text and has no such token"),
    (few("eos"), "it wants EOS in each text and has no such token"),
    (said("tokenizer.ggml.model", "none"), "has no vocabulary"),
]


@pytest.mark.parametrize(("change", "why"), UNSOUND, ids=[why for _, why in UNSOUND])
def test_what_ends_llama_cpp_is_refused_with_its_reason(
    good: Model, tmp_path: Path, change: Change, why: str
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(change(good).write())
    with pytest.raises(ModelError) as refused:
        check_model(path)
    assert str(refused.value).startswith(f"{path}: {why}")
    assert str(refused.value).isprintable()


def test_of_a_vocabulary_alone_only_the_vocabulary_must_be_sound(good: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(count("block_count", 0)(good).write())
    parts = read_parts(path, tokens=True)
    check_sound(parts, read_tokenizer(Metadata(parts[0])), vocab_only=True)


def test_a_part_whose_number_has_another_type_is_refused(good: Model, tmp_path: Path) -> None:
    for i, kind in ((0, U16), (1, U32)):
        part = good if not i else Model(good.fields[:1], ())
        part = part.having("split.no", kind, number(kind, i)).having("split.count", U16, number(U16, 2))
        (tmp_path / f"m-0000{i + 1}-of-00002.gguf").write_bytes(part.write())
    with pytest.raises(ModelError, match=r"m-00002-of-00002.gguf: its 'split.no' is not a number of 16 bits"):
        check_model(tmp_path / "m-00001-of-00002.gguf")


def ordinary(path: Path, *, vocab_only: bool = False) -> bool:
    check_model(path)
    parts = read_parts(path, tokens=True)
    return is_ordinary(parts, read_tokenizer(Metadata(parts[0])), vocab_only=vocab_only)


def test_embedded_models_are_ordinary() -> None:
    assert ordinary(zoo.target_path())
    assert ordinary(zoo.draft_path())


@pytest.mark.parametrize("arch", ["llama", "qwen2", "gemma", "granite", "mamba", "unheard-of"])
def test_models_of_any_architecture_are_sound(tmp_path: Path, arch: str) -> None:
    path = write_llama(tmp_path / "model.gguf", arch=arch)
    assert ordinary(path) == (arch in ("llama", "qwen2"))
    assert ordinary(path, vocab_only=True)


def first_norm(kind: int) -> Change:
    """A norm of a type that no operation takes."""

    def change(model: Model) -> Model:
        i = next(i for i, one in enumerate(model.tensors) if one.name == "blk.0.attn_norm.weight")
        one = model.tensors[i]
        return model.swapped(i, type(one)(one.name, one.dims, kind))

    return change


ODD = {
    "a norm in F16": first_norm(1),
    "experts": both(count("expert_count", 4), count("expert_used_count", 1)),
    "a key that llama.cpp may read otherwise": real("attention.scale", 0.5),
    "heads that share unevenly": count("attention.head_count_kv", 3),
    "heads of an odd width": both(count("attention.key_length", 15), count("attention.value_length", 15)),
    "keys and values of two widths": count("attention.key_length", 32),
    "a frequency of nothing": real("rope.freq_base", 0.0),
    "another number of heads in each layer": lambda model: model.having(
        "llama.attention.head_count", ARRAY, numbers(U32, [4, 2])
    ),
    "tokens of a kind that is none": lambda model: model.having(TYPES, ARRAY, numbers(5, [7] * 258)),
    "text without bytes to spell it": said("tokenizer.ggml.model", "llama"),
    "another kind of vocabulary": said("tokenizer.ggml.model", "rwkv"),
    "tokens that are books": tokens(b"x" * (17 << 20)),
    "weights between places": lambda model: Model(
        model.having("general.alignment", U32, number(U32, 8)).fields, model.tensors, 8
    ),
}


@pytest.mark.parametrize("change", ODD.values(), ids=ODD.keys())
def test_what_no_rule_here_settles_is_not_ordinary(good: Model, tmp_path: Path, change: Change) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(change(good).write())
    assert not ordinary(path)


def test_a_vocabulary_that_spells_every_byte_is_ordinary(good: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    spelled = tokens(*(b"<0x%02X>" % byte for byte in range(256)))
    path.write_bytes(both(said("tokenizer.ggml.model", "llama"), spelled)(good).write())
    assert ordinary(path)


def test_the_length_of_a_context_that_is_none_is_not_ordinary(good: Model, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(good.having("llama.context_length", U32, struct.pack("<I", 0)).write())
    assert not ordinary(path)
