"""A vocabulary from a header: what files leave out, and the bytes that a token stands for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gguf_files import write_llama
from paceline.backends.llama_cpp.binding import load_model
from paceline.backends.llama_cpp.text import read_vocab
from paceline.models import zoo
from paceline.models.headers.facts import TokenizerFacts
from paceline.models.headers.header import read_gguf
from paceline.models.headers.vocabulary import end_tokens, make_vocab

PLAIN = TokenizerFacts("BPE", "", [b"t%d" % i for i in range(20)])


def test_vocabulary_of_a_header_is_the_one_that_llama_cpp_reads(tmp_path: Path) -> None:
    odd = ("<|im_end|>", "<|fim_prefix|>", "<|channel|>", "Ġé", "日")
    files = [zoo.target_path(), write_llama(tmp_path / "odd.gguf", added_tokens=odd, vocab_only=True)]
    for path in files:
        tokenizer = read_gguf(path).tokenizer
        assert tokenizer is not None
        ours, theirs = make_vocab(tokenizer), read_vocab(load_model(path, vocab_only=True))
        for field in ("size", "kind", "bos", "eos", "add_bos", "add_eos"):
            assert getattr(ours, field) == getattr(theirs, field)
        tokens = range(theirs.size)
        assert [ours.text(t) for t in tokens] == [theirs.text(t) for t in tokens]
        assert [ours.piece(t) for t in tokens] == [theirs.piece(t) for t in tokens]


@pytest.mark.parametrize(
    ("kind", "pre", "bos", "eos", "add_bos", "add_eos"),
    [
        ("SPM", "", 1, {2}, True, False),
        ("BPE", "", 11, {11}, False, False),
        ("BPE", "llama-bpe", 11, {11}, True, False),
        ("BPE", "tekken", 11, {11}, True, False),
        ("BPE", "glm4", None, {11}, False, False),
        ("BPE", "gemma4", None, set(), True, False),
        ("UGM", "", None, {1}, False, True),
        ("RWKV", "", None, set(), False, False),
        ("PLaMo-2", "", 1, {2}, False, False),
        ("WPM", "", None, set(), True, False),  # 101 is no token of so small a vocabulary
    ],
)
def test_what_a_file_leaves_out_hangs_on_the_tokenizer(
    kind: str, pre: str, bos: int | None, eos: set[int], add_bos: bool, add_eos: bool
) -> None:
    found = make_vocab(replace(PLAIN, kind=kind, pre=pre))
    assert (found.bos, set(found.eos), found.add_bos, found.add_eos) == (bos, eos, add_bos, add_eos)


def test_what_a_file_says_goes_before_and_no_id_lies_outside() -> None:
    special = {"bos": 3, "eos": 4, "eot": 5}
    found = make_vocab(replace(PLAIN, special=special, ends=frozenset({6, 99}), add_bos=True, add_eos=True))
    assert (found.bos, set(found.eos), found.add_bos, found.add_eos) == (3, {4, 5, 6}, True, True)
    assert make_vocab(replace(PLAIN, special={"bos": 99, "eos": -1})).bos == 11
    assert make_vocab(replace(PLAIN, pre="gemma4", add_bos=False)).add_bos  # as llama.cpp does


@pytest.mark.parametrize(
    ("kind", "pre", "type_", "text", "piece"),
    [
        ("BPE", "gpt-2", 1, "Ġé".encode(), b" \xe9"),  # é stands for one byte there
        ("BPE", "gpt-2", 1, "Ã©".encode(), "é".encode()),
        ("BPE", "gpt-2", 1, "日".encode(), b"[UNK_BYTE_0xe697a5\xe6\x97\xa5]"),
        ("BPE", "gpt-2", 1, b" " * 50_000, b"[UNK_BYTE_" + b" " * 50_000 + b"]"),
        ("BPE", "gpt-2", 4, b"<think>", b"<think>"),
        ("BPE", "gpt-2", 3, b"<|im_start|>", b""),
        ("BPE", "gpt-2", 4, b"<|fim_prefix|>", b""),
        ("BPE", "gpt-2", 3, b"<|channel|>", b"<|channel|>"),
        ("BPE", "gpt-2", 5, b"[PAD7]", b""),
        ("BPE", "gemma4", 1, "▁日".encode(), " 日".encode()),
        ("SPM", "", 1, "▁▁a".encode(), b"  a"),
        ("SPM", "", 6, b"<0x0A>", b"\n"),
        ("SPM", "", 6, b"<0xZZ>", b""),
        ("SPM", "", 2, b"<unk>", b""),
        ("SPM", "", 4, "▁x".encode(), "▁x".encode()),
    ],
)
def test_the_bytes_of_a_token(kind: str, pre: str, type_: int, text: bytes, piece: bytes) -> None:
    tokenizer = TokenizerFacts(kind, pre, [text, b"end", b"end"], (type_, 3, 3), {"bos": 1, "eos": 2})
    assert make_vocab(tokenizer).piece(0) == piece


GPT_OSS = [b"a", b"<|end|>", b"<|return|>", b"<|call|>", b"<|endoftext|>"]
NAMED = [b"a", b"<|im_end|>", b"<|endoftext|>", b"<|im_start|>", b"b", b"<|end_of_text|>"]
CODE = [b"<|fim_pad|>", b"<|repo_name|>", b"<|file_sep|>", b"<|fim_prefix|>", b"x"]


@pytest.mark.parametrize(
    ("texts", "special", "ends"),
    [
        (NAMED, {"bos": 3, "eos": 4}, {1, 2, 4, 5}),  # those that the file names, and those known by text
        # Only messages end where turns have an end of their own.
        (GPT_OSS, {"eos": 2}, {2, 3, 4}),
        (GPT_OSS[:3], {}, {1, 2}),
        ([b"<|end|>", b"<|flush|>", b"<|calls|>"], {}, {1, 2}),
        ([b"<|end|>", b"<|flush|>"], {}, {0, 1}),
        # In Gemma 4 the old end is a text like others.
        ([b"</s>", b"<eos>"], {"eos": 1}, {0, 1}),
        ([b"</s>", b"<eos>", b"<|tool_response>"], {"eos": 1}, {1, 2}),
        # Padding and file ends of code models end too.
        (CODE, {}, {0, 1, 2}),
        (CODE, {"fim_pad": 4}, {1, 2, 4}),
    ],
)
def test_end_tokens_are_named_by_the_file_or_known_by_their_text(
    texts: list[bytes], special: dict[str, int], ends: set[int]
) -> None:
    assert end_tokens(texts, special) == ends
