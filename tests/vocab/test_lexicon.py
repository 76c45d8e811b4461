"""The bytes of tokens, and the tokens of bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.speculative.vocabulary import Vocab
from paceline.vocab.lexicon import TokenizerVocab
from tongues import untaught

PIECES = [b"", b"", b"a", b"b", b"ab", b" ", b"a", b"\xc3", b"\xa4", b" ab", b"b"]
NAMES = [b"<s>", b"</s>", *(b"piece %d" % i for i in range(2, len(PIECES)))]
VOCAB = Vocab(
    len(PIECES), "test", 0, frozenset({1}), True, False, text=NAMES.__getitem__, piece=PIECES.__getitem__
)


def tokenizer(text: str) -> list[int]:
    """Return the second "a" and "b"; add a space to any text with "!"."""
    if "!" in text:
        return [5, 6]
    return [{"a": 6, "b": 3, " ": 5}.get(letter, 0) for letter in text]


@pytest.mark.parametrize(
    ("encode", "text", "tokens"),
    [
        (tokenizer, b"ab a", [6, 3, 5, 6]),  # the tokenizer encodes what it can encode exactly
        (tokenizer, b"\xc3\xa4", [7, 8]),  # where it would change the text, the longest matches do
        (untaught, b"ab ab a", [4, 9, 5, 2]),
        (tokenizer, b"ab\xc3a\xa4", [6, 3, 7, 6, 8]),  # half characters leave the rest alone
        (untaught, b"a!b", [2, 0, 3]),  # a byte that no token has becomes the filler
    ],
)
def test_text_is_encoded_by_the_tokenizer_or_by_longest_matches(
    encode: Callable[[str], list[int]], text: bytes, tokens: list[int]
) -> None:
    assert TokenizerVocab(VOCAB, encode).encode(text) == tokens


def test_of_several_tokens_of_the_same_bytes_the_tokenizers_choice_counts_or_the_first() -> None:
    taught, bare = TokenizerVocab(VOCAB, tokenizer), TokenizerVocab(VOCAB, untaught)
    assert (taught.by_bytes[b"a"], taught.by_bytes[b"b"]) == (6, 3)
    assert (bare.by_bytes[b"a"], bare.by_bytes[b"b"]) == (2, 3)


def test_ends_and_control_tokens_have_a_name_and_no_bytes() -> None:
    lexicon = TokenizerVocab(replace(VOCAB, eos=frozenset({1, 2})), untaught)
    assert lexicon.token_bytes[2] == b""
    assert lexicon.names == {0: b"<s>", 1: b"</s>", 2: b"piece 2"}
    assert lexicon.by_name == {b"<s>": 0, b"</s>": 1, b"piece 2": 2}
    assert lexicon.by_bytes[b"a"] == 6


@given(data=st.lists(st.sampled_from([b"a", b"b", b" ", b"\xc3", b"\xa4"])).map(b"".join))
def test_encoding_and_decoding_gives_exactly_the_bytes(data: bytes) -> None:
    for encode in (tokenizer, untaught):
        lexicon = TokenizerVocab(VOCAB, encode)
        assert lexicon.decode(lexicon.encode(data)) == data
