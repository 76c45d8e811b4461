"""What engines do alike, whatever computes for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from paceline.core.vocab import Vocab
from paceline.engines.grammar import TokenTrie


class Encode(Protocol):
    def __call__(self, text: str, *, add_bos: bool) -> list[int]: ...


def encode_within(encode: Encode, text: str) -> list[int]:
    """Token ids of `text` as it continues another: without BOS, and without the space that some tokenizers
    put before a beginning."""
    before = encode("\n", add_bos=False)
    tokens = encode("\n" + text, add_bos=False)
    # Where the newline became one with the text, no space was added either.
    return tokens[len(before) :] if tokens[: len(before)] == before else encode(text, add_bos=False)


def trie_of(vocab: Vocab, silent: Collection[int]) -> TokenTrie:
    """What grammars are matched with. No token that is or looks like a control token (`silent`) is text to
    them."""
    return TokenTrie(
        [b"" if token in silent else vocab.piece(token) for token in range(vocab.size)], vocab.eos
    )


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
